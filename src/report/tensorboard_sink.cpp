// TensorBoardSink: records become scalars, texts and the session of a run.
#include "trireme/report/tensorboard_sink.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace trireme::report {

namespace {


// "valid", "valid_books", "test".
std::string SplitOf(const Record& record) {
  if (record.kind == Record::Kind::kTest) return "test";
  return record.kind == Record::Kind::kValidOther ? "valid_" + record.set : "valid";
}

}  // namespace

TensorBoardSink::TensorBoardSink(std::shared_ptr<EventLog> log, BoardFacts facts)
    : log_(std::move(log)), facts_(std::move(facts)) {}

// TensorBoard takes hyperparameters from a run's first session alone.
void TensorBoardSink::Begin() {
  if (!log_->HasStart()) log_->AddHParams(facts_.deck);
  log_->AddText("layout", facts_.layout);
}

void TensorBoardSink::Step(const Record& record) {
  log_->Add(record.step, {{"loss/train", record.loss},
                          {"perplexity/train", std::exp(record.loss)},
                          {"optimizer/learning_rate", record.learning_rate},
                          {"optimizer/gradient_norm", record.grad_norm},
                          {"perf/step_seconds", record.step_seconds},
                          {"perf/tokens_per_second", record.tokens_per_second}});
}

void TensorBoardSink::Interval(const report::Interval& interval) {
  const Record& record = interval.last;
  Scalars scalars = {{"progress/epoch", record.epoch},
                     {"progress/tokens", static_cast<double>(record.tokens)},
                     {"perf/flops_per_second", record.flops_per_second},
                     {"perf/roof_fraction", record.roof_fraction},
                     {"time/compute", record.seconds_compute},
                     {"time/exposed_communication", record.seconds_exposed_communication},
                     {"time/bubble", record.seconds_bubble},
                     {"time/data", record.seconds_data},
                     {"time/checkpoint", record.seconds_checkpoint},
                     {"memory/bytes", static_cast<double>(record.memory_bytes)},
                     {"steps/bad", static_cast<double>(record.bad_steps)}};
  if (record.memory_rank >= 0) scalars.emplace_back("memory/rank", record.memory_rank);
  if (record.slowest_rank >= 0) {
    scalars.emplace_back("ranks/slowest", record.slowest_rank);
    scalars.emplace_back("ranks/seconds_slowest", record.seconds_slowest);
  }
  for (const auto& [name, tokens] : record.sources) {
    scalars.emplace_back("sources/" + name, static_cast<double>(tokens));
  }
  for (const auto& [name, value] : record.more) scalars.emplace_back("energy/" + name, value);
  log_->Add(record.step, scalars);
}

void TensorBoardSink::Evaluation(const Record& record) {
  const std::string split = SplitOf(record);
  log_->Add(record.step, {{"loss/" + split, record.loss},
                          {"perplexity/" + split, std::exp(record.loss)},
                          {fmt::format("perf/{}_seconds", split), record.step_seconds}});
}

void TensorBoardSink::Sample(std::int64_t, const std::string& text) {
  log_->AddText("sample", text);
}

void TensorBoardSink::Happened(const Event& event) {
  log_->AddText("events", fmt::format("step {}: {}: {}", event.step, event.name, event.text));
}

void TensorBoardSink::GoBack(std::int64_t step) {
  log_->GoBack(step);
  if (!log_->HasStart()) Begin();
}

std::string TensorBoardSink::Renew() {
  const std::string path = log_->Renew();
  if (!path.empty()) Begin();
  return path;
}

void TensorBoardSink::Sync() { log_->Sync(); }

void TensorBoardSink::Done(const Summary& summary) {
  if (summary.done) log_->AddEnd();
  log_->Flush();
}

}  // namespace trireme::report
