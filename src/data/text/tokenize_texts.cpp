// Encodes this rank's units, exchanges their sizes and writes the file; makes units of single
// texts.
#include "tokenize_texts.hpp"

#include <fmt/format.h>
#include <xxhash.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <thread>

#include "token_arrays.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/base/utf8.hpp"

namespace trireme::data {

namespace {

// A rank without work pauses so long between looks at the rounds.
constexpr std::chrono::milliseconds kWait{2};

// Reports to TextWatch which share of the rank's work is done.
class WorkShare {
 public:
  WorkShare(const DocumentMaker& maker, std::span<const std::size_t> mine, const TextWatch& watch,
            std::function<void()> poll)
      : watch_(watch), poll_(std::move(poll)), bytes_(maker.Bytes()) {
    for (const std::size_t unit : mine) own_ += maker.WorkIn(unit);
  }

  // Reports that `work` out of the unit's work `all` is done.
  void Tell(std::int64_t work, std::int64_t all) const {
    poll_();
    if (!watch_.progress) return;
    const std::int64_t done = done_ + std::min(work, all);
    watch_.progress(static_cast<double>(done) / static_cast<double>(own_), bytes_);
  }
  void Finish(std::int64_t all) { done_ += all; }

 private:
  const TextWatch& watch_;
  std::function<void()> poll_;
  std::int64_t bytes_, own_ = 0, done_ = 0;
};

// Results of units that FillSplits changes: those of all ranks, and this rank's.
struct EncodedShare {
  std::vector<UnitResult>& results;
  std::vector<UnitResult>& mine;
  Spills& spills;
};

TextTokens Summarise(const TextTokenizers& tokenizers, const std::vector<UnitResult>& results,
                     std::string& source_sha256) {
  const SplitSizes sizes = SumOf(results);
  TextTokens all{.documents = sizes.documents};
  for (std::size_t t = 0; t < tokenizers.size(); ++t) {
    all.texts.push_back(
        {tokenizers[t]->Kind(), tokenizers[t]->VocabularySize(), sizes.tokens.at(t)});
  }
  std::string digests;
  for (const UnitResult& result : results) {
    all.replaced += result.replaced;
    all.empty += result.empty;
    all.missing += result.missing;
    digests += fmt::format("{:016x}{:016x}\n", result.digest[1], result.digest[0]);
  }
  const std::string_view text = digests;
  source_sha256 = Sha256(std::span(&text, 1));
  return all;
}

// By Split: whether the documents' hashes are to fill it.
std::array<bool, 3> WantedSplits(const EncodeSettings& settings) {
  return {settings.valid_fraction + settings.test_fraction > 0, settings.valid_fraction > 0,
          settings.test_fraction > 0};
}

// With single texts, moves documents of smallest hash to splits that have none. Collective.
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
    unit->tokens[0].at(from) -= static_cast<std::int64_t>(move.document.tokens);
    unit->tokens[0].at(to) += static_cast<std::int64_t>(move.document.tokens);
    --unit->documents.at(from);
    ++unit->documents.at(to);
    return unit;
  };
  world.Together([&] {
    for (const DocumentMove& move : moves) {
      change(share.results, move);
      const auto unit = change(share.mine, move);
      if (unit == share.mine.end()) continue;
      const auto at = unit->documents_at + static_cast<std::int64_t>(move.document.place);
      share.spills.Overwrite(at, {static_cast<std::uint64_t>(move.to), {move.document.tokens, 0}});
    }
  });
}

// Hint for texts whose documents are too few for the splits. documents: those shared out.
std::string TooFewToShare(std::int64_t documents, const EncodeSettings& settings) {
  const bool valid = settings.valid_fraction > 0, test = settings.test_fraction > 0;
  return fmt::format(
      "The texts are {} document{} of tokenize.train, too few to share out: tokenize.document = "
      "line or blank_line makes more of plain text; or name {}{}{}.",
      documents, documents == 1 ? "" : "s", valid ? "tokenize.valid" : "",
      valid && test ? " and " : "", test ? "tokenize.test" : "");
}

// Throws InputError for a split with too few tokens, with a hint.
void CheckSplits(const TextTokens& all, const EncodeSettings& settings) {
  const std::array<bool, 3> wanted = WantedSplits(settings);
  std::int64_t shared = 0;  // documents of tokenize.train
  for (const Split split : kSplits) {
    const auto s = static_cast<std::size_t>(split);
    if (split == Split::kTrain || wanted.at(s)) shared += all.documents.at(s);
  }
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const auto s = static_cast<std::size_t>(split);
    const std::int64_t tokens = all.texts[0].tokens.at(s);
    if (tokens >= kLeastTokens) continue;
    const std::string hint =
        wanted.at(s) && shared > 0
            ? TooFewToShare(shared, settings)
            : fmt::format("Are the texts of tokenize.{} empty?", NameOf(split));
    throw InputError(
        fmt::format("the {} split holds {} tokens; at least 2 are needed", NameOf(split), tokens),
        hint);
  }
}

// Throws InputError for a split without pairs, with a hint.
void CheckPairSplits(const TextTokens& all) {
  for (const Split split : kSplits) {
    if (all.documents.at(static_cast<std::size_t>(split)) > 0) continue;
    throw InputError(fmt::format("the {} split holds no pair", NameOf(split)),
                     split == Split::kTrain
                         ? "Are the texts of tokenize.source and tokenize.target empty?"
                         : fmt::format("Raise tokenize.{0}_fraction, or name texts: "
                                       "tokenize.{0}_source, tokenize.{0}_target.",
                                       NameOf(split)));
  }
}

// Copies train tokens from the rank's temporary file to the token file as soon as their place is
// known.
class EarlyCopy {
 public:
  EarlyCopy(UnitRounds& rounds, PieceWriter writer, const std::vector<UnitResult>& mine)
      : rounds_(rounds), writer_(std::move(writer)), mine_(mine) {}

  // Does not wait for other ranks.
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
  std::size_t next_ = 0;  // index in mine_ of the next unit to copy
};

// Tokens per split from which on copying is safe: no document will move to another split any more.
std::array<std::int64_t, 3> LeastTokens(const TokenFilePlan& plan) {
  std::array<std::int64_t, 3> least{};
  const std::array<bool, 3> wanted = WantedSplits(plan.settings);
  for (std::size_t s = 0; s < least.size(); ++s) least.at(s) = wanted.at(s) ? kLeastTokens : 0;
  least[0] = std::max(least[0], plan.early_tokens);
  return least;
}

// Tokenises everything. may_be_early: train tokens may be copied while documents are encoded.
// nullopt if they were copied to a place that HDF5 did not give them. Collective.
std::optional<TextTokens> TokenizeOnce(const comm::Communicator& world, DocumentMaker& maker,
                                       const TokenFilePlan& plan, bool may_be_early) {
  const std::vector<std::size_t> units = maker.UnitsOf(world.Rank(), world.Size());
  const bool pairs = plan.tokenizers.size() > 1;
  ParallelTokenFile file(world, plan.path, plan.tokenizers, plan.settings);
  std::optional<WrittenFile> early = may_be_early ? file.Early() : std::nullopt;
  if (early) early->places.tokens[0][kTrainAt] += plan.early_shift;
  std::unique_ptr<Spills> spills;
  std::vector<UnitResult> mine;
  SmallestHashes smallest;
  UnitRounds rounds(world, early ? maker.Units() : 0, mine, LeastTokens(plan));
  const auto encode = [&](const comm::Poll& poll) {
    const auto ask = [&] {
      RequireGoingOn(plan.watch.stop);
      poll();
    };
    spills = std::make_unique<Spills>(FolderOf(plan.path), plan.tokenizers.size());
    Encoder encoder(plan.tokenizers, plan.settings, *spills);
    std::optional<EarlyCopy> copy;
    if (early) copy.emplace(rounds, PieceWriter(*early, *spills, ask), mine);
    const auto look = [&] {
      ask();
      if (copy) copy->Look();
    };
    WorkShare share(maker, units, plan.watch, look);
    for (const std::size_t unit : units) {
      const std::int64_t work = maker.WorkIn(unit);
      mine.push_back(maker.Make(unit, encoder, [&](std::int64_t done) { share.Tell(done, work); }));
      share.Finish(work);
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
  std::vector<UnitResult> results = comm::GatherAll(world, mine);
  std::ranges::sort(results, {}, &UnitResult::unit);
  if (!pairs) FillSplits(world, plan.settings, smallest, {results, mine, *spills});
  std::string source_sha256;
  TextTokens all = Summarise(plan.tokenizers, results, source_sha256);
  all.early = spills->copied;
  world.Together([&] { pairs ? CheckPairSplits(all) : CheckSplits(all, plan.settings); });
  const std::int64_t copied_to = early ? early->places.tokens[0][kTrainAt] : 0;
  const EncodedUnits encoded{results, mine, *spills, source_sha256, copied_to};
  if (!file.Write(encoded, plan.watch.stop)) return std::nullopt;
  return all;
}

// Hands the documents of a unit to `sink`. Returns only the numbers of what was replaced and
// dropped.
UnitResult ReadUnit(const TextPlan& plan, const TextUnit& unit, RecordSink& sink,
                    const UnitProgress& tell) {
  const TextFile& file = plan.files.at(unit.file);
  JsonRecords records(sink, plan.keys, file.path, plan.replace);
  Utf8Filter filter(file.json_lines ? static_cast<DocumentSink&>(records) : sink, file.path,
                    plan.replace);
  ForEachDocument(file, unit, plan.document, filter, tell);
  return {.replaced = filter.Replaced() + records.Replaced(),
          .empty = records.Empty(),
          .missing = records.Missing()};
}

// Supplies the documents of files of single texts.
class TextMaker : public DocumentMaker {
 public:
  TextMaker(const TextPlan& plan, const Tokenizer& tokenizer)
      : plan_(plan),
        tokenizer_(tokenizer),
        units_(CutIntoUnits(plan.files, plan.document, plan.unit_bytes)) {}

  std::size_t Units() const override { return units_.size(); }
  std::vector<std::size_t> UnitsOf(int rank, int ranks) const override {
    return UnitsOfRank(units_, plan_.files, rank, ranks);
  }
  std::int64_t WorkIn(std::size_t unit) const override {
    return units_.at(unit).end - units_.at(unit).begin;  // bytes on disk
  }
  std::int64_t Bytes() const override {
    std::int64_t bytes = 0;
    for (const TextUnit& unit : units_) bytes += unit.end - unit.begin;
    return bytes;
  }
  UnitResult Make(std::size_t unit, Encoder& to, const UnitProgress& tell) override {
    const TextFile& file = plan_.files.at(units_.at(unit).file);
    DocumentEncoder documents(to, tokenizer_, file);
    to.Begin(unit, file.split, [&] { return documents.Where(); });
    const UnitResult read = ReadUnit(plan_, units_.at(unit), documents, tell);
    UnitResult result = to.Finish();
    result.replaced = read.replaced;
    result.empty = read.empty;
    result.missing = read.missing;
    return result;
  }

 private:
  const TextPlan& plan_;
  const Tokenizer& tokenizer_;
  std::vector<TextUnit> units_;
};

// Bytes to take from a unit, at least.
constexpr std::int64_t kLeastOfUnit = std::int64_t{256} << 10;

// Thrown to end the reading of a unit that has given enough.
struct Enough {};

// Where to cut a line that is longer than `most` bytes: at the last blank within them or, without
// one, before the character that does not fit.
std::size_t CutBefore(std::string_view line, std::size_t most) {
  const std::size_t blank = line.rfind(' ', most - 1);
  if (blank != std::string_view::npos && blank > 0) return blank;
  std::size_t at = most;
  while (at > 0 && ContinuesCharacter(line[at])) --at;
  return at;
}

// Collects the lines of those documents of a unit that belong to the train split.
class Lines : public RecordSink {
 public:
  Lines(const EncodeSettings& settings, std::vector<std::string>& lines)
      : settings_(settings), lines_(lines) {}

  // Starts a unit. bytes: the most that are kept of it.
  void Begin(std::int64_t bytes) { left_ = bytes; }

  void Prompt(std::string_view text, std::int64_t /*offset*/) override { document_ = text; }
  void Text(std::string_view piece, std::int64_t /*offset*/) override {
    document_ += piece;
    if (std::ssize(document_) >= left_) Finish();  // the beginning of a long document is enough
  }
  void End() override {
    ++documents_;
    const std::uint64_t hash = XXH3_64bits(document_.data(), document_.size());
    if (settings_.SplitOf(hash, Split::kTrain) == Split::kTrain) Keep();
    document_.clear();
    if (left_ <= 0) throw Enough();
  }
  std::int64_t Documents() const { return documents_; }  // read to their ends, of all splits
  // Keeps the beginning of a document, and ends the reading.
  void Finish() {
    Keep();
    document_.clear();
    throw Enough();
  }

 private:
  void Keep() {
    std::string_view rest = document_;
    rest = rest.substr(0, static_cast<std::size_t>(std::max<std::int64_t>(left_, 0)));
    // Drops the beginning of a character at the end.
    while (rest.size() < document_.size() && !rest.empty() &&
           ContinuesCharacter(document_[rest.size()])) {
      rest.remove_suffix(1);
    }
    left_ -= std::ssize(rest);
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      while (line.size() > kLongestSentence) {
        const std::size_t cut = CutBefore(line, kLongestSentence);
        lines_.emplace_back(line.substr(0, cut));
        line.remove_prefix(cut);
      }
      if (!line.empty()) lines_.emplace_back(line);
    }
  }

  const EncodeSettings& settings_;
  std::vector<std::string>& lines_;
  std::string document_;
  std::int64_t left_ = 0, documents_ = 0;
};

}  // namespace

std::vector<std::size_t> DocumentMaker::UnitsOf(int rank, int ranks) const {
  std::vector<std::size_t> units;
  for (auto unit = static_cast<std::size_t>(rank); unit < Units();
       unit += static_cast<std::size_t>(ranks)) {
    units.push_back(unit);
  }
  return units;
}

TextTokens TokenizeDocuments(const comm::Communicator& world, DocumentMaker& maker,
                             const TokenFilePlan& plan) {
  if (const auto all = TokenizeOnce(world, maker, plan, true)) return *all;
  if (world.IsRoot()) {
    fmt::print(stderr,
               "warning: {}: HDF5 gave the tokens another place than foreseen: the texts are "
               "encoded once more\n",
               plan.path);
    std::fflush(stderr);
  }
  return TokenizeOnce(world, maker, plan, false).value();
}

TextTokens TokenizeTexts(const comm::Communicator& world, Tokenizer& tokenizer,
                         const TextPlan& plan, const std::string& path, const TextWatch& watch) {
  TextMaker maker(plan, tokenizer);
  const TextTokenizers tokenizers = {&tokenizer};
  return TokenizeDocuments(
      world, maker, {path, tokenizers, plan.encode, watch, plan.early_tokens, plan.early_shift});
}

UnitRounds::UnitRounds(const comm::Communicator& world, std::size_t units,
                       const std::vector<UnitResult>& mine,
                       const std::array<std::int64_t, 3>& least)
    : ranks_(world.Duplicate()), units_(units), mine_(mine), least_(least) {
  // Units per rank that a round can report; a rank that is further ahead reports the rest later.
  constexpr std::size_t kUnitsOfRank = 8;
  constexpr std::size_t kLeastWindow = 64;
  const std::size_t window = kLeastWindow + kUnitsOfRank * static_cast<std::size_t>(world.Size());
  sent_.resize(kSplits.size() + std::min(window, units));
  sums_.resize(sent_.size());
}

void UnitRounds::Look() {
  if (Ended()) return;
  if (begun_ == 0) Begin();
  int done = 0;
  MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
  if (done == 0) return;
  Take();
  if (!Ended()) Begin();
}

bool UnitRounds::Ready() const {
  return std::ranges::equal(all_, least_, std::ranges::greater_equal());
}

void UnitRounds::Begin() {
  for (; summed_ < mine_.size(); ++summed_) {
    for (std::size_t s = 0; s < own_.size(); ++s) own_.at(s) += mine_[summed_].tokens[0].at(s);
  }
  while (first_ < mine_.size() && mine_[first_].unit < Known()) ++first_;
  std::ranges::fill(sent_, 0);
  std::ranges::copy(own_, sent_.begin());
  for (std::size_t u = first_; u < mine_.size(); ++u) {
    const std::size_t at = kSplits.size() + mine_[u].unit - Known();
    if (at >= sent_.size()) break;
    sent_[at] = mine_[u].tokens[0].at(kTrainAt) + 1;
  }
  MPI_Iallreduce(sent_.data(), sums_.data(), static_cast<int>(sent_.size()), MPI_INT64_T, MPI_SUM,
                 ranks_.Handle(), &request_);
  ++begun_;
}

void UnitRounds::Take() {
  std::copy_n(sums_.begin(), all_.size(), all_.begin());
  for (std::size_t at = kSplits.size(); at < sums_.size() && sums_[at] > 0; ++at) {
    starts_.push_back(starts_.back() + sums_[at] - 1);
  }
}

void UnitRounds::Drain(const comm::Communicator& world) {
  const std::int64_t last = world.Max(begun_);
  while (true) {
    MPI_Wait(&request_, MPI_STATUS_IGNORE);
    if (begun_ == last) return;
    Begin();
  }
}

std::vector<std::string> SampleSentences(const TextPlan& plan, const std::function<bool()>& stop,
                                         std::int64_t most) {
  std::vector<TextUnit> units = CutIntoUnits(plan.files, plan.document, plan.unit_bytes);
  std::erase_if(
      units, [&](const TextUnit& unit) { return plan.files.at(unit.file).split != Split::kTrain; });
  std::vector<std::string> sentences;
  if (units.empty()) return sentences;
  const std::int64_t count = std::ssize(units);
  std::int64_t all = 0;
  for (const TextUnit& unit : units) all += unit.end - unit.begin;
  const std::int64_t read =
      all <= most ? count : std::clamp<std::int64_t>(most / kLeastOfUnit, 1, count);
  Lines lines(plan.encode, sentences);
  std::int64_t left = most;
  for (std::int64_t i = 0; i < read; ++i) {
    const std::int64_t share = CeilDivide(left, read - i);
    lines.Begin(share);
    const std::size_t before = sentences.size();
    try {
      ReadUnit(plan, units.at(static_cast<std::size_t>(i * count / read)), lines,
               [&](std::int64_t) { RequireGoingOn(stop); });
    } catch (const Enough&) {
    }
    for (std::size_t s = before; s < sentences.size(); ++s) left -= std::ssize(sentences[s]);
  }
  if (sentences.empty() && lines.Documents() > 0 && WantedSplits(plan.encode).front()) {
    throw InputError("the train split gets none of the texts, and a tokenizer is trained on it",
                     TooFewToShare(lines.Documents(), plan.encode));
  }
  return sentences;
}

}  // namespace trireme::data
