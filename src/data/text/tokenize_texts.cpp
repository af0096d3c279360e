// Encoding of the rank's units, exchange of their sizes, writing.
#include "tokenize_texts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>

#include "sha256.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/gather_all.hpp"
#include "trireme/comm/joint_work.hpp"
#include "utf8_filter.hpp"
#include "write_parallel.hpp"

namespace trireme::data {

namespace {

// The rank's share of the work, told to whoever watches.
class Share {
 public:
  Share(std::span<const TextUnit> units, std::span<const std::size_t> mine, const TextWatch& watch,
        const comm::Poll& poll)
      : watch_(watch), poll_(poll) {
    for (const TextUnit& unit : units) all_ += unit.end - unit.begin;
    for (const std::size_t unit : mine) own_ += units[unit].end - units[unit].begin;
  }

  // `bytes` of `unit` are read.
  void Tell(const TextUnit& unit, std::int64_t bytes) const {
    if (watch_.stop && watch_.stop()) {
      throw RunError("stopped by a signal: no token file was written");
    }
    poll_();
    if (!watch_.progress) return;
    const std::int64_t done = done_ + std::min(bytes, unit.end - unit.begin);
    watch_.progress(static_cast<double>(done) / static_cast<double>(own_), all_);
  }
  void Finish(const TextUnit& unit) { done_ += unit.end - unit.begin; }

 private:
  const TextWatch& watch_;
  const comm::Poll& poll_;
  std::int64_t all_ = 0, own_ = 0, done_ = 0;  // bytes on disk
};

// Results of units, to be changed: of all, and of this rank's.
struct EncodedShare {
  std::vector<UnitResult>& results;
  std::vector<UnitResult>& mine;
  Spills& spills;
};

UnitResult EncodeUnit(const TextPlan& plan, const TextUnit& unit, std::size_t place,
                      Encoder& encoder, const Share& share) {
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

TextTokens Summarise(const tokenizer::Tokenizer& tokenizer, const std::vector<UnitResult>& results,
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
    digests += fmt::format("{:016x}{:016x}\n", result.digest[1], result.digest[0]);
  }
  const std::string_view text = digests;
  source_sha256 = Sha256(std::span(&text, 1));
  return all;
}

// Gives documents of smallest hash to splits that have none. Collective.
void FillSplits(const comm::Communicator& world, const EncodeSettings& settings,
                const SmallestHashes& smallest, const EncodedShare& share) {
  const std::array<bool, 3> wanted = {settings.valid_fraction + settings.test_fraction > 0,
                                      settings.valid_fraction > 0, settings.test_fraction > 0};
  SplitSizes sizes = SumOf(share.results);
  const std::vector<DocumentMove> moves =
      MovesToEmptySplits(comm::GatherAll(world, smallest.All()), wanted, sizes);
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

}  // namespace

TextTokens TokenizeTexts(const comm::Communicator& world, tokenizer::Tokenizer& tokenizer,
                         const TextPlan& plan, const std::string& path, const TextWatch& watch) {
  const std::vector<TextUnit> units = CutIntoUnits(plan.files, plan.document, plan.unit_bytes);
  const std::vector<std::size_t> places =
      UnitsOfRank(units, plan.files, world.Rank(), world.Size());
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::unique_ptr<Spills> spills;
  std::vector<UnitResult> mine;
  SmallestHashes smallest;
  comm::WorkJointly(world, [&](const comm::Poll& poll) {
    spills = std::make_unique<Spills>(folder.empty() ? "." : folder);
    Encoder encoder(tokenizer, plan.encode, *spills);
    Share share(units, places, watch, poll);
    for (const std::size_t place : places) {
      mine.push_back(EncodeUnit(plan, units.at(place), place, encoder, share));
      share.Finish(units.at(place));
    }
    smallest = encoder.Smallest();
  });
  std::vector<UnitResult> results = Exchange(world, mine);
  FillSplits(world, plan.encode, smallest, {results, mine, *spills});
  TextFacts facts{.eos = plan.encode.eos, .source_sha256 = {}, .masks = plan.encode.masks};
  const TextTokens all = Summarise(tokenizer, results, facts.source_sha256);
  world.Together([&] { CheckSplits(all, plan.encode); });
  WriteInParallel(world, path, tokenizer, facts, {results, mine, *spills}, watch.stop);
  return all;
}

}  // namespace trireme::data
