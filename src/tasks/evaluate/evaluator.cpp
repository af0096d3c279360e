// Evaluator: the order of evaluations, what the screen says of them, and their files.
#include "trireme/tasks/evaluator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "choices.hpp"
#include "loss_table.hpp"
#include "report.hpp"
#include "result_file.hpp"
#include "text.hpp"
#include "tokens_in_memory.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/document_losses.hpp"
#include "trireme/data/split_reader.hpp"
#include "trireme/data/text_units.hpp"
#include "trireme/tasks/baselines.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

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
    AtRoot([&] { starts.documents = data::SplitReader(*set.tokens, set.split).Documents(); });
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
  const train::Evaluation result =
      train::Evaluate(model_, file, data::Split::kValid, settings);
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

}  // namespace trireme::tasks
