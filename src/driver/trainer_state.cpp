// What a training run starts from, leaves behind, and says about itself.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <set>

#include "trireme/base/version.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/driver/roof.hpp"
#include "trireme/driver/tasks.hpp"
#include "trireme/driver/trainer.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::driver {

namespace {

namespace fs = std::filesystem;

// runs/a/checkpoints/step_00000100 -> runs/a; empty for a checkpoint that lies elsewhere.
std::string RunFolderOf(const std::string& checkpoint) {
  const fs::path parent = fs::path(checkpoint).lexically_normal().parent_path();
  return parent.filename() == "checkpoints" ? parent.parent_path().string() : std::string();
}

}  // namespace

void Trainer::Initialize() {
  const comm::Communicator& world = job_.World();
  folder_ = job_.deck.Text("job.output");
  world.Together([&] { roof_flops_ = MeasureRoof(job_.stream, job_.dtype); });
  const bool resume = !job_.line->resume.empty();
  std::string checkpoint;
  nlohmann::json run;
  if (resume) {
    checkpoint = checkpoint::Find(world, job_.line->resume);
    if (const std::string owner = RunFolderOf(checkpoint); !owner.empty()) folder_ = owner;
    run = checkpoint::ReadRun(world, checkpoint);
    Resume(checkpoint, run);
  } else if (!job_.deck.Text("checkpoint.start_from").empty()) {
    LoadWeights(checkpoint::Find(world, job_.deck.Text("checkpoint.start_from")));
  }
  world.Together([&] {
    if (world.IsRoot()) monitor::PrepareRunFolder(folder_, resume, job_.deck.Resolved());
  });
  world.Together([&] {
    monitor_ = std::make_unique<monitor::Monitor>(
        monitor::Options{.root = world.IsRoot(),
                         .folder = folder_,
                         .every_steps = job_.deck.Integer("monitor.every_steps"),
                         .total_steps = schedule_.Last(),
                         .resumed = resume,
                         .resume_step = step_});
  });
  monitor_->Banner(Banner());
  if (!resume) return;
  monitor_->Line(
      fmt::format("resumed from {} at step {}", checkpoint, monitor::WithThousands(step_)));
  WarnOfChanges(run);
}

void Trainer::Resume(const std::string& checkpoint, const nlohmann::json& run) {
  LoadWeights(checkpoint);
  checkpoint::ReadTensors(job_.World(), checkpoint, "optimizer",
                          optimizer_.Blocks(grid_.Data().Rank(), grid_.Data().Size()));
  // Every rank parsed the same file: what is wrong with it, all throw together.
  try {
    step_ = run.at("step").get<std::int64_t>();
    if (run.contains("best_loss")) best_loss_ = run.at("best_loss").get<double>();
  } catch (const nlohmann::json::exception& error) {
    throw AgreedError(ExitCode::kBadInput,
                      fmt::format("{}/run.json: {}", checkpoint, error.what()));
  }
  saved_step_ = step_;
}

void Trainer::LoadWeights(const std::string& checkpoint) {
  tensor::Registry& parameters = model_.Parameters();
  checkpoint::ReadTensors(job_.World(), checkpoint, "model",
                          parameters.Blocks(parameters.Values(), parameters.Type(), "",
                                            grid_.Data().Rank(), grid_.Data().Size()));
}

// What the deck may change on resume, but a user should know of: the numbers differ from an
// uninterrupted run's.
void Trainer::WarnOfChanges(const nlohmann::json& run) {
  const auto compare = [&](const char* key, const auto& now) {
    using Value = std::decay_t<decltype(now)>;
    if (!run.contains(key)) return;
    const auto then = run.at(key).get<Value>();
    if (then == now) return;
    monitor_->Warn(
        fmt::format("{} is {} now and was {} when the checkpoint was written", key, now, then));
  };
  compare("seed", static_cast<std::int64_t>(job_.seed));
  compare("source_sha256", tokens_.SourceSha256());
  compare("sequence_length", shape_.length);
  compare("stride", shape_.stride);
  compare("batch", shape_.batch);
  compare("precision", std::string(NameOf(job_.dtype)));
  if (Finished()) {
    monitor_->Warn(
        fmt::format("step {} is the schedule's end already: nothing is left to do", step_));
  }
}

monitor::BannerFacts Trainer::Banner() const {
  const auto& hosts = job_.runtime->Hosts();
  const comm::GridShape& shape = grid_.Shape();
  monitor::BannerFacts facts;
  facts.version = Version();
  facts.commit = Commit();
  facts.ranks = job_.World().Size();
  facts.hosts = static_cast<int>(std::set<std::string>(hosts.begin(), hosts.end()).size());
  facts.threads = job_.stream.threads;
  facts.device = fmt::format("cpu ({})", device::InstructionSet());
  facts.precision = NameOf(job_.dtype);
  facts.grid = fmt::format("pipeline {} x data {} x context {} x tensor {}", shape.pipeline,
                           shape.data, shape.context, shape.tensor);
  facts.model = Describe(model_.Setup().options);
  facts.data = fmt::format("{}: {} / {} / {} tokens; {} windows of {}, {} steps an epoch",
                           fs::path(tokens_.Path()).filename().string(),
                           monitor::WithThousands(tokens_.Size(data::Split::kTrain)),
                           monitor::WithThousands(tokens_.Size(data::Split::kValid)),
                           monitor::WithThousands(tokens_.Size(data::Split::kTest)),
                           monitor::WithThousands(sampler_.Windows()), shape_.length,
                           monitor::WithThousands(sampler_.StepsPerEpoch()));
  facts.memory = model_.MemoryPlan();
  facts.memory.insert(facts.memory.begin() + 2, {"moments", optimizer_.Bytes()});
  facts.memory.push_back({"tokens", tokens_.MemoryBytes()});
  facts.roof_flops = roof_flops_;
  return facts;
}

void Trainer::Validate() {
  const comm::Communicator& world = job_.World();
  world.Together([&] { roof_flops_ = MeasureRoof(job_.stream, job_.dtype); });
  if (!job_.line->resume.empty()) {
    const std::string checkpoint = checkpoint::Find(world, job_.line->resume);
    Resume(checkpoint, checkpoint::ReadRun(world, checkpoint));
  }
  monitor::Options options;  // no folder: the screen only
  options.root = world.IsRoot();
  monitor::Monitor screen(options);
  screen.Banner(Banner());
  screen.Line("valid: everything was constructed; nothing was written");
}

void Trainer::WriteCheckpoint(bool best) {
  const double start = MPI_Wtime();
  const int replica = grid_.Data().Rank(), replicas = grid_.Data().Size();
  tensor::Registry& parameters = model_.Parameters();
  checkpoint::Contents contents;
  contents.model = parameters.Blocks(parameters.Values(), parameters.Type(), "", replica, replicas);
  contents.optimizer = optimizer_.Blocks(replica, replicas);
  contents.run = {{"format", 1},
                  {"step", step_},
                  {"epoch", Epoch()},
                  {"next_sample", step_ / sampler_.StepsPerEpoch() * sampler_.Windows() +
                                      step_ % sampler_.StepsPerEpoch() * shape_.batch},
                  {"tokens", sampler_.TargetsBefore(step_)},
                  {"seed", job_.seed},
                  {"source_sha256", tokens_.SourceSha256()},
                  {"sequence_length", shape_.length},
                  {"stride", shape_.stride},
                  {"batch", shape_.batch},
                  {"precision", NameOf(job_.dtype)},
                  {"deck", job_.deck.Resolved()},
                  {"trireme", Version()},
                  {"commit", Commit()},
                  {"compiler", Compiler()},
                  {"matrix_library", kernels::MatrixLibrary()},
                  {"instruction_set", device::InstructionSet()},
                  {"ranks", job_.World().Size()},
                  {"host", job_.runtime->Hosts().front()}};
  const std::time_t now = std::time(nullptr);
  contents.run["date"] = job_.World().Broadcast(fmt::format("{:%FT%TZ}", fmt::gmtime(now)));
  if (std::isfinite(best_loss_)) contents.run["best_loss"] = best_loss_;
  checkpoint::Write(job_.World(), folder_ + "/checkpoints", step_, contents, best,
                    job_.deck.Integer("checkpoint.keep"));
  saved_step_ = step_;
  best_is_new_ = false;
  last_checkpoint_time_ = MPI_Wtime();
  checkpoint_seconds_ += last_checkpoint_time_ - start;
}

void Trainer::Finalize() {
  if (!Finished()) {
    monitor_->Line(
        fmt::format("stopped by {} after step {}; checkpoint written: run it again with -r {}",
                    stop_reason_, monitor::WithThousands(step_), folder_));
    return;
  }
  if (job_.deck.Integer("monitor.validate_every_steps") > 0) RecordEvaluation(data::Split::kTest);
  PrintSample();
  monitor::Record record;
  record.kind = monitor::Record::Kind::kDone;
  record.step = step_;
  record.epoch = Epoch();
  record.tokens = sampler_.TargetsBefore(step_);
  record.loss = last_loss_;
  record.memory_bytes = job_.World().Max(monitor::PeakResidentBytes());
  record.seconds_checkpoint = checkpoint_seconds_;
  std::vector<std::pair<std::string, std::string>> files = {
      {"run folder", folder_},
      {"checkpoint", folder_ + "/checkpoints/latest"},
      {"metrics", folder_ + "/metrics.jsonl"},
      {"log", folder_ + "/log.txt"}};
  std::error_code ignored;
  if (fs::exists(folder_ + "/checkpoints/best", ignored)) {
    files.insert(files.begin() + 2, {"best", folder_ + "/checkpoints/best"});
  }
  monitor_->Done(record, files);
}

void Trainer::PrintSample() {
  const std::int64_t count = job_.deck.Integer("monitor.sample_tokens");
  if (count == 0) return;
  job_.World().Together([&] {
    if (!job_.World().IsRoot()) return;
    const GenerateOptions options{
        .tokens = count, .temperature = 0.8, .top_k = 0, .top_p = 0.95, .seed = job_.seed};
    const auto eos = static_cast<std::int32_t>(tokens_.Words().eos);
    monitor_->Line("sample  " + tokens_.Decode(Continue(model_, {eos}, options)));
  });
}

}  // namespace trireme::driver
