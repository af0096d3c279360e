// Word-level tokenisation: count, rank, number.
#include "tokenize_word.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "token_codec.hpp"
#include "trireme/base/error.hpp"
#include "utf8.hpp"
#include "words.hpp"

namespace trireme::data {

namespace {

void CheckUtf8(const SourceText& source) {
  const std::size_t bad = FirstInvalidUtf8(source.text);
  if (bad == std::string::npos) return;
  const auto begin = source.text.begin();
  const auto line = 1 + std::count(begin, begin + static_cast<std::ptrdiff_t>(bad), '\n');
  throw InputError(fmt::format("{}:{}: byte 0x{:02x} at offset {} is not valid UTF-8", source.path,
                               line, static_cast<unsigned char>(source.text[bad]), bad),
                   "Convert the text to UTF-8, or use tokenize.kind = byte.");
}

// Words numbered by first appearance, with their counts. The text must outlive it.
class Counter {
 public:
  std::int32_t Add(std::string_view word, std::int64_t count) {
    const auto [known, added] = ids_.emplace(word, static_cast<std::int32_t>(words_.size()));
    if (added) words_.emplace_back(word, 0);
    words_[static_cast<std::size_t>(known->second)].second += count;
    return known->second;
  }
  std::int32_t Find(std::string_view word, std::int32_t otherwise) const {
    const auto known = ids_.find(word);
    return known == ids_.end() ? otherwise : known->second;
  }
  const std::vector<std::pair<std::string_view, std::int64_t>>& Words() const { return words_; }

 private:
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::vector<std::pair<std::string_view, std::int64_t>> words_;
};

// Ids by rank from ids by first appearance; words that are too rare get the id of <unk>.
struct Ranking {
  std::vector<std::int32_t> new_ids;
  Vocabulary vocabulary;
};

Ranking Rank(const Counter& counter, std::int32_t eos, std::int32_t unk, std::int64_t min_count) {
  auto words = counter.Words();
  const auto special = [&](std::int32_t id) { return id == eos || id == unk; };
  std::vector<std::int32_t> kept;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(words.size()); ++id) {
    const std::int64_t count = words[static_cast<std::size_t>(id)].second;
    if (special(id) || count >= min_count) {
      kept.push_back(id);
    } else {
      words[static_cast<std::size_t>(unk)].second += count;
    }
  }
  std::sort(kept.begin(), kept.end(), [&](std::int32_t a, std::int32_t b) {
    const auto& left = words[static_cast<std::size_t>(a)];
    const auto& right = words[static_cast<std::size_t>(b)];
    return left.second != right.second ? left.second > right.second : left.first < right.first;
  });
  Ranking ranking;
  ranking.new_ids.assign(words.size(), -1);
  for (const std::int32_t id : kept) {
    ranking.new_ids[static_cast<std::size_t>(id)] =
        static_cast<std::int32_t>(ranking.vocabulary.words.size());
    ranking.vocabulary.words.emplace_back(words[static_cast<std::size_t>(id)].first);
  }
  const std::int32_t new_unk = ranking.new_ids[static_cast<std::size_t>(unk)];
  for (std::int32_t& id : ranking.new_ids) id = id < 0 ? new_unk : id;
  ranking.vocabulary.eos = ranking.new_ids[static_cast<std::size_t>(eos)];
  ranking.vocabulary.unk = new_unk;
  return ranking;
}

}  // namespace

TokenData TokenizeWords(std::array<SourceText, 3> sources, const WordOptions& options) {
  for (SourceText& source : sources) {
    CheckUtf8(source);
    if (options.lowercase) source.text = LowerCase()(source.text);
  }
  Counter counter;
  const std::int32_t eos = counter.Add(kEndOfSentence, 0);
  const std::int32_t unk = counter.Add(kUnknown, 0);
  TokenData data;
  for (std::size_t split = 0; split < sources.size(); ++split) {
    const bool train = split == static_cast<std::size_t>(Split::kTrain);
    std::vector<std::int32_t>& ids = data.tokens.at(split);
    const auto add = [&](std::string_view word) {
      ids.push_back(train ? counter.Add(word, 1) : counter.Find(word, unk));
    };
    ForEachLine(sources.at(split).text, [&](std::string_view line) {
      ForEachWord(line, add);
      add(kEndOfSentence);
    });
  }
  Ranking ranking = Rank(counter, eos, unk, options.min_count);
  for (auto& ids : data.tokens) {
    for (std::int32_t& id : ids) id = ranking.new_ids[static_cast<std::size_t>(id)];
  }
  data.vocabulary = std::move(ranking.vocabulary);
  data.tokenizer = options.lowercase ? kLowercaseTokenizer : kWordTokenizer;
  return data;
}

}  // namespace trireme::data
