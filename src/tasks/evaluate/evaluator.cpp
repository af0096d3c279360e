// job.task = evaluate: a trained model's losses on splits, on a text and on multiple-choice
// questions, or its translations; their lines on the screen and their result files.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "choices.hpp"
#include "root.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/data/text_units.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tasks/trained_model.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBelow = "            ";  // indents the lines below the first one

// JSON number; null if `value` is not finite.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// Nats per unit; NaN if there are no units.
double PerUnit(double nats, std::int64_t units) {
  return units > 0 ? nats / static_cast<double>(units) : std::nan("");
}

double BitsPerByte(double nats, const data::TextUnits& units) {
  return PerUnit(nats, units.bytes) / std::numbers::ln2;
}

// Perplexity per word, where a line end counts as a word.
double WordPerplexity(double nats, const data::TextUnits& units) {
  return std::exp(PerUnit(nats, units.words + units.lines));
}

// Prints the line of an evaluation. of: text at its end that says what was evaluated.
void SayLoss(const std::string& what, const train::Evaluation& result, const std::string& of) {
  Say("{:<10}  loss {:.6f} nats/token   perplexity {:.3f}   {} tokens   {:.1f} s{}{}", what,
      result.loss, std::exp(result.loss), report::WithThousands(result.targets), result.seconds,
      of.empty() ? "" : "   ", of);
}

// Prints the second line: perplexity per word and bits per byte.
void SayUnits(double nats, const data::TextUnits& units) {
  constexpr double kLong = 1e6;
  const double perplexity = WordPerplexity(nats, units);
  Say("{}per word {} ({} words, {} line ends)   bits per byte {:.5f} ({} bytes)", kBelow,
      perplexity < kLong ? fmt::format("{:.3f}", perplexity) : fmt::format("{:.3e}", perplexity),
      report::WithThousands(units.words), report::WithThousands(units.lines),
      BitsPerByte(nats, units), report::WithThousands(units.bytes));
  if (units.unknown == 0) return;
  Say("{}{} <unk>: bytes and words are those of the tokens, not of an original text", kBelow,
      report::WithThousands(units.unknown));
}

Json AsJson(const train::Evaluation& result, const data::TextUnits& units) {
  return {{"targets", result.targets},
          {"nats", Number(result.nats)},
          {"loss", Number(result.loss)},
          {"perplexity", Number(std::exp(result.loss))},
          {"words", units.words},
          {"line_ends", units.lines},
          {"bytes", units.bytes},
          {"unknown", units.unknown},
          {"perplexity_per_word", Number(WordPerplexity(result.nats, units))},
          {"bits_per_byte", Number(BitsPerByte(result.nats, units))},
          {"windows", result.windows},
          {"seconds", result.seconds}};
}

// Writes a file of results atomically: first under a temporary name beside it. Serial. Throws
// RunError with path and reason.
void WriteResult(const std::string& path, std::string_view text) {
  Replacement file(path);
  file.Write(text);
  if (const std::error_code error = file.Place()) {
    throw RunError(fmt::format("{}: cannot be written: {}", path, error.message()),
                   "The results are on the screen.");
  }
}

// A split to evaluate. name: as in data.validation; empty for the token file's own splits.
struct Set {
  const data::TokenFile* tokens = nullptr;
  data::Split split = data::Split::kValid;
  std::string name;
};

std::string NameOf(const Set& set) { return set.tokens->Path() + ": /" + data::NameOf(set.split); }

// Index of the document that holds `token`. documents: offsets at which documents begin.
std::int64_t RowOf(const std::vector<std::int64_t>& documents, std::int64_t token) {
  return std::upper_bound(documents.begin(), documents.end(), token) - documents.begin() - 1;
}

class Evaluator {
 public:
  // Collective over the model's grid. tokens: the model's token file; the baselines learn from its
  // train split. Reads and tokenises text and questions. All arguments must outlive it. AgreedError
  // (exit code 2) if these are faulty, or a split lacks the documents of evaluate.documents.
  Evaluator(model::ParallelModel& model, const data::TokenFile& tokens,
            const EvaluateOptions& options, std::vector<Set> sets)
      : model_(model),
        world_(model.Grid().World()),
        tokens_(tokens),
        options_(options),
        sets_(std::move(sets)) {
    AtRoot(world_, [&] { Prepare(); });
    if (!options_.text.empty()) Share(world_, text_.tokens);
    if (!options_.choices.empty()) Share(world_, questions_.tokens);
  }

  // Collective. Evaluates, prints and writes everything. checkpoint: its path, for the results.
  void Run(const std::string& checkpoint) {
    results_ = {{"checkpoint", checkpoint},
                {"tokenizer", tokens_.Tokenizer()},
                {"sequence_length", model_.Plan().length},
                {"stride", options_.stride == 0 ? model_.Plan().length : options_.stride}};
    MakeBaselines();
    for (const Set& set : sets_) EvaluateSet(set);
    if (!options_.text.empty()) EvaluateText();
    if (!options_.choices.empty()) EvaluateChoices();
    AtRoot(world_, [&] { WriteFiles(checkpoint); });
  }

 private:
  bool CountsDocuments() const { return !options_.documents.empty(); }
  void MakeBaselines() {
    if (!options_.baselines) return;
    AtRoot(world_, [&] {
      const std::int64_t tokens = tokens_.Size(data::Split::kTrain);
      if (tokens <= kMostBaselineTokens) {
        Say("baselines   from {} training tokens, {} on rank 0", report::WithThousands(tokens),
            report::AsBytes(tokens * kBaselineTokenBytes));
      }
      baselines_.emplace(tokens_, model_.Plan().document_mask);
      if (!baselines_->LeftOut().empty()) Say("baselines   {}", baselines_->LeftOut());
    });
  }

  void EvaluateSet(const Set& set) {
    train::EvaluationOptions settings{.stride = options_.stride};
    Tokens starts;  // where documents begin
    std::optional<LossTable> table;
    if (CountsDocuments()) {
      AtRoot(world_,
             [&] { starts.documents = data::TokenReader(*set.tokens, set.split).Documents(); });
      Share(world_, starts);
      table.emplace(std::ssize(starts.documents));
      settings.visit = [&](std::int64_t token, double loss) {
        table->Add(RowOf(starts.documents, token), loss);
      };
    }
    const train::Evaluation result = train::Evaluate(model_, *set.tokens, set.split, settings);
    AtRoot(world_, [&] {
      const data::TextUnits units = CountUnits(set, table ? &*table : nullptr, starts.documents);
      Json json = {{"split", data::NameOf(set.split)}};
      if (!set.name.empty()) json["set"] = set.name;
      AddResult(data::NameOf(set.split), set, result, units, json);
      results_["sets"].push_back(std::move(json));
    });
    if (!table) return;
    table->Sum(world_);
    AtRoot(world_, [&] { DocumentsResult(set, *table, std::move(starts.documents)); });
  }

  void EvaluateText() {
    const data::TokenFile file = AsFile(world_, tokens_, text_.tokens);
    const train::Evaluation result =
        train::Evaluate(model_, file, data::Split::kValid, {.stride = options_.stride});
    AtRoot(world_, [&] {
      Json& json = results_["text"];
      json = {{"file", options_.text},
              {"detokenised", options_.detokenise != Detokenise::kNone},
              {"bytes_tokenised", text_.bytes}};
      AddResult("text", {&file, data::Split::kValid, options_.text}, result, text_.original, json);
    });
  }

  void EvaluateChoices() {
    const data::TokenFile file = AsFile(world_, tokens_, questions_.tokens);
    const std::vector<data::Sample> windows = WindowsOf(questions_.tokens);
    LossTable table(std::ssize(windows));
    const auto visit = [&](std::int64_t token, double loss) {
      table.Add(RowOf(questions_.tokens.documents, token), loss);
    };
    const train::Evaluation result =
        train::EvaluateWindows(model_, file, data::Split::kValid, windows, {.visit = visit});
    table.Sum(world_);
    AtRoot(world_, [&] { ChoicesResult(table, result.seconds); });
  }

  // On the root: checks the splits and prepares what only the root needs.
  void Prepare() {
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

  data::TextUnits CountUnits(const Set& set, LossTable* table,
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

  // Prints the result of a split, in a line that begins with `what`, and adds it to `json`.
  void AddResult(const std::string& what, const Set& set, const train::Evaluation& result,
                 const data::TextUnits& units, Json& json) const {
    SayLoss(what, result, set.name);
    SayUnits(result.nats, units);
    json.update(AsJson(result, units));
    if (baselines_) json["baselines"] = BaselineResult(set, result.targets, units);
  }

  void DocumentsResult(const Set& set, const LossTable& table,
                       std::vector<std::int64_t> documents) {
    data::DocumentLosses& losses = documents_.emplace_back();
    losses.group =
        fmt::format("/{}{}{}", data::NameOf(set.split), set.name.empty() ? "" : "/", set.name);
    losses.first_token = std::move(documents);
    for (std::int64_t row = 0; row < table.Rows(); ++row) {
      losses.targets.push_back(table.Targets(row));
      losses.bytes.push_back(table.Bytes(row));
      losses.nats.push_back(table.Nats(row));
    }
  }

  Json BaselineResult(const Set& set, std::int64_t targets, const data::TextUnits& units) const {
    const Baselines::Result result = baselines_->Evaluate(*set.tokens, set.split);
    if (result.targets != targets) {
      throw RunError(fmt::format("baselines saw {} targets, the model {}", result.targets, targets),
                     "This is a bug in Trireme.");
    }
    Json json;
    for (const auto& [name, nats] : result.nats) {
      const double loss = PerUnit(nats, result.targets);
      Say("{}{:<8} loss {:.6f} nats/token   perplexity {:.3f}   bits per byte {:.5f}", kBelow, name,
          loss, std::exp(loss), BitsPerByte(nats, units));
      json[name] = {{"nats", Number(nats)},
                    {"loss", Number(loss)},
                    {"perplexity", Number(std::exp(loss))},
                    {"perplexity_per_word", Number(WordPerplexity(nats, units))},
                    {"bits_per_byte", Number(BitsPerByte(nats, units))}};
    }
    if (!baselines_->LeftOut().empty()) json["left_out"] = baselines_->LeftOut();
    return json;
  }

  void ChoicesResult(const LossTable& table, double seconds) {
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
    const Accuracy sum = AccuracyOf(right, questions),
                   bytes = AccuracyOf(right_by_bytes, questions);
    Say("{:<10}  accuracy {:.4f} +- {:.4f}   by bytes {:.4f} +- {:.4f}   {}   {:.1f} s   {}",
        "choices", sum.mean, sum.standard_error, bytes.mean, bytes.standard_error,
        report::Counted(questions, "question"), seconds, options_.choices);
    if (truncated > 0) {
      Say("{}{} of {} were cut off at the left: a window has {} tokens", kBelow,
          report::WithThousands(truncated), report::Counted(table.Rows(), "context"),
          model_.Plan().length);
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

  void WriteFiles(const std::string& checkpoint) const {
    if (CountsDocuments()) {
      data::WriteDocumentLosses(options_.documents, documents_,
                                {{"checkpoint", checkpoint}, {"tokenizer", tokens_.Tokenizer()}});
      Say("documents   {}", options_.documents);
    }
    if (!options_.output.empty()) {
      WriteResult(options_.output, output_);
      Say("output      {}", options_.output);
    }
    if (!options_.results.empty()) {
      WriteResult(options_.results, results_.dump(1) + "\n");
      Say("results     {}", options_.results);
    }
  }

  model::ParallelModel& model_;
  const comm::Communicator& world_;
  const data::TokenFile& tokens_;
  const EvaluateOptions options_;
  const std::vector<Set> sets_;
  // On ranks other than the root, these two hold nothing but tokens.
  Text text_;
  Questions questions_;
  // Used on the root only.
  std::optional<data::TextMeter> meter_;
  std::optional<Baselines> baselines_;
  Json results_;
  std::string output_;  // JSONL with a line per question
  std::vector<data::DocumentLosses> documents_;
};

// Evaluation of an encoder-decoder: each split's loss, then its translations. Scores are computed
// from integer counts summed over the ranks.

// Signatures of the scores as sacrebleu writes them, without its version.
constexpr const char* kBleuSignature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp";
constexpr const char* kChrFSignature = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no";

constexpr std::size_t kShown = 3;  // translations shown per kind (right, wrong)

// Indices of the pairs whose texts are not longer than `longest`.
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

bool IsRight(const Json& pair) { return pair["text"] == pair["reference"]; }

// The first kShown pairs that are right and the first kShown that are wrong, in the split's order.
std::vector<Json> FirstOfEach(const std::vector<Json>& pairs) {
  std::array<std::size_t, 2> count{};
  std::vector<Json> few;
  for (const Json& pair : pairs) {
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

std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Collective. The pairs of all ranks, in the split's order; the same on every rank.
std::vector<Json> Gather(const comm::Communicator& world, const std::vector<Json>& pairs) {
  std::vector<Json> all;
  for (const std::string& text : world.Gather(Dump(pairs))) {
    for (Json& pair : Json::parse(text)) all.push_back(std::move(pair));
  }
  std::ranges::sort(all, {}, [](const Json& pair) { return pair["pair"].get<std::int64_t>(); });
  return all;
}

// Prints the first few pairs that are right (`right`) or wrong.
void Show(const std::vector<Json>& pairs, bool right) {
  std::size_t shown = 0;
  for (const Json& pair : pairs) {
    const std::string text = pair["text"], reference = pair["reference"];
    if ((text == reference) != right || shown++ >= kShown) continue;
    Say("{}{}   {} -> {}{}", kBelow, right ? "right" : "wrong", pair["source"].get<std::string>(),
        text, right ? "" : fmt::format("   (right: {})", reference));
  }
}

// The translations of a split and their scores.
struct SplitTranslations {
  ScoreCounts counts;         // summed over all ranks
  std::int64_t left_out = 0;  // pairs that are longer than the model takes
  double seconds = 0;
  // All ranks' pairs with their translations, in the split's order; with keep = false only the
  // first few that are right and the first few that are wrong.
  std::vector<Json> pairs;
};

// Collective over the model's grid. Leaves out pairs with a text longer than the model's sequences.
// AgreedError (exit code 3) if a rank was asked to stop.
SplitTranslations TranslateSplit(Translator& translator, const model::ParallelModel& model,
                                 const data::PairFile& pairs, data::Split split, bool keep) {
  constexpr double kDigits = 1e6;  // log-probabilities are rounded: layouts differ in last bits
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
  std::vector<Json> mine;  // filled on the first rank of a replica only
  Translator::Ids ids;
  for (std::size_t i = 0; LeadsReplica(grid) && i < results.size(); ++i) {
    if (!results[i]) continue;
    pairs.ReadText(data::Side::kTarget, split, numbers[i], ids);
    const std::string reference = pairs.Decode(data::Side::kTarget, ids);
    const std::string text = pairs.Decode(data::Side::kTarget, results[i]->tokens);
    done.counts += CountMatches(text, reference);
    mine.push_back(
        {{"pair", numbers[i]},
         {"source", pairs.Decode(data::Side::kSource, sources[i])},
         {"reference", reference},
         {"text", text},
         {"log_probability", Number(std::round(results[i]->log_probability * kDigits) / kDigits)},
         {"reason", results[i]->ended ? "eos" : "length"}});
  }
  SumOver(grid.World(), done.counts);
  done.seconds = Seconds() - start;
  done.pairs = Gather(grid.World(), keep ? mine : FirstOfEach(mine));
  return done;
}

// Collective. Evaluates valid and test split, prints and writes all. checkpoint: path for results.
void EvaluateTranslations(model::ParallelModel& model, const data::PairFile& pairs,
                          const EvaluateOptions& options, const GenerateOptions& search,
                          const std::function<bool()>& stopped, const std::string& checkpoint) {
  const comm::Communicator& world = model.Grid().World();
  Translator translator(SetupOf(model, pairs, search, stopped));
  const bool keeps = !options.output.empty();
  Json results = {{"checkpoint", checkpoint},
                  {"beams", search.beams},
                  {"length_penalty", search.length_penalty},
                  {"bleu_signature", kBleuSignature},
                  {"chrf_signature", kChrFSignature}};
  std::string output;
  for (const data::Split split : {data::Split::kValid, data::Split::kTest}) {
    const train::Evaluation loss = train::EvaluatePairs(model, pairs, split, {.stop = stopped});
    if (world.IsRoot() && !loss.stopped) SayLoss(data::NameOf(split), loss, "");
    const SplitTranslations done = TranslateSplit(translator, model, pairs, split, keeps);
    if (!world.IsRoot()) continue;
    Say("{}exact match {} %   BLEU {:.2f}   chrF {:.2f}   {}   {:.1f} s", kBelow,
        ExactMatchText(done.counts), Bleu(done.counts), ChrF(done.counts),
        report::Counted(done.counts.texts, "text"), done.seconds);
    if (done.left_out > 0) {
      Say("{}{} left out: a text has at most {} tokens", kBelow,
          report::Counted(done.left_out, "pair"), model.Plan().length);
    }
    Show(done.pairs, true);
    Show(done.pairs, false);
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
    for (std::size_t i = 0; keeps && i < done.pairs.size(); ++i) {
      Json line = {{"split", data::NameOf(split)}};
      line.update(done.pairs[i]);
      output += Dump(line) + "\n";
    }
  }
  AtRoot(world, [&] {
    if (keeps) WriteResult(options.output, output);
    if (!options.results.empty()) WriteResult(options.results, Dump(results, 1) + "\n");
  });
}

void SayModel(const comm::Communicator& world, const app::Start& start, TrainedModel& trained) {
  if (!world.IsRoot()) return;
  for (const std::string& passed_over : start.passed_over) Say("passed over {}", passed_over);
  Say("checkpoint  {}\nmodel       {}", trained.Checkpoint(),
      train::DescribeModel(trained.Net().Plan().options));
}

// Evaluates an encoder-decoder; each data rank translates generate.batch texts at once.
ExitCode EvaluatePairs(app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  EvaluateOptions options;
  GenerateOptions search;
  world.Together([&] {
    options = ReadEvaluate(request.deck);
    search = ReadGenerate(request.deck);
    if (world.IsRoot()) CheckPairs(options, request.deck);
  });
  TrainedModel trained(job, 0, search.texts * search.beams, PackWeights::kAuto);
  SayModel(world, job.start, trained);
  if (request.line.validate_only) return app::SayValid(world);
  const auto stopped = [&job] { return job.ranks.signals->Received(); };
  EvaluateTranslations(trained.Net(), *trained.Pairs(), options, search, stopped,
                       trained.Checkpoint());
  return ExitCode::kDone;
}

}  // namespace

ExitCode RunEvaluate(app::Job& job) {
  const app::Request& request = job.request;
  const comm::Communicator& world = job.ranks.World();
  if (request.model.Translates()) return EvaluatePairs(job);
  EvaluateOptions options;
  world.Together([&] {
    options = ReadEvaluate(request.deck);
    if (world.IsRoot()) CheckEvaluate(options, request.deck, request.data.sequence_length);
  });
  TrainedModel trained(job);
  SayModel(world, job.start, trained);
  const std::vector<app::ValidationSet> validation =
      app::OpenValidation(request, job.ranks, job.files, trained.Net().Grid());
  if (const std::string line = app::StagingLine(job.files); world.IsRoot() && !line.empty()) {
    Say("{}", line);
  }
  std::vector<Set> sets;
  for (const app::ValidSplit& valid : app::ValidSplits(trained.Tokens(), validation)) {
    sets.push_back({valid.tokens, data::Split::kValid, valid.name});
  }
  sets.push_back({&trained.Tokens(), data::Split::kTest, ""});
  Evaluator evaluator(trained.Net(), trained.Tokens(), options, sets);
  if (request.line.validate_only) return app::SayValid(world);
  evaluator.Run(trained.Checkpoint());
  return ExitCode::kDone;
}

}  // namespace trireme::tasks
