// Encoding of pairs, text by text.
#include "pair_encoder.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "encoder.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

std::uint64_t HashOfPair(std::string_view source, std::string_view target) {
  const std::string both = fmt::format("{}\n{}", source, target);  // neither has a line end
  return XXH3_64bits(both.data(), both.size());
}

PairEncoder::PairEncoder(const PairTokenizers& tokenizers, PairSpills& spills)
    : tokenizers_(tokenizers), spills_(spills) {
  for (std::size_t t = 0; t < kPairSides.size(); ++t) {
    width_.at(t) = WidthOf(*tokenizers.of.at(t));
    tokenizers.of.at(t)->Template(prefix_.at(t), suffix_.at(t));
    const auto eos = static_cast<std::int32_t>(tokenizers.eos.at(t));
    if (suffix_.at(t).empty() || suffix_.at(t).back() != eos) suffix_.at(t).push_back(eos);
  }
}

void PairEncoder::Begin(std::size_t unit) {
  result_ = {.unit = unit,
             .pairs_at = spills_.pairs.Size() / static_cast<std::int64_t>(sizeof(SpilledPair))};
  for (std::size_t t = 0; t < kPairSides.size(); ++t) {
    result_.tokens_at.at(t) = spills_.tokens.at(t).Size() / width_.at(t);
  }
}

std::uint32_t PairEncoder::Encode(std::size_t which, std::string_view text) {
  Tokenizer& tokenizer = *tokenizers_.of.at(which);
  ids_ = prefix_.at(which);
  tokenizer.Encode(text, ids_);
  ids_.insert(ids_.end(), suffix_.at(which).begin(), suffix_.at(which).end());
  const std::int64_t most = tokenizer.VocabularySize();
  const auto bad =
      std::find_if(ids_.begin(), ids_.end(), [&](auto id) { return id < 0 || id >= most; });
  if (bad != ids_.end()) {
    throw RunError(fmt::format("the tokenizer gave id {} of {} types", *bad, most));
  }
  Spill& spill = spills_.tokens.at(which);
  if (width_.at(which) == 2) {
    narrow_.assign(ids_.begin(), ids_.end());
    spill.Append(narrow_.data(), narrow_.size() * sizeof(std::uint16_t));
  } else {
    spill.Append(ids_.data(), ids_.size() * sizeof(std::int32_t));
  }
  return static_cast<std::uint32_t>(ids_.size());
}

void PairEncoder::Add(std::string_view source, std::string_view target, Split split) {
  const auto s = static_cast<std::size_t>(split);
  const PerText<std::string_view> texts = {source, target};
  SpilledPair pair{.split = s};
  for (std::size_t t = 0; t < texts.size(); ++t) {
    pair.tokens.at(t) = Encode(t, texts.at(t));
    result_.tokens.at(s).at(t) += pair.tokens.at(t);
  }
  spills_.pairs.Append(&pair, sizeof pair);
  ++result_.pairs.at(s);
  const std::array<std::uint64_t, 4> chain = {result_.digest[0], result_.digest[1],
                                              HashOfPair(source, target), s};
  const XXH128_hash_t digest = XXH3_128bits(chain.data(), sizeof chain);
  result_.digest = {digest.low64, digest.high64};
}

}  // namespace trireme::data
