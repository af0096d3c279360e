// Evaluator: the order of evaluations, what the screen says of them, and their files.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "choices.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/data/text_units.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tasks/evaluate.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

// Results of evaluations as lines of the screen and as JSON.

using Json = nlohmann::ordered_json;

inline constexpr const char* kIndent = "            ";  // of lines below the first

// A line, at once.
void Say(const std::string& line);

// The line of an evaluation; of: what was evaluated, behind it.
void SayLoss(const std::string& what, const train::Evaluation& result, const std::string& of);
// The line below it: by word and byte.
void SayUnits(double nats, const data::TextUnits& units);

Json AsJson(const train::Evaluation& result, const data::TextUnits& units);
Json Number(double value);  // null for one that is not finite

double PerUnit(double nats, std::int64_t units);  // not a number for no units
double BitsPerByte(double nats, const data::TextUnits& units);
// By words and line ends.
double WordPerplexity(double nats, const data::TextUnits& units);

// A text file of results, complete or not there.

// Writes `text` by way of a temporary name beside `path`, synced. Serial. Throws RunError with path
// and reason.
void WriteResult(const std::string& path, std::string_view text);

namespace {

// Documents of a split, by the offsets of their beginnings.
std::int64_t RowOf(const std::vector<std::int64_t>& documents, std::int64_t token) {
  return std::upper_bound(documents.begin(), documents.end(), token) - documents.begin() - 1;
}

std::string NameOf(const Set& set) { return set.tokens->Path() + ": /" + data::NameOf(set.split); }

}  // namespace

class Evaluator::State {
 public:
  State(model::ParallelModel& model, const data::TokenFile& tokens, const EvaluateOptions& options,
        std::vector<Set> sets)
      : model_(model),
        world_(model.Grid().World()),
        tokens_(tokens),
        options_(options),
        sets_(std::move(sets)) {
    world_.Together([&] {
      if (world_.IsRoot()) Prepare();
    });
    if (!options_.text.empty()) Share(world_, text_.tokens);
    if (!options_.choices.empty()) Share(world_, questions_.tokens);
  }

  void Run(const std::string& checkpoint) {
    results_["checkpoint"] = checkpoint;
    results_["tokenizer"] = tokens_.Tokenizer();
    results_["sequence_length"] = model_.Plan().length;
    results_["stride"] = options_.stride == 0 ? model_.Plan().length : options_.stride;
    MakeBaselines();
    for (const Set& set : sets_) EvaluateSet(set);
    if (!options_.text.empty()) EvaluateText();
    if (!options_.choices.empty()) EvaluateChoices();
    AtRoot([&] { WriteFiles(checkpoint); });
  }

 private:
  bool CountsDocuments() const { return !options_.documents.empty(); }
  void Prepare();
  void MakeBaselines();
  void EvaluateSet(const Set& set);
  void EvaluateText();
  void EvaluateChoices();
  void WriteFiles(const std::string& checkpoint) const;

  // Collective: on the root, with its errors on all ranks.
  void AtRoot(const std::function<void()>& body) const {
    world_.Together([&] {
      if (world_.IsRoot()) body();
    });
  }

  // At the root.
  data::TextUnits CountUnits(const Set& set, LossTable* table,
                             const std::vector<std::int64_t>& documents) const;
  void SetResult(const Set& set, const train::Evaluation& result, const data::TextUnits& units);
  void DocumentsResult(const Set& set, const LossTable& table, std::vector<std::int64_t> documents);
  Json BaselineResult(const data::TokenFile& tokens, data::Split split, std::int64_t targets,
                      const data::TextUnits& units) const;
  void ChoicesResult(const LossTable& table, double seconds);

  model::ParallelModel& model_;
  const comm::Communicator& world_;
  const data::TokenFile& tokens_;
  const EvaluateOptions options_;
  const std::vector<Set> sets_;
  // On all ranks, their tokens alone.
  Text text_;
  Questions questions_;
  // On the root alone.
  std::optional<data::TextMeter> meter_;
  std::optional<Baselines> baselines_;
  Json results_;
  std::string output_;  // JSONL of questions
  std::vector<data::DocumentLosses> documents_;
};

void Evaluator::State::Prepare() {
  for (const Set& set : sets_) {
    if (!CountsDocuments() || set.tokens->HasDocuments(set.split)) continue;
    throw InputError(
        fmt::format("{0}/documents is not there: evaluate.documents needs it", NameOf(set)),
        "Make the file anew with job.task = tokenize, or leave evaluate.documents out.");
  }
  meter_.emplace(tokens_);
  if (!options_.text.empty()) text_ = ReadEvaluatedText(options_, tokens_);
  if (options_.choices.empty()) return;
  questions_ = ReadQuestions(options_.choices, tokens_, model_.Plan().length);
}

void Evaluator::State::MakeBaselines() {
  if (!options_.baselines) return;
  AtRoot([&] {
    const std::int64_t tokens = tokens_.Size(data::Split::kTrain);
    if (tokens <= kMostBaselineTokens) {
      Say(fmt::format("baselines   from {} training tokens, {} on rank 0",
                      report::WithThousands(tokens),
                      report::AsBytes(tokens * kBaselineTokenBytes)));
    }
    baselines_.emplace(tokens_, model_.Plan().document_mask);
    if (!baselines_->LeftOut().empty()) Say("baselines   " + baselines_->LeftOut());
  });
}

data::TextUnits Evaluator::State::CountUnits(const Set& set, LossTable* table,
                                             const std::vector<std::int64_t>& documents) const {
  data::TextUnits units;
  data::VisitTargets(*set.tokens, set.split, model_.Plan().document_mask,
                     [&](std::int64_t token, std::int32_t previous, std::int32_t id) {
                       const std::int64_t before = units.bytes;
                       meter_->Add(previous, id, units);
                       if (table == nullptr) return;
                       table->AddBytes(RowOf(documents, token), units.bytes - before);
                     });
  return units;
}

void Evaluator::State::EvaluateSet(const Set& set) {
  train::EvaluationOptions settings;
  settings.stride = options_.stride;
  Tokens starts;  // of documents
  std::optional<LossTable> table;
  if (CountsDocuments()) {
    AtRoot([&] { starts.documents = data::TokenReader(*set.tokens, set.split).Documents(); });
    Share(world_, starts);
    table.emplace(std::ssize(starts.documents));
    settings.visit = [&](std::int64_t token, double loss) {
      table->Add(RowOf(starts.documents, token), loss);
    };
  }
  const train::Evaluation result = train::Evaluate(model_, *set.tokens, set.split, settings);
  data::TextUnits units;
  AtRoot([&] {
    units = CountUnits(set, table ? &*table : nullptr, starts.documents);
    SetResult(set, result, units);
  });
  if (!table) return;
  table->Sum(world_);
  AtRoot([&] { DocumentsResult(set, *table, std::move(starts.documents)); });
}

void Evaluator::State::SetResult(const Set& set, const train::Evaluation& result,
                                 const data::TextUnits& units) {
  SayLoss(data::NameOf(set.split), result, set.name);
  SayUnits(result.nats, units);
  Json json;
  json["split"] = data::NameOf(set.split);
  if (!set.name.empty()) json["set"] = set.name;
  json.update(AsJson(result, units));
  if (baselines_) json["baselines"] = BaselineResult(*set.tokens, set.split, result.targets, units);
  results_["sets"].push_back(std::move(json));
}

Json Evaluator::State::BaselineResult(const data::TokenFile& tokens, data::Split split,
                                      std::int64_t targets, const data::TextUnits& units) const {
  const Baselines::Result result = baselines_->Evaluate(tokens, split);
  if (result.targets != targets) {
    throw RunError(fmt::format("baselines saw {} targets, the model {}", result.targets, targets),
                   "This is a bug in Trireme.");
  }
  Json json;
  for (const auto& [name, nats] : result.nats) {
    const double loss = PerUnit(nats, result.targets);
    Say(fmt::format("{}{:<8} loss {:.6f} nats/token   perplexity {:.3f}   bits per byte {:.5f}",
                    kIndent, name, loss, std::exp(loss), BitsPerByte(nats, units)));
    json[name] = {{"nats", Number(nats)},
                  {"loss", Number(loss)},
                  {"perplexity", Number(std::exp(loss))},
                  {"perplexity_per_word", Number(WordPerplexity(nats, units))},
                  {"bits_per_byte", Number(BitsPerByte(nats, units))}};
  }
  if (!baselines_->LeftOut().empty()) json["left_out"] = baselines_->LeftOut();
  return json;
}

void Evaluator::State::DocumentsResult(const Set& set, const LossTable& table,
                                       std::vector<std::int64_t> documents) {
  data::DocumentLosses losses;
  losses.group =
      fmt::format("/{}{}{}", data::NameOf(set.split), set.name.empty() ? "" : "/", set.name);
  losses.first_token = std::move(documents);
  for (std::int64_t row = 0; row < table.Rows(); ++row) {
    losses.targets.push_back(table.Targets(row));
    losses.bytes.push_back(table.Bytes(row));
    losses.nats.push_back(table.Nats(row));
  }
  documents_.push_back(std::move(losses));
}

void Evaluator::State::EvaluateText() {
  const data::TokenFile file = AsFile(world_, tokens_, text_.tokens);
  train::EvaluationOptions settings;
  settings.stride = options_.stride;
  const train::Evaluation result = train::Evaluate(model_, file, data::Split::kValid, settings);
  AtRoot([&] {
    SayLoss("text", result, options_.text);
    SayUnits(result.nats, text_.original);
    Json json;
    json["file"] = options_.text;
    json["detokenised"] = options_.detokenise != Detokenise::kNone;
    json["bytes_tokenised"] = text_.bytes;
    json.update(AsJson(result, text_.original));
    if (baselines_) {
      json["baselines"] = BaselineResult(file, data::Split::kValid, result.targets, text_.original);
    }
    results_["text"] = std::move(json);
  });
}

void Evaluator::State::EvaluateChoices() {
  const data::TokenFile file = AsFile(world_, tokens_, questions_.tokens);
  const std::vector<data::Sample> windows = WindowsOf(questions_.tokens);
  LossTable table(std::ssize(windows));
  train::EvaluationOptions settings;
  settings.visit = [&](std::int64_t token, double loss) {
    table.Add(RowOf(questions_.tokens.documents, token), loss);
  };
  const train::Evaluation result =
      train::EvaluateWindows(model_, file, data::Split::kValid, windows, settings);
  table.Sum(world_);
  AtRoot([&] { ChoicesResult(table, result.seconds); });
}

void Evaluator::State::ChoicesResult(const LossTable& table, double seconds) {
  std::int64_t row = 0, right = 0, right_by_bytes = 0, truncated = 0;
  for (const Question& question : questions_.all) {
    std::vector<double> nats, likelihoods;
    for (std::size_t i = 0; i < question.bytes.size(); ++i) {
      nats.push_back(table.Nats(row++));
      likelihoods.push_back(-nats.back());
    }
    const Chosen chosen = Choose(question, nats);
    right += chosen.by_sum == question.answer ? 1 : 0;
    right_by_bytes += chosen.by_bytes == question.answer ? 1 : 0;
    truncated += question.truncated;
    if (options_.output.empty()) continue;
    const Json json = {{"line", question.line},          {"answer", question.answer},
                       {"chosen", chosen.by_sum},        {"chosen_by_bytes", chosen.by_bytes},
                       {"log_likelihoods", likelihoods}, {"bytes", question.bytes},
                       {"tokens", question.tokens},      {"truncated", question.truncated}};
    output_ += json.dump() + "\n";
  }
  const std::int64_t questions = std::ssize(questions_.all);
  const Accuracy sum = AccuracyOf(right, questions), bytes = AccuracyOf(right_by_bytes, questions);
  Say(fmt::format(
      "{:<10}  accuracy {:.4f} +- {:.4f}   by bytes {:.4f} +- {:.4f}   {}   {:.1f} s   {}",
      "choices", sum.mean, sum.standard_error, bytes.mean, bytes.standard_error,
      report::Counted(questions, "question"), seconds, options_.choices));
  if (truncated > 0) {
    Say(fmt::format("{}{} of {} were cut off at the left: a window has {} tokens", kIndent,
                    report::WithThousands(truncated), report::Counted(table.Rows(), "context"),
                    model_.Plan().length));
  }
  results_["choices"] = {{"file", options_.choices},
                         {"questions", questions},
                         {"accuracy", Number(sum.mean)},
                         {"accuracy_standard_error", Number(sum.standard_error)},
                         {"accuracy_by_bytes", Number(bytes.mean)},
                         {"accuracy_by_bytes_standard_error", Number(bytes.standard_error)},
                         {"truncated", truncated},
                         {"seconds", seconds}};
}

void Evaluator::State::WriteFiles(const std::string& checkpoint) const {
  if (CountsDocuments()) {
    data::WriteDocumentLosses(options_.documents, documents_,
                              {{"checkpoint", checkpoint}, {"tokenizer", tokens_.Tokenizer()}});
    Say("documents   " + options_.documents);
  }
  if (!options_.output.empty()) {
    WriteResult(options_.output, output_);
    Say("output      " + options_.output);
  }
  if (!options_.results.empty()) {
    WriteResult(options_.results, results_.dump(1) + "\n");
    Say("results     " + options_.results);
  }
}

Evaluator::Evaluator(model::ParallelModel& model, const data::TokenFile& tokens,
                     const EvaluateOptions& options, std::vector<Set> sets)
    : state_(std::make_unique<State>(model, tokens, options, std::move(sets))) {}

Evaluator::~Evaluator() = default;

void Evaluator::Run(const std::string& checkpoint) { state_->Run(checkpoint); }

// Evaluation of a model that translates: each split's loss, then its translations, whose scores are
// sums of whole numbers over the ranks.

namespace {

constexpr std::size_t kShown = 3;  // translations of each kind on the screen

// Numbers of the pairs that the model takes.
std::vector<std::int64_t> Suitable(const data::PairFile& pairs, data::Split split,
                                   std::int64_t longest) {
  const std::int64_t count = pairs.Pairs(split);
  std::vector<std::int32_t> sources(static_cast<std::size_t>(count)), targets(sources.size());
  pairs.ReadLengths(data::Side::kSource, split, 0, sources);
  pairs.ReadLengths(data::Side::kTarget, split, 0, targets);
  std::vector<std::int64_t> suitable;
  for (std::int64_t pair = 0; pair < count; ++pair) {
    const auto i = static_cast<std::size_t>(pair);
    if (std::max(sources[i], targets[i]) <= longest) suitable.push_back(pair);
  }
  return suitable;
}

bool IsRight(const TranslatedPair& pair) { return pair.translation == pair.reference; }

// Of pairs in the split's order the first few that are right and the first few that are wrong.
std::vector<TranslatedPair> FirstOfEach(const std::vector<TranslatedPair>& pairs) {
  std::array<std::size_t, 2> count{};
  std::vector<TranslatedPair> few;
  for (const TranslatedPair& pair : pairs) {
    if (count.at(IsRight(pair) ? 1 : 0)++ < kShown) few.push_back(pair);
  }
  return few;
}

void SumOver(const comm::Communicator& world, ScoreCounts& counts) {
  std::vector<std::int64_t*> numbers = {&counts.texts, &counts.exact, &counts.hypothesis_words,
                                        &counts.reference_words};
  const auto add = [&](auto& orders) {
    for (ScoreCounts::Grams& grams : orders) {
      numbers.insert(numbers.end(), {&grams.hypothesis, &grams.reference, &grams.matches});
    }
  };
  add(counts.words);
  add(counts.characters);
  for (std::int64_t* const number : numbers) *number = world.Sum(*number);
}

Json AsJson(const TranslatedPair& pair) {
  constexpr double kDigits = 1e6;  // layouts differ by rounding
  return {{"pair", pair.number},
          {"source", pair.source},
          {"reference", pair.reference},
          {"text", pair.translation},
          {"log_probability", Number(std::round(pair.log_probability * kDigits) / kDigits)},
          {"reason", pair.ended ? "eos" : "length"}};
}

std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Pairs of all ranks, on every rank, in the split's order.
std::vector<Json> Gather(const comm::Communicator& world,
                         const std::vector<TranslatedPair>& pairs) {
  Json mine = Json::array();
  for (const TranslatedPair& pair : pairs) mine.push_back(AsJson(pair));
  std::vector<Json> all;
  for (const std::string& text : world.Gather(Dump(mine))) {
    for (Json& pair : Json::parse(text)) all.push_back(std::move(pair));
  }
  std::ranges::sort(all, {}, [](const Json& pair) { return pair["pair"].get<std::int64_t>(); });
  return all;
}

void Show(const std::vector<Json>& pairs, bool right) {
  std::size_t shown = 0;
  for (const Json& pair : pairs) {
    const std::string text = pair["text"], reference = pair["reference"];
    if ((text == reference) != right || shown++ >= kShown) continue;
    Say(fmt::format("{}{}   {} -> {}{}", kIndent, right ? "right" : "wrong",
                    pair["source"].get<std::string>(), text,
                    right ? "" : fmt::format("   (right: {})", reference)));
  }
}

}  // namespace

Translator::Setup SetupOf(model::ParallelModel& model, const data::PairFile& pairs,
                          const TranslationOptions& options) {
  const data::TokenFile& targets = pairs.Of(data::Side::kTarget);
  return {.model = model,
          .search = {.beams = options.beams,
                     .length_penalty = options.length_penalty,
                     .longest = options.longest,
                     .eos = static_cast<std::int32_t>(targets.Words().eos)},
          .types = targets.VocabularySize(),
          .stopped = options.stopped};
}

SplitTranslations TranslateSplit(Translator& translator, const model::ParallelModel& model,
                                 const data::PairFile& pairs, data::Split split, bool keep) {
  const comm::ProcessGrid& grid = model.Grid();
  const double start = Seconds();
  std::vector<std::int64_t> numbers;
  std::vector<Translator::Ids> sources;
  grid.World().Together([&] {
    numbers = Suitable(pairs, split, model.Plan().length);
    sources.resize(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      pairs.ReadText(data::Side::kSource, split, numbers[i], sources[i]);
    }
  });
  const auto results = translator.Run(sources);
  if (translator.Stopped()) {
    throw AgreedError(ExitCode::kStopped, "stopped by a signal: the evaluation is not complete");
  }
  SplitTranslations done;
  done.left_out = pairs.Pairs(split) - std::ssize(numbers);
  const comm::GridShape& at = grid.Coordinates();
  const bool first = at.pipeline == 0 && at.context == 0 && at.tensor == 0;  // of its replica
  Translator::Ids reference;
  for (std::size_t i = 0; first && i < results.size(); ++i) {
    if (!results[i]) continue;
    pairs.ReadText(data::Side::kTarget, split, numbers[i], reference);
    done.pairs.push_back({.number = numbers[i],
                          .source = pairs.Decode(data::Side::kSource, sources[i]),
                          .reference = pairs.Decode(data::Side::kTarget, reference),
                          .translation = pairs.Decode(data::Side::kTarget, results[i]->tokens),
                          .log_probability = results[i]->log_probability,
                          .ended = results[i]->ended});
    done.counts += CountMatches(done.pairs.back().translation, done.pairs.back().reference);
  }
  SumOver(grid.World(), done.counts);
  if (!keep) done.pairs = FirstOfEach(done.pairs);
  done.seconds = Seconds() - start;
  return done;
}

void EvaluateTranslations(model::ParallelModel& model, const data::PairFile& pairs,
                          const EvaluateOptions& options, const TranslationOptions& search,
                          const std::string& checkpoint) {
  const comm::Communicator& world = model.Grid().World();
  Translator translator(SetupOf(model, pairs, search));
  const bool keeps = !options.output.empty();
  Json results = {{"checkpoint", checkpoint},
                  {"beams", search.beams},
                  {"length_penalty", search.length_penalty},
                  {"bleu_signature", kBleuSignature},
                  {"chrf_signature", kChrFSignature}};
  std::string output;
  for (const data::Split split : {data::Split::kValid, data::Split::kTest}) {
    const train::Evaluation loss =
        train::EvaluatePairs(model, pairs, split, {.stop = search.stopped});
    if (world.IsRoot() && !loss.stopped) SayLoss(data::NameOf(split), loss, "");
    const SplitTranslations done = TranslateSplit(translator, model, pairs, split, keeps);
    const std::vector<Json> shown = Gather(world, done.pairs);
    if (!world.IsRoot()) continue;
    Say(fmt::format("{}exact match {} %   BLEU {:.2f}   chrF {:.2f}   {}   {:.1f} s", kIndent,
                    ExactMatchText(done.counts), Bleu(done.counts), ChrF(done.counts),
                    report::Counted(done.counts.texts, "text"), done.seconds));
    if (done.left_out > 0) {
      Say(fmt::format("{}{} left out: a text has at most {} tokens", kIndent,
                      report::Counted(done.left_out, "pair"), model.Plan().length));
    }
    Show(shown, true);
    Show(shown, false);
    results["sets"].push_back({{"split", data::NameOf(split)},
                               {"targets", loss.targets},
                               {"loss", Number(loss.loss)},
                               {"perplexity", Number(std::exp(loss.loss))},
                               {"texts", done.counts.texts},
                               {"left_out", done.left_out},
                               {"exact_match", ExactMatch(done.counts)},
                               {"bleu", Bleu(done.counts)},
                               {"chrf", ChrF(done.counts)},
                               {"seconds", done.seconds}});
    for (const Json& pair : keeps ? shown : std::vector<Json>()) {
      Json line = {{"split", data::NameOf(split)}};
      line.update(pair);
      output += Dump(line) + "\n";
    }
  }
  world.Together([&] {
    if (!world.IsRoot()) return;
    if (keeps) WriteResult(options.output, output);
    if (!options.results.empty()) WriteResult(options.results, Dump(results, 1) + "\n");
  });
}

// Lines and JSON of results.

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double PerUnit(double nats, std::int64_t units) {
  return units > 0 ? nats / static_cast<double>(units) : std::nan("");
}

double BitsPerByte(double nats, const data::TextUnits& units) {
  return PerUnit(nats, units.bytes) / std::numbers::ln2;
}

double WordPerplexity(double nats, const data::TextUnits& units) {
  return std::exp(PerUnit(nats, units.words + units.lines));
}

void Say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void SayLoss(const std::string& what, const train::Evaluation& result, const std::string& of) {
  Say(fmt::format("{:<10}  loss {:.6f} nats/token   perplexity {:.3f}   {} tokens   {:.1f} s{}{}",
                  what, result.loss, std::exp(result.loss), report::WithThousands(result.targets),
                  result.seconds, of.empty() ? "" : "   ", of));
}

namespace {

std::string Perplexity(double value) {
  constexpr double kLong = 1e6;
  return value < kLong ? fmt::format("{:.3f}", value) : fmt::format("{:.3e}", value);
}

}  // namespace

void SayUnits(double nats, const data::TextUnits& units) {
  Say(fmt::format("{}per word {} ({} words, {} line ends)   bits per byte {:.5f} ({} bytes)",
                  kIndent, Perplexity(WordPerplexity(nats, units)),
                  report::WithThousands(units.words), report::WithThousands(units.lines),
                  BitsPerByte(nats, units), report::WithThousands(units.bytes)));
  if (units.unknown == 0) return;
  Say(fmt::format("{}{} <unk>: bytes and words are those of the tokens, not of an original text",
                  kIndent, report::WithThousands(units.unknown)));
}

Json AsJson(const train::Evaluation& result, const data::TextUnits& units) {
  Json json;
  json["targets"] = result.targets;
  json["nats"] = Number(result.nats);
  json["loss"] = Number(result.loss);
  json["perplexity"] = Number(std::exp(result.loss));
  json["words"] = units.words;
  json["line_ends"] = units.lines;
  json["bytes"] = units.bytes;
  json["unknown"] = units.unknown;
  json["perplexity_per_word"] = Number(WordPerplexity(result.nats, units));
  json["bits_per_byte"] = Number(BitsPerByte(result.nats, units));
  json["windows"] = result.windows;
  json["seconds"] = result.seconds;
  return json;
}

// Files of results.

void WriteResult(const std::string& path, std::string_view text) {
  Replacement file(path);
  file.Write(text);
  if (const std::error_code error = file.Place()) {
    throw RunError(fmt::format("{}: cannot be written: {}", path, error.message()),
                   "The results are on the screen.");
  }
}

// Agreement on turns, their passes, and one rank's choices for all of a replica.

Verdict AgreeOnTurn(const comm::Communicator& world, bool stop, bool finite, std::int64_t& passes) {
  // Ascending: the largest of all ranks counts.
  enum Wish : std::int64_t { kNone = 0, kStop = 1, kNotFinite = 2 };
  constexpr std::int64_t kUnit = std::int64_t{1} << 40;
  const std::int64_t wish = !finite ? kNotFinite : stop ? kStop : kNone;
  const std::int64_t all = world.Max(wish * kUnit + passes);
  passes = all % kUnit;
  if (all / kUnit == kNotFinite) {
    throw AgreedError(ExitCode::kFailed, "the model's prediction is not finite",
                      "Its weights are damaged.");
  }
  if (all / kUnit == kStop) return Verdict::kStopped;
  return passes > 0 ? Verdict::kGoOn : Verdict::kDone;
}

void RunPasses(model::ParallelModel& model, std::int64_t passes, TurnPasses& turn,
               ChooseRows choose) {
  const comm::ProcessGrid& grid = model.Grid();
  if (model.Units().ValuesSharded()) {
    turn.entries.resize(static_cast<std::size_t>(passes));
    turn.places.resize(static_cast<std::size_t>(passes));
  }
  const bool chooses = grid.LastStage() && grid.Coordinates().tensor == 0;
  const auto most = static_cast<std::size_t>(model.LocalPlan().evaluation_entries);
  std::size_t first = 0;
  for (std::size_t begin = 0; begin < turn.entries.size(); begin += most) {
    const std::size_t count = std::min(most, turn.entries.size() - begin);
    const auto places = std::span(turn.places).subspan(begin, count);
    std::size_t rows = 0;
    for (const model::CachedPlaces& place : places) rows += place.asked.size();
    const std::vector<double>& logits =
        model.Inference().CachedLogits(std::span(turn.entries).subspan(begin, count), places);
    if (chooses) choose(logits, first, rows);
    first += rows;
  }
}

void ShareChoices(const comm::ProcessGrid& grid, void* choices, std::int64_t numbers) {
  if (grid.LastStage()) {
    grid.Over(comm::Group::kTensor).OnHost().Broadcast(Dtype::kFloat64, choices, numbers, 0);
  }
  grid.Over(comm::Group::kPipeline)
      .OnHost()
      .Broadcast(Dtype::kFloat64, choices, numbers, grid.Shape().pipeline - 1);
}

}  // namespace trireme::tasks
