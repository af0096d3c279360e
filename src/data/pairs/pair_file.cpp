// PairFile: the beginnings of a side's texts are its documents.
#include "trireme/data/pair_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "pair_lengths.hpp"
#include "plain_dataset.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

namespace {

Keeping OfSide(Keeping keeping, Side side) {
  keeping.side = side;
  return keeping;
}

void RequireEqual(const std::string& path, Split split, std::int64_t sources,
                  std::int64_t targets) {
  if (sources == targets) return;
  throw TokenFileError(path, PathOf(split, Array::kDocuments, Side::kTarget),
                       fmt::format("{} targets for {} sources", targets, sources));
}

}  // namespace

PairCounts CountPairs(const std::string& path) {
  const TokenLayout source = InspectTokenFile(path, Side::kSource);
  const TokenLayout target = InspectTokenFile(path, Side::kTarget);
  PairCounts counts{.source_vocabulary = std::ssize(source.vocabulary.words),
                    .target_vocabulary = std::ssize(target.vocabulary.words),
                    .shared_vocabulary = !source.two_vocabularies};
  for (const Split split : kSplits) {
    const auto s = static_cast<std::size_t>(split);
    counts.pairs.at(s) = source.Of(split, Array::kDocuments).count;
    RequireEqual(path, split, counts.pairs.at(s), target.Of(split, Array::kDocuments).count);
    counts.source_tokens.at(s) = source.Tokens(split);
    counts.target_tokens.at(s) = target.Tokens(split);
  }
  return counts;
}

PairFile::PairFile(const comm::Communicator& world, const comm::Communicator& node,
                   const std::string& path, const Keeping& keeping,
                   const std::function<void()>& after_round)
    : source_(world, node, path, OfSide(keeping, Side::kSource), after_round),
      target_(world, node, path, OfSide(keeping, Side::kTarget), after_round),
      shared_(!source_.Layout().two_vocabularies) {
  CheckCounts(world);
}

PairFile::PairFile(const comm::Communicator& world, const TokenData& source,
                   const TokenData& target, bool shared_vocabulary)
    : source_(world, source), target_(world, target), shared_(shared_vocabulary) {
  CheckCounts(world);
}

void PairFile::CheckCounts(const comm::Communicator& world) const {
  world.Together([&] {
    for (const Split split : kSplits) {
      RequireEqual(source_.Path(), split, source_.Documents(split), target_.Documents(split));
    }
  });
}

void PairFile::ReadLengths(Side side, Split split, std::int64_t first,
                           std::span<std::int32_t> lengths) const {
  const TokenFile& file = Of(side);
  const std::int64_t end = first + std::ssize(lengths);
  const bool last = end == Pairs(split);
  std::vector<std::int64_t> begins(lengths.size() + 1, file.Size(split));
  file.ReadBeginnings(split, first, std::span(begins).first(lengths.size() + (last ? 0 : 1)));
  const std::string where = file.Path() + ": " + PathOf(split, Array::kDocuments, side);
  LengthsBetween(begins, first, where, lengths);
}

void PairFile::ReadText(Side side, Split split, std::int64_t pair,
                        std::vector<std::int32_t>& ids) const {
  const TokenFile& file = Of(side);
  std::array<std::int64_t, 2> begins = {0, file.Size(split)};
  const bool last = pair + 1 == Pairs(split);
  file.ReadBeginnings(split, pair, std::span(begins).first(last ? 1 : 2));
  ids.resize(static_cast<std::size_t>(begins[1] - begins[0]));
  file.ReadIds(split, begins[0], ids);
}

std::vector<std::int32_t> PairFile::Encode(Side side, std::string_view text) const {
  const TokenFile& file = Of(side);
  const auto eos = static_cast<std::int32_t>(file.Words().eos);
  std::vector<std::int32_t> ids = file.Encode(text);
  if (!file.TokenizerFiles().empty()) {
    // Made at the first text: to read a tokenizer's tables takes a second.
    std::optional<std::vector<std::int32_t>>& suffix = suffixes_[side == Side::kSource ? 0 : 1];
    if (!suffix) {
      std::vector<std::int32_t> prefix;
      Make(file.TokenizerFiles(), file.Path())->Template(prefix, suffix.emplace());
    }
    ids.insert(ids.end(), suffix->begin(), suffix->end());
  }
  if (ids.empty() || ids.back() != eos) ids.push_back(eos);
  return ids;
}

std::string PairFile::Decode(Side side, std::span<const std::int32_t> ids) const {
  const TokenFile& file = Of(side);
  const auto end = std::ranges::find(ids, static_cast<std::int32_t>(file.Words().eos));
  return file.Decode({ids.begin(), end});
}

}  // namespace trireme::data
