// Encoding of the rank's units, exchange of their sizes, writing.
#include "tokenize_texts.hpp"

#include <fmt/format.h>
#include <xxhash.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "documents.hpp"
#include "positioned_file.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/tokenizer.hpp"
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
std::optional<TextTokens> TokenizeOnce(const comm::Communicator& world, Tokenizer& tokenizer,
                                       const TextPlan& plan, const Way& way) {
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

// From the deck to the plan of the work: files, tokenizer and splits, the same on every rank.

namespace {

std::string DeckKeyOf(Split split) { return fmt::format("tokenize.{}", NameOf(split)); }

// Files of all splits, found by rank 0.
std::vector<TextFile> FindFiles(const TokenizeOptions& options, const deck::Deck& deck) {
  std::vector<TextFile> files;
  for (const Split split : kSplits) {
    const std::string& list = options.texts.at(static_cast<std::size_t>(split));
    if (list.empty() && split != Split::kTrain) continue;
    try {
      for (TextFile& file : FindTextFiles(list, split)) files.push_back(std::move(file));
    } catch (const Error& error) {
      throw deck.Complain(DeckKeyOf(split), error.what());
    }
  }
  return files;
}

// Files of the tokenizer that the deck names, or that is trained. Serial.
Files FilesOf(const TokenizeOptions& options, const deck::Deck& deck, const TextPlan& plan,
              const TextWatch& watch) {
  if (!options.tokenizer.empty() || options.vocabulary_size == 0) {
    return NamedTokenizer({.path = options.tokenizer}, options.kind, deck);
  }
  const std::vector<std::string> sentences = SampleSentences(plan, watch.stop);
  try {
    return TrainSentencePiece(sentences, options.model_type, options.vocabulary_size);
  } catch (const Error& error) {
    throw deck.Complain("tokenize.vocabulary_size", error.what());
  }
}

}  // namespace

TextTokens TokenizeInParallel(const comm::Communicator& world, const TokenizeOptions& options,
                              const deck::Deck& deck, const std::string& path,
                              const TextWatch& watch, bool dry) {
  TextPlan plan{.files = {},
                .document = options.document,
                .keys = {options.text_key, options.prompt_key, options.skip_missing},
                .replace = options.replace_invalid,
                .encode = {}};
  world.Together([&] {
    if (!world.IsRoot()) return;
    CheckTokenizeKeys(options, deck);
    plan.files = FindFiles(options, deck);
    for (const std::string& twice : NamedTwice(plan.files))
      fmt::print(stderr, "warning: {}\n", twice);
    for (const TextFile& file : plan.files) {
      if (!IsReplaced(file, path)) continue;
      throw deck.Complain(DeckKeyOf(file.split),
                          fmt::format("{} is data.file, which would be replaced", file.path));
    }
  });
  plan.files = ShareFiles(world, plan.files);
  plan.encode.masks = !options.prompt_key.empty();
  const auto fraction = [&](Split split, double wanted) {
    return options.texts.at(static_cast<std::size_t>(split)).empty() ? wanted : 0.0;
  };
  plan.encode.valid_fraction = fraction(Split::kValid, options.valid_fraction);
  plan.encode.test_fraction = fraction(Split::kTest, options.test_fraction);
  // Training reads the texts, which a dry run leaves alone.
  const bool trains = options.tokenizer.empty() && options.vocabulary_size > 0;
  if (dry && trains) {
    return {.tokenizer = NameOf(options.kind), .vocabulary = options.vocabulary_size};
  }
  const std::unique_ptr<Tokenizer> tokenizer =
      ShareTokenizer(world, {.path = options.tokenizer}, options.kind, deck,
                     [&] { return FilesOf(options, deck, plan, watch); });
  world.Together([&] { plan.encode.eos = EosOf(*tokenizer, options, deck); });
  if (dry) return {.tokenizer = tokenizer->Kind(), .vocabulary = tokenizer->VocabularySize()};
  return TokenizeTexts(world, *tokenizer, plan, path, watch);
}

// UnitRounds: sums over a window of units that moves along.

namespace {

// Units of a rank that a round may tell of: ranks that are ahead by more wait with the rest.
constexpr std::size_t kUnitsOfRank = 8;
constexpr std::size_t kLeastWindow = 64;

}  // namespace

UnitRounds::UnitRounds(const comm::Communicator& world, std::size_t units,
                       const std::vector<UnitResult>& mine,
                       const std::array<std::int64_t, 3>& least)
    : ranks_(world.Duplicate()), units_(units), mine_(mine), least_(least) {
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
    for (std::size_t s = 0; s < kSplits.size(); ++s) own_.at(s) += mine_[summed_].tokens.at(s);
  }
  while (first_ < mine_.size() && mine_[first_].unit < Known()) ++first_;
  std::ranges::fill(sent_, 0);
  std::ranges::copy(own_, sent_.begin());
  for (std::size_t u = first_; u < mine_.size(); ++u) {
    const std::size_t at = kSplits.size() + mine_[u].unit - Known();
    if (at >= sent_.size()) break;
    sent_[at] = mine_[u].tokens.at(kTrainAt) + 1;
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

// Broadcasts of files' descriptions and of tokenizers.

namespace {

// Texts that one rank has, for all. Collective.
std::vector<std::string> Share(const comm::Communicator& world, std::vector<std::string> texts) {
  std::int64_t count = std::ssize(texts);
  world.Broadcast(&count, sizeof count);
  texts.resize(static_cast<std::size_t>(count));
  for (std::string& text : texts) text = world.Broadcast(text);
  return texts;
}

}  // namespace

std::vector<TextFile> ShareFiles(const comm::Communicator& world,
                                 const std::vector<TextFile>& files) {
  std::vector<std::string> texts;
  for (const TextFile& file : files) {
    texts.push_back(fmt::format("{}{}{}{} {}", static_cast<int>(file.split),
                                static_cast<int>(file.json_lines), static_cast<int>(file.packing),
                                file.bytes, file.path));
  }
  std::vector<TextFile> shared;
  for (const std::string& text : Share(world, texts)) {
    const std::size_t blank = text.find(' ');
    TextFile file{.path = text.substr(blank + 1),
                  .split = static_cast<Split>(text.at(0) - '0'),
                  .json_lines = text.at(1) == '1',
                  .packing = static_cast<Packing>(text.at(2) - '0')};
    std::from_chars(text.data() + 3, text.data() + blank, file.bytes);
    shared.push_back(std::move(file));
  }
  return shared;
}

Files NamedTokenizer(const TokenizerName& name, TokenizeKind kind, const deck::Deck& deck) {
  const bool models = kind == TokenizeKind::kSentencePiece;
  if (name.path.empty()) {
    throw deck.Complain(name.key, fmt::format("tokenize.kind = {} needs one", NameOf(kind)),
                        models ? "Name a model, or train one with tokenize.vocabulary_size."
                               : "Name a tokenizer.json, or its folder.");
  }
  if (!std::string_view(name.path).ends_with(".h5")) {
    return ReadFiles(name.path, models ? TokenizerKind::kSentencePiece : TokenizerKind::kBpe);
  }
  const Side side = HoldsPairs(name.path) ? name.side : Side::kText;
  Files files = InspectTokenFile(name.path, side).tokenizer_files;
  if (!files.empty()) return files;
  throw deck.Complain(name.key, "this token file has no subword tokenizer");
}

std::unique_ptr<Tokenizer> ShareTokenizer(const comm::Communicator& world,
                                          const TokenizerName& name, TokenizeKind kind,
                                          const deck::Deck& deck,
                                          const std::function<Files()>& files_of) {
  std::vector<std::string> texts;
  world.Together([&] {
    if (!world.IsRoot()) return;
    for (const auto& [file, contents] : files_of()) {
      texts.push_back(file);
      texts.push_back(contents);
    }
  });
  texts = Share(world, std::move(texts));
  Files files;
  for (std::size_t i = 0; i + 1 < texts.size(); i += 2) files[texts[i]] = texts[i + 1];
  std::unique_ptr<Tokenizer> made;
  world.Together([&] {
    made = Make(files, name.path);
    if (std::string_view(made->Kind()) == NameOf(kind)) return;
    throw deck.Complain("tokenize.kind",
                        fmt::format("{} is a tokenizer of kind {}", name.path, made->Kind()));
  });
  return made;
}

std::int64_t EosOf(const Tokenizer& tokenizer, const TokenizeOptions& options,
                   const deck::Deck& deck) {
  if (options.eos.empty()) {
    if (const auto eos = tokenizer.Eos()) return *eos;
    throw deck.Complain("tokenize.eos", "the tokenizer names no token for the end of a document",
                        "Name one of its tokens, as <|endoftext|>.");
  }
  if (const auto eos = tokenizer.IdOf(options.eos)) return *eos;
  throw deck.Complain("tokenize.eos", "the tokenizer has no such token");
}

// SampleSentences: the documents of a few units, as lines.

namespace {

constexpr std::int64_t kLeastOfUnit = std::int64_t{256} << 10;  // bytes

// Ends the reading of a unit that has given enough.
struct Enough {};

// Offset of the first byte of the last character that does not fit `most` bytes, or after the last
// blank before it.
std::size_t CutBefore(std::string_view line, std::size_t most) {
  const std::size_t blank = line.rfind(' ', most - 1);
  if (blank != std::string_view::npos && blank > 0) return blank;
  std::size_t at = most;
  const auto continues = [&] { return (static_cast<unsigned char>(line[at]) & 0xC0U) == 0x80U; };
  while (at > 0 && continues()) --at;
  return at;
}

// Takes documents of one unit, and keeps the lines of those that belong to the train split.
class Lines : public RecordSink {
 public:
  Lines(const EncodeSettings& settings, std::vector<std::string>& lines)
      : settings_(settings), lines_(lines) {}

  // At most so many bytes of documents.
  void Begin(std::int64_t bytes) { left_ = bytes; }

  void Prompt(std::string_view text, std::int64_t /*offset*/) override { document_ = text; }
  void Text(std::string_view piece, std::int64_t /*offset*/) override {
    document_ += piece;
    if (std::ssize(document_) >= left_) Finish();  // a long document: its beginning will do
  }
  void End() override {
    const std::uint64_t hash = XXH3_64bits(document_.data(), document_.size());
    if (settings_.SplitOf(hash, Split::kTrain) == Split::kTrain) Keep();
    document_.clear();
    if (left_ <= 0) throw Enough();
  }
  // The part of a document that was cut off by the end of what is read.
  void Finish() {
    Keep();
    document_.clear();
    throw Enough();
  }

 private:
  void Keep() {
    std::string_view rest = document_;
    rest = rest.substr(0, static_cast<std::size_t>(std::max<std::int64_t>(left_, 0)));
    // No half of a character at the end.
    while (rest.size() < document_.size() && !rest.empty() &&
           (static_cast<unsigned char>(document_[rest.size()]) & 0xC0U) == 0x80U) {
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
  std::int64_t left_ = 0;
};

void ReadUnit(const TextPlan& plan, const TextUnit& unit, Lines& lines,
              const std::function<bool()>& stop) {
  const TextFile& file = plan.files.at(unit.file);
  JsonRecords records(lines, plan.keys, file.path, plan.replace);
  DocumentSink& sink = file.json_lines ? static_cast<DocumentSink&>(records) : lines;
  Utf8Filter filter(sink, file.path, plan.replace);
  try {
    ForEachDocument(file, unit, plan.document, filter, [&](std::int64_t) {
      if (stop && stop()) throw RunError("stopped by a signal: no token file was written");
    });
  } catch (const Enough&) {
    return;
  }
}

}  // namespace

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
    ReadUnit(plan, units.at(static_cast<std::size_t>(i * count / read)), lines, stop);
    for (std::size_t s = before; s < sentences.size(); ++s) left -= std::ssize(sentences[s]);
  }
  return sentences;
}

}  // namespace trireme::data
