// Encoding of the rank's units, exchange of their sizes, writing.
#include "tokenize_texts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "sha256.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/gather_all.hpp"
#include "trireme/comm/joint_work.hpp"
#include "unit_rounds.hpp"
#include "utf8_filter.hpp"
#include "write_parallel.hpp"

namespace trireme::data {

namespace {

constexpr std::chrono::milliseconds kWait{2};  // between looks of a rank that has no work left

// The rank's share of the work, told to whoever watches.
class ShareOfTexts {
 public:
  ShareOfTexts(std::span<const TextUnit> units, std::span<const std::size_t> mine,
               const TextWatch& watch, std::function<void()> poll)
      : watch_(watch), poll_(std::move(poll)) {
    for (const TextUnit& unit : units) all_ += unit.end - unit.begin;
    for (const std::size_t unit : mine) own_ += units[unit].end - units[unit].begin;
  }

  // `bytes` of `unit` are read.
  void Tell(const TextUnit& unit, std::int64_t bytes) const {
    poll_();
    if (!watch_.progress) return;
    const std::int64_t done = done_ + std::min(bytes, unit.end - unit.begin);
    watch_.progress(static_cast<double>(done) / static_cast<double>(own_), all_);
  }
  void Finish(const TextUnit& unit) { done_ += unit.end - unit.begin; }

 private:
  const TextWatch& watch_;
  std::function<void()> poll_;
  std::int64_t all_ = 0, own_ = 0, done_ = 0;  // bytes on disk
};

// Results of units, to be changed: of all, and of this rank's.
struct EncodedShare {
  std::vector<UnitResult>& results;
  std::vector<UnitResult>& mine;
  Spills& spills;
};

UnitResult EncodeUnit(const TextPlan& plan, const TextUnit& unit, std::size_t place,
                      Encoder& encoder, const ShareOfTexts& share) {
  const TextFile& file = plan.files.at(unit.file);
  encoder.Begin(place, file);
  JsonRecords records(encoder, plan.keys, file.path, plan.replace);
  DocumentSink& sink = file.json_lines ? static_cast<DocumentSink&>(records) : encoder;
  Utf8Filter filter(sink, file.path, plan.replace);
  ForEachDocument(file, unit, plan.document, filter,
                  [&](std::int64_t bytes) { share.Tell(unit, bytes); });
  UnitResult result = encoder.Finish();
  result.replaced = filter.Replaced() + records.Replaced();
  result.empty = records.Empty();
  result.missing = records.Missing();
  return result;
}

// All ranks' results, by unit. Collective.
std::vector<UnitResult> Exchange(const comm::Communicator& world,
                                 const std::vector<UnitResult>& mine) {
  std::vector<UnitResult> results = comm::GatherAll(world, mine);
  std::sort(results.begin(), results.end(),
            [](const UnitResult& a, const UnitResult& b) { return a.unit < b.unit; });
  return results;
}

TextTokens Summarise(const Tokenizer& tokenizer, const std::vector<UnitResult>& results,
                     std::string& source_sha256) {
  TextTokens all{.tokenizer = tokenizer.Kind(), .vocabulary = tokenizer.VocabularySize()};
  std::string digests;
  for (const UnitResult& result : results) {
    for (std::size_t s = 0; s < kSplits.size(); ++s) {
      all.tokens.at(s) += result.tokens.at(s);
      all.documents.at(s) += result.documents.at(s);
    }
    all.replaced += result.replaced;
    all.empty += result.empty;
    all.missing += result.missing;
    digests += fmt::format("{:016x}{:016x}\n", result.digest[1], result.digest[0]);
  }
  const std::string_view text = digests;
  source_sha256 = Sha256(std::span(&text, 1));
  return all;
}

// Splits that hashes fill.
std::array<bool, 3> WantedSplits(const EncodeSettings& settings) {
  return {settings.valid_fraction + settings.test_fraction > 0, settings.valid_fraction > 0,
          settings.test_fraction > 0};
}

// Gives documents of smallest hash to splits that have none. Collective.
void FillSplits(const comm::Communicator& world, const EncodeSettings& settings,
                const SmallestHashes& smallest, const EncodedShare& share) {
  SplitSizes sizes = SumOf(share.results);
  const std::vector<DocumentMove> moves =
      MovesToEmptySplits(comm::GatherAll(world, smallest.All()), WantedSplits(settings), sizes);
  const auto change = [](std::vector<UnitResult>& results, const DocumentMove& move) {
    const auto unit = std::find_if(results.begin(), results.end(), [&](const UnitResult& result) {
      return result.unit == move.document.unit;
    });
    if (unit == results.end()) return unit;
    const auto from = static_cast<std::size_t>(move.document.split);
    const auto to = static_cast<std::size_t>(move.to);
    unit->tokens.at(from) -= static_cast<std::int64_t>(move.document.tokens);
    unit->tokens.at(to) += static_cast<std::int64_t>(move.document.tokens);
    --unit->documents.at(from);
    ++unit->documents.at(to);
    return unit;
  };
  world.Together([&] {
    for (const DocumentMove& move : moves) {
      change(share.results, move);
      const auto unit = change(share.mine, move);
      if (unit == share.mine.end()) continue;
      const SpilledDocument document{move.document.tokens, static_cast<std::uint64_t>(move.to)};
      const auto at = unit->documents_at + static_cast<std::int64_t>(move.document.place);
      share.spills.documents.Overwrite(at * static_cast<std::int64_t>(sizeof document), &document,
                                       sizeof document);
    }
  });
}

// Throws InputError for a split without tokens, naming it and what helps.
void CheckSplits(const TextTokens& all, const EncodeSettings& settings) {
  const std::int64_t documents = all.documents[0] + all.documents[1] + all.documents[2];
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const std::int64_t tokens = all.tokens.at(static_cast<std::size_t>(split));
    if (tokens >= kLeastTokens) continue;
    const double fraction = split == Split::kValid  ? settings.valid_fraction
                            : split == Split::kTest ? settings.test_fraction
                                                    : 0;
    const std::string hint =
        fraction > 0
            ? fmt::format(
                  "The texts are {} document{} of tokenize.train, too few to share out: "
                  "tokenize.document = line or blank_line makes more of plain text; or name "
                  "texts: tokenize.{}.",
                  documents, documents == 1 ? "" : "s", NameOf(split))
            : fmt::format("Are the texts of tokenize.{} empty?", NameOf(split));
    throw InputError(
        fmt::format("the {} split holds {} tokens; at least 2 are needed", NameOf(split), tokens),
        hint);
  }
}

// Tokens of train go from the rank's temporary file to the token file as soon as their place is
// known.
class EarlyCopy {
 public:
  EarlyCopy(UnitRounds& rounds, PieceWriter writer, const std::vector<UnitResult>& mine)
      : rounds_(rounds), writer_(std::move(writer)), mine_(mine) {}

  // Waits for no other rank.
  void Look() {
    rounds_.Look();
    if (!rounds_.Ready()) return;
    for (; next_ < mine_.size() && mine_[next_].unit < rounds_.Known(); ++next_) {
      writer_.CopyTrain(mine_[next_], rounds_.Before(mine_[next_].unit));
    }
  }

 private:
  UnitRounds& rounds_;
  PieceWriter writer_;
  const std::vector<UnitResult>& mine_;
  std::size_t next_ = 0;  // of mine_, to copy
};

// Tokens by split at which copying begins: no document goes to another split any more.
std::array<std::int64_t, 3> LeastTokens(const TextPlan& plan) {
  std::array<std::int64_t, 3> least{};
  const std::array<bool, 3> wanted = WantedSplits(plan.encode);
  for (std::size_t s = 0; s < least.size(); ++s) least.at(s) = wanted.at(s) ? kLeastTokens : 0;
  least[0] = std::max(least[0], plan.early_tokens);
  return least;
}

void Ask(const TextWatch& watch, const comm::Poll& poll) {
  if (watch.stop && watch.stop()) {
    throw RunError("stopped by a signal: no token file was written");
  }
  poll();
}

// How the work is done beside the plan.
struct Way {
  const std::string& path;
  const TextWatch& watch;
  bool early = true;  // tokens of train may be copied while texts are encoded
};

// Collective. Nothing if tokens were copied to a place that HDF5 did not give them.
std::optional<TextTokens> TokenizeOnce(const comm::Communicator& world,
                                       Tokenizer& tokenizer, const TextPlan& plan,
                                       const Way& way) {
  const std::vector<TextUnit> units = CutIntoUnits(plan.files, plan.document, plan.unit_bytes);
  const std::vector<std::size_t> places =
      UnitsOfRank(units, plan.files, world.Rank(), world.Size());
  const std::string folder = std::filesystem::path(way.path).parent_path().string();
  ParallelTokenFile file(world, way.path, tokenizer, {plan.encode.eos, plan.encode.masks});
  std::optional<WrittenFile> early = way.early ? file.Early() : std::nullopt;
  if (early) early->places.tokens[0] += plan.early_shift;
  std::unique_ptr<Spills> spills;
  std::vector<UnitResult> mine;
  SmallestHashes smallest;
  UnitRounds rounds(world, early ? units.size() : 0, mine, LeastTokens(plan));
  const auto encode = [&](const comm::Poll& poll) {
    const auto ask = [&] { Ask(way.watch, poll); };
    spills = std::make_unique<Spills>(folder.empty() ? "." : folder);
    Encoder encoder(tokenizer, plan.encode, *spills);
    std::optional<EarlyCopy> copy;
    if (early) copy.emplace(rounds, PieceWriter(*early, *spills, ask), mine);
    const auto look = [&] {
      ask();
      if (copy) copy->Look();
    };
    ShareOfTexts share(units, places, way.watch, look);
    for (const std::size_t place : places) {
      mine.push_back(EncodeUnit(plan, units.at(place), place, encoder, share));
      share.Finish(units.at(place));
    }
    smallest = encoder.Smallest();
    while (!rounds.Ended()) {
      const std::int64_t begun = rounds.Begun();
      look();
      if (!rounds.Ended() && rounds.Begun() == begun) std::this_thread::sleep_for(kWait);
    }
  };
  try {
    comm::WorkJointly(world, encode);
  } catch (...) {
    rounds.Drain(world);
    throw;
  }
  spills->copied = early && rounds.Ready();
  std::vector<UnitResult> results = Exchange(world, mine);
  FillSplits(world, plan.encode, smallest, {results, mine, *spills});
  std::string source_sha256;
  TextTokens all = Summarise(tokenizer, results, source_sha256);
  all.early = spills->copied;
  world.Together([&] { CheckSplits(all, plan.encode); });
  const std::int64_t copied_to = early ? early->places.tokens[0] : 0;
  const EncodedUnits encoded{results, mine, *spills, source_sha256, copied_to};
  if (!file.Write(encoded, way.watch.stop)) return std::nullopt;
  return all;
}

}  // namespace

TextTokens TokenizeTexts(const comm::Communicator& world, Tokenizer& tokenizer,
                         const TextPlan& plan, const std::string& path, const TextWatch& watch) {
  if (const auto all = TokenizeOnce(world, tokenizer, plan, {path, watch, true})) return *all;
  if (world.IsRoot()) {
    fmt::print(stderr,
               "warning: {}: HDF5 gave the tokens another place than foreseen: the texts are "
               "encoded once more\n",
               path);
    std::fflush(stderr);
  }
  return TokenizeOnce(world, tokenizer, plan, {path, watch, false}).value();
}

}  // namespace trireme::data
