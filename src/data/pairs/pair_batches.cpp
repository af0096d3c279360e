// PairFile, and PairBatches: classes of equal lengths, their order, batches, and shuffling.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <unordered_map>

#include "hdf5.hpp"
#include "token_arrays.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/data/pairs.hpp"
#include "trireme/data/sampler.hpp"

namespace trireme::data {

namespace {

// Computes the lengths of texts first, first + 1, ... from their beginnings. begins:
// [lengths.size() + 1], the last entry is the end of the last text. where: "file: array", for
// messages. Throws RunError for a length of more than 31 bits.
void LengthsBetween(std::span<const std::int64_t> begins, std::int64_t first,
                    const std::string& where, std::span<std::int32_t> lengths) {
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t length = begins[i + 1] - begins[i];
    if (length > std::numeric_limits<std::int32_t>::max()) {
      throw RunError(fmt::format("{}: pair {} has a text of {} tokens", where,
                                 first + static_cast<std::int64_t>(i), length));
    }
    lengths[i] = static_cast<std::int32_t>(length);
  }
}

// Fills `begins` with the places where texts first, first + 1, ... begin; its last entry is the end
// of the last of them.
void ReadBegins(const TokenFile& file, Split split, std::int64_t first, const TokenReader& reader,
                std::span<std::int64_t> begins) {
  begins.back() = file.Size(split);
  const std::int64_t known = std::min(std::ssize(begins), file.Documents(split) - first);
  reader.ReadBeginnings(first, begins.first(static_cast<std::size_t>(known)));
}

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

// One side of a file that is not open as a PairFile; reads only where its texts begin.
struct OpenSide {
  OpenSide(const std::string& path, Side side)
      : layout(InspectTokenFile(path, side)), file(path, layout) {}

  void Read(Split split, std::int64_t first, std::span<std::int32_t> lengths) const {
    const StoredArray& array = layout.Of(split, Array::kDocuments);
    const std::int64_t after = std::min(array.count, first + std::ssize(lengths) + 1);
    std::vector<std::int64_t> begins(lengths.size() + 1, layout.Tokens(split));
    file.RequireGood(array, file.ReadElements(array, first, after, begins.data()));
    LengthsBetween(begins, first, file.Path() + ": " + array.Path(), lengths);
  }

  TokenLayout layout;
  TokenArrays file;
};

constexpr std::int64_t kReadPairs = std::int64_t{1} << 16;  // lengths per read
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// Calls visit(pair, source length, target length) for each pair.
template <typename Visit>
void ForEachPair(std::int64_t pairs, const ReadPairLengths& lengths, Visit visit) {
  std::vector<std::int32_t> source, target;
  for (std::int64_t first = 0; first < pairs; first += kReadPairs) {
    const auto count = static_cast<std::size_t>(std::min(kReadPairs, pairs - first));
    source.resize(count);
    target.resize(count);
    lengths(first, source, target);
    for (std::size_t i = 0; i < count; ++i) {
      visit(first + static_cast<std::int64_t>(i), source[i], target[i]);
    }
  }
}

// Seed of a permutation. which: 0 for the batches, n + 1 for class n.
std::uint32_t SeedOf(std::uint32_t seed, std::uint64_t which) {
  return Philox({static_cast<std::uint32_t>(which), static_cast<std::uint32_t>(which >> 32), 0, 0},
                MakeKey(seed, Purpose::kPairOrder))[0];
}

// Appends the texts of pairs to `ids`, and replaces `lengths` by their numbers of tokens. Returns
// the largest length.
std::int64_t ReadTexts(const PairFile& file, Side side, Split split,
                       std::span<const std::int64_t> pairs, std::vector<std::int32_t>& ids,
                       std::vector<std::int32_t>& lengths) {
  std::vector<std::int32_t> text;
  std::int64_t longest = 0;
  lengths.clear();
  for (const std::int64_t pair : pairs) {
    file.ReadText(side, split, pair, text);
    ids.insert(ids.end(), text.begin(), text.end());
    lengths.push_back(static_cast<std::int32_t>(text.size()));
    longest = std::max(longest, std::ssize(text));
  }
  return longest;
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
      target_(world, node, path, OfSide(keeping, Side::kTarget), after_round) {
  CheckCounts(world);
}

PairFile::PairFile(const comm::Communicator& world, const TokenData& source,
                   const TokenData& target)
    : source_(world, source), target_(world, target) {
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
  std::vector<std::int64_t> begins(lengths.size() + 1);
  ReadBegins(file, split, first, TokenReader(file, split, false), begins);
  const std::string where = file.Path() + ": " + PathOf(split, Array::kDocuments, side);
  LengthsBetween(begins, first, where, lengths);
}

void PairFile::ReadText(Side side, Split split, std::int64_t pair,
                        std::vector<std::int32_t>& ids) const {
  const TokenFile& file = Of(side);
  std::array<std::int64_t, 2> begins{};
  TokenReader reader(file, split, false);
  ReadBegins(file, split, pair, reader, begins);
  const std::int64_t count = begins[1] - begins[0];
  Window window;
  const WindowView text = reader.Read(begins[0], count, window);
  ids.resize(static_cast<std::size_t>(count));
  text.CopyIds(0, count, ids.data());
}

std::vector<std::int32_t> PairFile::Encode(Side side, std::string_view text) const {
  const TokenFile& file = Of(side);
  const auto eos = static_cast<std::int32_t>(file.Words().eos);
  std::vector<std::int32_t> ids = file.Encode(text, true);
  if (ids.empty() || ids.back() != eos) ids.push_back(eos);
  return ids;
}

std::string PairFile::Decode(Side side, std::span<const std::int32_t> ids) const {
  const TokenFile& file = Of(side);
  const auto end = std::ranges::find(ids, static_cast<std::int32_t>(file.Words().eos));
  return file.Decode({ids.begin(), end});
}

ReadPairLengths LengthsOf(const std::string& path, Split split) {
  const auto source = std::make_shared<const OpenSide>(path, Side::kSource);
  const auto target = std::make_shared<const OpenSide>(path, Side::kTarget);
  return [source, target, split](std::int64_t first, std::span<std::int32_t> sources,
                                 std::span<std::int32_t> targets) {
    source->Read(split, first, sources);
    target->Read(split, first, targets);
  };
}

PairBatches::PairBatches(std::int64_t pairs, const ReadPairLengths& lengths, const Options& options)
    : options_(options) {
  CheckOptions();
  CountClasses(pairs, lengths);
  OrderClasses();
  PlacePairs(pairs, lengths);
}

void PairBatches::CheckOptions() const {
  for (const std::int64_t limit : {options_.source_tokens, options_.target_tokens, options_.pairs,
                                   options_.longest_source, options_.longest_target}) {
    if (limit < 0) throw InputError(fmt::format("batches of pairs: a limit is {}", limit));
  }
  if (options_.source_tokens + options_.target_tokens + options_.pairs > 0) return;
  throw InputError("batches of pairs: neither tokens nor pairs of a batch are limited");
}

bool PairBatches::IsLong(std::int64_t source, std::int64_t target) const {
  const auto above = [](std::int64_t length, std::int64_t limit) {
    return limit > 0 && length > limit;
  };
  return above(source, options_.longest_source) || above(source, options_.source_tokens) ||
         above(target, options_.longest_target) || above(target, options_.target_tokens);
}

void PairBatches::CountClasses(std::int64_t pairs, const ReadPairLengths& lengths) {
  std::unordered_map<std::uint64_t, std::int64_t> counts;
  std::string first_long;
  ForEachPair(pairs, lengths, [&](std::int64_t pair, std::int32_t source, std::int32_t target) {
    if (!IsLong(source, target)) {
      ++counts[KeyOf(source, target)];
      return;
    }
    if (left_out_++ == 0) {
      first_long = fmt::format("pair {} has {} source and {} target tokens", pair, source, target);
    }
  });
  if (left_out_ > 0 && options_.long_pairs == LongPairs::kRefuse) {
    const auto shown = [](std::int64_t longest, std::int64_t batch) {
      const std::int64_t limit =
          std::min(longest > 0 ? longest : kNoLimit, batch > 0 ? batch : kNoLimit);
      return limit == kNoLimit ? std::string("any number of") : fmt::format("{}", limit);
    };
    throw InputError(
        fmt::format("{} of {} pairs are too long for {} source or {} target tokens: {}", left_out_,
                    pairs, shown(options_.longest_source, options_.source_tokens),
                    shown(options_.longest_target, options_.target_tokens), first_long),
        "Allow longer texts, or leave long pairs out.");
  }
  pairs_ = pairs - left_out_;
  if (pairs_ == 0) throw InputError(fmt::format("none of {} pairs is left to train on", pairs));
  for (const auto& [key, count] : counts) {
    classes_.push_back({.begin = 0,
                        .pairs = count,
                        .source = static_cast<std::int32_t>(key >> 32),
                        .target = static_cast<std::int32_t>(key & 0xFFFFFFFFu)});
  }
}

// Orders the classes so that batches need little padding. They are sorted by a first length (source
// or target) and cut into strips of about equal numbers of tokens, in which the second length rises
// and falls in turn. Many strips keep the first length nearly constant within a batch, few strips
// the second. Tries both first lengths and several numbers of strips, and keeps the best.
void PairBatches::OrderClasses() {
  constexpr std::int64_t kMostStrips = 1 << 12;
  std::vector<Class> best;
  std::int64_t least = kNoLimit;
  for (const bool target_first : {true, false}) {
    const auto outer = [&](const Class& c) { return target_first ? c.target : c.source; };
    const auto inner = [&](const Class& c) { return target_first ? c.source : c.target; };
    std::ranges::sort(classes_, {}, [&](const Class& c) { return std::pair(outer(c), inner(c)); });
    const std::vector<Class> sorted = classes_;
    std::int64_t tokens = 0;
    for (const Class& c : sorted) tokens += c.pairs * (c.source + c.target);
    for (std::int64_t strips = 1; strips <= kMostStrips;
         strips += std::max<std::int64_t>(strips / 8, 1)) {
      classes_ = sorted;
      auto begin = classes_.begin();
      std::int64_t done = 0;
      for (std::int64_t strip = 0; begin != classes_.end(); ++strip) {
        auto end = begin;
        const double until = static_cast<double>(tokens) * static_cast<double>(strip + 1) /
                             static_cast<double>(strips);
        while (end != classes_.end() && (end == begin || static_cast<double>(done) < until)) {
          done += end->pairs * (end->source + end->target);
          ++end;
        }
        const std::int64_t sign = strip % 2 == 0 ? 1 : -1;
        std::sort(begin, end, [&](const Class& a, const Class& b) {
          const std::pair left(sign * inner(a), outer(a)), right(sign * inner(b), outer(b));
          return left < right;
        });
        begin = end;
      }
      CutBatches();
      const std::int64_t padded = PaddedTokens();
      if (padded >= least) continue;
      least = padded;
      best = classes_;
    }
  }
  classes_ = std::move(best);
  CutBatches();
}

// How many more pairs, padded to these lengths, fit into a batch that holds `held` pairs.
std::int64_t PairBatches::MorePairs(std::int64_t held, std::int64_t source,
                                    std::int64_t target) const {
  std::int64_t most = options_.pairs > 0 ? options_.pairs : kNoLimit;
  if (options_.source_tokens > 0) most = std::min(most, options_.source_tokens / source);
  if (options_.target_tokens > 0) most = std::min(most, options_.target_tokens / target);
  return std::max<std::int64_t>(most - held, 0);
}

void PairBatches::CutBatches() {
  batches_.clear();
  Batch batch;
  std::int64_t held = 0, place = 0, sources = 0, targets = 0;
  const auto close = [&] {
    batches_.push_back(batch);
    batch = {.begin = place, .sources_before = sources, .targets_before = targets};
    held = 0;
  };
  for (Class& c : classes_) {
    c.begin = place;
    for (std::int64_t left = c.pairs; left > 0;) {
      const std::int32_t source = std::max(batch.source_length, c.source);
      const std::int32_t target = std::max(batch.target_length, c.target);
      const std::int64_t more = std::min(left, MorePairs(held, source, target));
      if (more == 0) {
        close();
        continue;
      }
      batch.source_length = source;
      batch.target_length = target;
      held += more;
      left -= more;
      place += more;
      sources += more * c.source;
      targets += more * c.target;
    }
  }
  close();
  batches_.push_back(batch);
}

void PairBatches::PlacePairs(std::int64_t pairs, const ReadPairLengths& lengths) {
  std::unordered_map<std::uint64_t, std::int64_t> next;
  for (const Class& c : classes_) next[KeyOf(c.source, c.target)] = c.begin;
  const bool narrow = pairs <= std::numeric_limits<std::uint32_t>::max();
  if (narrow) {
    order_.resize(static_cast<std::size_t>(pairs_));
  } else {
    long_order_.resize(static_cast<std::size_t>(pairs_));
  }
  ForEachPair(pairs, lengths, [&](std::int64_t pair, std::int32_t source, std::int32_t target) {
    if (IsLong(source, target)) return;
    const auto at = static_cast<std::size_t>(next.at(KeyOf(source, target))++);
    if (narrow) {
      order_[at] = static_cast<std::uint32_t>(pair);
    } else {
      long_order_[at] = pair;
    }
  });
}

std::int64_t PairBatches::PaddedTokens() const {
  std::int64_t padded = 0;
  for (std::size_t b = 0; b + 1 < batches_.size(); ++b) {
    padded += (batches_[b + 1].begin - batches_[b].begin) *
              (batches_[b].source_length + batches_[b].target_length);
  }
  return padded;
}

double PairBatches::PaddedShare() const {
  const std::int64_t real = batches_.back().sources_before + batches_.back().targets_before;
  return 1 - static_cast<double>(real) / static_cast<double>(PaddedTokens());
}

std::int64_t PairBatches::MemoryBytes() const {
  return static_cast<std::int64_t>(
      order_.size() * sizeof(std::uint32_t) + long_order_.size() * sizeof(std::int64_t) +
      classes_.size() * sizeof(Class) + batches_.size() * sizeof(Batch));
}

PairBatches::Place PairBatches::PlaceOf(std::int64_t step) const {
  const std::int64_t steps = StepsPerEpoch(), epoch = step / steps, turn = step % steps;
  const std::int64_t batch =
      options_.shuffle ? Permute(SeedOf(options_.seed, 0), epoch, turn, steps) : turn;
  return {epoch, static_cast<std::size_t>(batch)};
}

PairBatchShape PairBatches::Shape(std::int64_t step) const { return ShapeOf(PlaceOf(step).batch); }

PairBatchShape PairBatches::ShapeOf(std::size_t at) const {
  const Batch &batch = batches_[at], &next = batches_[at + 1];
  return {.pairs = next.begin - batch.begin,
          .source_length = batch.source_length,
          .target_length = batch.target_length,
          .source_tokens = next.sources_before - batch.sources_before,
          .target_tokens = next.targets_before - batch.targets_before};
}

PairBatchShape PairBatches::Typical() const {
  using Sizes = std::array<double, 3>;  // pairs, padded source and target tokens
  const auto sizes = [](const PairBatchShape& shape) {
    const auto pairs = static_cast<double>(shape.pairs);
    return Sizes{pairs, pairs * static_cast<double>(shape.source_length),
                 pairs * static_cast<double>(shape.target_length)};
  };
  const auto batches = static_cast<std::size_t>(StepsPerEpoch());
  Sizes means{};
  for (std::size_t b = 0; b < batches; ++b) {
    const Sizes these = sizes(ShapeOf(b));
    for (std::size_t i = 0; i < means.size(); ++i) {
      means[i] += these[i] / static_cast<double>(batches);
    }
  }
  PairBatchShape nearest;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t b = 0; b < batches; ++b) {
    const PairBatchShape shape = ShapeOf(b);
    const Sizes these = sizes(shape);
    double apart = 0;
    for (std::size_t i = 0; i < means.size(); ++i) apart += std::abs(these[i] / means[i] - 1);
    if (apart < least) std::tie(least, nearest) = std::tuple(apart, shape);
  }
  return nearest;
}

std::int64_t PairBatches::TargetsBefore(std::int64_t step) const {
  const std::int64_t epoch = step / StepsPerEpoch();
  std::int64_t targets = epoch * batches_.back().targets_before;
  for (std::int64_t s = epoch * StepsPerEpoch(); s < step; ++s) targets += Shape(s).target_tokens;
  return targets;
}

std::int64_t PairBatches::PairAt(std::size_t which, std::int64_t epoch, std::int64_t place) const {
  const Class& c = classes_[which];
  const std::int64_t index = place - c.begin;
  const std::int64_t moved =
      options_.shuffle ? Permute(SeedOf(options_.seed, which + 1), epoch, index, c.pairs) : index;
  const auto at = static_cast<std::size_t>(c.begin + moved);
  return order_.empty() ? long_order_[at] : order_[at];
}

void PairBatches::Fill(std::int64_t step, const Part& share,
                       std::vector<std::int64_t>& pairs) const {
  pairs.clear();
  const Place place = PlaceOf(step);
  const std::int64_t begin = batches_[place.batch].begin + share.begin;
  const std::int64_t end =
      std::min(batches_[place.batch].begin + share.end, batches_[place.batch + 1].begin);
  if (begin >= end) return;
  const auto after = std::ranges::upper_bound(classes_, begin, {}, &Class::begin);
  auto which = static_cast<std::size_t>(after - classes_.begin()) - 1;
  for (std::int64_t at = begin; at < end; ++at) {
    while (at >= classes_[which].begin + classes_[which].pairs) ++which;
    pairs.push_back(PairAt(which, place.epoch, at));
  }
}

PairBatches::Options BatchesOf(const Options& options, std::uint32_t seed) {
  return {.seed = seed,
          .source_tokens = options.batch_tokens,
          .target_tokens = options.batch_tokens,
          .pairs = options.batch,
          .longest_source = options.sequence_length,
          .longest_target = options.sequence_length,
          .long_pairs = options.long_pairs};
}

ReadPairLengths LengthsOf(const PairFile& file, Split split) {
  return [&file, split](std::int64_t first, std::span<std::int32_t> source,
                        std::span<std::int32_t> target) {
    file.ReadLengths(Side::kSource, split, first, source);
    file.ReadLengths(Side::kTarget, split, first, target);
  };
}

void FillEntry(const PairFile& file, Split split, std::span<const std::int64_t> pairs,
               const PairBatchShape& shape, std::int64_t before, Entry& entry) {
  // First the texts one after the other, then side by side with padding.
  std::vector<std::int32_t> sources, targets;
  const std::int64_t source_length =
      std::max(ReadTexts(file, Side::kSource, split, pairs, sources, entry.source_lengths),
               shape.source_length);
  const std::int64_t length =
      std::max(ReadTexts(file, Side::kTarget, split, pairs, targets, entry.target_lengths),
               shape.target_length);
  const auto cells = static_cast<std::size_t>(std::ssize(pairs) * length);
  entry.sequences = std::ssize(pairs);
  entry.length = length;
  entry.source_length = source_length;
  entry.sources.assign(pairs.size() * static_cast<std::size_t>(source_length), 0);
  entry.inputs.assign(cells, 0);
  entry.targets.assign(cells, kMasked);
  entry.ordinals.clear();
  entry.begins.clear();
  entry.positions = PositionsOf(length, 0, 1);
  entry.valid = std::ssize(targets);
  entry.visible_keys = 0;
  const auto eos = static_cast<std::int32_t>(file.Of(Side::kTarget).Words().eos);
  auto source = sources.cbegin(), target = targets.cbegin();
  for (std::int64_t i = 0; i < entry.sequences; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int32_t source_tokens = entry.source_lengths[at];
    const std::int32_t target_tokens = entry.target_lengths[at];
    std::copy_n(source, source_tokens, entry.sources.begin() + i * source_length);
    std::copy_n(target, target_tokens, entry.targets.begin() + i * length);
    const auto inputs = entry.inputs.begin() + i * length;
    *inputs = eos;
    std::copy_n(target, target_tokens - 1, inputs + 1);
    entry.ordinals.push_back(static_cast<std::uint64_t>(before + pairs[at]));
    source += source_tokens;
    target += target_tokens;
  }
}

}  // namespace trireme::data
