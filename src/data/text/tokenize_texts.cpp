// Encoding of the rank's units, exchange of their sizes, writing.
#include "tokenize_texts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>

#include "sha256.hpp"
#include "trireme/base/error.hpp"
#include "utf8_filter.hpp"
#include "write_parallel.hpp"

namespace trireme::data {

namespace {

// The rank's share of the work, told to whoever watches.
class Share {
 public:
  Share(std::span<const TextUnit> units, std::span<const std::size_t> mine, const TextWatch& watch)
      : watch_(watch) {
    for (const TextUnit& unit : units) all_ += unit.end - unit.begin;
    for (const std::size_t unit : mine) own_ += units[unit].end - units[unit].begin;
  }

  // `bytes` of `unit` are read.
  void Tell(const TextUnit& unit, std::int64_t bytes) const {
    if (watch_.stop && watch_.stop()) {
      throw RunError("stopped by a signal: no token file was written");
    }
    if (!watch_.progress) return;
    const std::int64_t done = done_ + std::min(bytes, unit.end - unit.begin);
    watch_.progress(static_cast<double>(done) / static_cast<double>(own_), all_);
  }
  void Finish(const TextUnit& unit) { done_ += unit.end - unit.begin; }

 private:
  const TextWatch& watch_;
  std::int64_t all_ = 0, own_ = 0, done_ = 0;  // bytes on disk
};

UnitResult EncodeUnit(const TextPlan& plan, const TextUnit& unit, std::size_t place,
                      Encoder& encoder, const Share& share) {
  const TextFile& file = plan.files.at(unit.file);
  encoder.Begin(place, file.split, file.path);
  JsonRecords records(encoder, plan.keys, file.path);
  DocumentSink& sink = file.json_lines ? static_cast<DocumentSink&>(records) : encoder;
  Utf8Filter filter(sink, file.path, plan.replace);
  ForEachDocument(file, unit, plan.document, filter,
                  [&](std::int64_t bytes) { share.Tell(unit, bytes); });
  UnitResult result = encoder.Finish();
  result.replaced = filter.Replaced();
  return result;
}

// All ranks' results, by unit. Collective.
std::vector<UnitResult> Exchange(const comm::Communicator& world,
                                 const std::vector<UnitResult>& mine) {
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()),
                               mine.size() * sizeof(UnitResult));
  std::vector<UnitResult> results;
  for (const std::string& part : world.Gather(std::string(bytes))) {
    const std::size_t count = part.size() / sizeof(UnitResult);
    const std::size_t before = results.size();
    results.resize(before + count);
    if (count > 0) std::memcpy(results.data() + before, part.data(), part.size());
  }
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
    digests += fmt::format("{:016x}{:016x}\n", result.digest[1], result.digest[0]);
  }
  const std::string_view text = digests;
  source_sha256 = Sha256(std::span(&text, 1));
  return all;
}

void CheckSplits(const TextTokens& all) {
  for (const Split split : kSplits) {
    const std::int64_t tokens = all.tokens.at(static_cast<std::size_t>(split));
    if (tokens >= 2) continue;
    throw InputError(
        fmt::format("the {} split holds {} tokens; at least 2 are needed", NameOf(split), tokens),
        split == Split::kTrain
            ? "Are the texts of tokenize.train empty?"
            : fmt::format("Raise tokenize.{0}_fraction, or name texts: tokenize.{0}.",
                          NameOf(split)));
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
  world.Together([&] {
    spills = std::make_unique<Spills>(folder.empty() ? "." : folder);
    Encoder encoder(tokenizer, plan.encode, *spills);
    Share share(units, places, watch);
    for (const std::size_t place : places) {
      mine.push_back(EncodeUnit(plan, units.at(place), place, encoder, share));
      share.Finish(units.at(place));
    }
  });
  const std::vector<UnitResult> results = Exchange(world, mine);
  TextFacts facts{.eos = plan.encode.eos, .source_sha256 = {}, .masks = plan.encode.masks};
  const TextTokens all = Summarise(tokenizer, results, facts.source_sha256);
  world.Together([&] { CheckSplits(all); });
  WriteInParallel(world, path, tokenizer, facts, results, mine, *spills);
  return all;
}

}  // namespace trireme::data
