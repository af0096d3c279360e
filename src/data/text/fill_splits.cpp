// SmallestHashes, MovesToEmptySplits.
#include "fill_splits.hpp"

#include <algorithm>

namespace trireme::data {

void SmallestHashes::Add(const HashedDocument& document) {
  std::vector<HashedDocument>& kept = smallest_.at(static_cast<std::size_t>(document.split));
  if (kept.size() == kKept && document > kept.back()) return;
  kept.insert(std::upper_bound(kept.begin(), kept.end(), document), document);
  if (kept.size() > kKept) kept.pop_back();
}

std::vector<HashedDocument> SmallestHashes::All() const {
  std::vector<HashedDocument> all;
  for (const auto& kept : smallest_) all.insert(all.end(), kept.begin(), kept.end());
  return all;
}

std::vector<DocumentMove> MovesToEmptySplits(std::vector<HashedDocument> documents,
                                             const std::array<bool, 3>& wanted, SplitSizes& sizes) {
  std::sort(documents.begin(), documents.end());
  std::vector<DocumentMove> moves;
  for (const Split to : {Split::kValid, Split::kTest, Split::kTrain}) {
    const auto t = static_cast<std::size_t>(to);
    while (wanted.at(t) && sizes.tokens.at(t) < kLeastTokens) {
      const auto found =
          std::find_if(documents.begin(), documents.end(), [&](const HashedDocument& document) {
            const auto from = static_cast<std::size_t>(document.split);
            const std::int64_t left =
                sizes.tokens.at(from) - static_cast<std::int64_t>(document.tokens);
            return document.split != to && left >= kLeastTokens;
          });
      if (found == documents.end()) break;
      const auto from = static_cast<std::size_t>(found->split);
      const auto tokens = static_cast<std::int64_t>(found->tokens);
      moves.push_back({*found, to});
      sizes.tokens.at(from) -= tokens;
      sizes.tokens.at(t) += tokens;
      --sizes.documents.at(from);
      ++sizes.documents.at(t);
      documents.erase(found);
    }
  }
  return moves;
}

}  // namespace trireme::data
