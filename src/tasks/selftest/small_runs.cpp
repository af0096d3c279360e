// The program's own tasks on a deck of seconds, on the ranks at hand.
#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "checks.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/tasks/tasks.hpp"
#include "trireme/tasks/verify.hpp"

namespace trireme::tasks {

namespace {

// A batch that 64 data ranks can share; all that layouts cut is a multiple of 4.
constexpr const char* kDeck = R"(# The self-test's run: seconds on one rank.
[data]
sequence_length = 16
stride = 16
batch = 64
[tokenize]
kind = harbour
harbour_tokens = 20000
[model]
dim = 32
heads = 4
layers = 4
ffn = 64
max_positions = 16
dropout = 0.1
[optimizer]
learning_rate = 5e-3
[schedule]
steps = 12
warmup_steps = 3
[checkpoint]
every_steps = 0
[monitor]
every_steps = 1
validate_every_steps = 0
sample_tokens = 0
tensorboard = no
report = no
[generate]
prompt = the
tokens = 8
top_k = 1
)";
constexpr int kMiddle = 6;  // steps before the stop

// Losses of its steps on one rank in fp64. fp32 is within 1e-6 of them; other processors and
// libraries round otherwise.
constexpr std::array<double, 12> kLosses = {7.122058668, 7.078612910, 6.982400354, 6.859474039,
                                            6.733997869, 6.636097112, 6.532077255, 6.460273464,
                                            6.407843222, 6.329597659, 6.303047729, 6.296034353};
constexpr double kTolerance = 1e-4;

// World rank 0's standard output goes into a file meanwhile.
class Screen {
 public:
  Screen(const comm::Communicator& world, const std::string& path) {
    if (!world.IsRoot()) return;
    std::fflush(stdout);
    const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
    if (!file.Valid()) return;
    kept_ = dup(STDOUT_FILENO);
    dup2(file.Get(), STDOUT_FILENO);
  }
  ~Screen() {
    if (kept_ < 0) return;
    std::fflush(stdout);
    dup2(kept_, STDOUT_FILENO);
    close(kept_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

 private:
  int kept_ = -1;
};

std::string Joined(const Keys& keys) {
  return keys.empty() ? "one rank" : fmt::format("{}", fmt::join(keys, " "));
}

Keys operator+(Keys left, const Keys& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace

std::vector<Keys> Layouts(int ranks) {
  constexpr int kMostData = 64, kMost = 4;
  std::vector<Keys> layouts;
  const auto add = [&](const Keys& keys, int others) {
    if (ranks % others == 0 && ranks / others <= kMostData) layouts.push_back(keys);
  };
  int most = 1;  // ranks of an axis
  while (2 * most <= kMost && ranks % (2 * most) == 0) most *= 2;
  if (ranks == 1) return {{}};
  add({fmt::format("grid.data={}", ranks)}, 1);
  add({"grid.sharding=parameters"}, 1);
  if (most == 1) return layouts;
  add({fmt::format("grid.tensor={}", most)}, most);
  add({fmt::format("grid.pipeline={}", most)}, most);
  add({"grid.context=2"}, 2);
  add({"grid.tensor=2", "grid.pipeline=2"}, 4);
  add({"grid.tensor=2", "grid.pipeline=2", "grid.sharding=optimizer"}, 4);
  return layouts;
}

SmallRuns::SmallRuns(const Setting& setting, std::string folder)
    : setting_(setting), world_(setting.runtime->World()), folder_(std::move(folder)) {
  world_.Together([&] {
    if (!world_.IsRoot()) return;
    std::ofstream deck(folder_ + "/deck.in");
    deck << kDeck;
    deck.close();
    Expect(!deck.fail(), folder_ + "/deck.in: cannot be written");
  });
}

void SmallRuns::Run(const Keys& keys, const std::string& resume,
                    const std::function<ExitCode(app::Job&)>& task) const {
  app::CommandLine line;
  line.deck = folder_ + "/deck.in";
  line.resume = resume;
  line.overrides = Keys{"data.file=" + folder_ + "/harbour.h5"} + keys;
  const Screen screen(world_, folder_ + "/screen");
  app::Job job = app::MakeJob(*setting_.runtime, line, *setting_.schema, *setting_.signals);
  const ExitCode code = task(job);
  if (code == ExitCode::kStopped) throw AgreedError(code, "stopped by a signal");
}

std::string SmallRuns::Tokenize() const {
  Run({"job.task=tokenize", "run.device=cpu"}, "", RunTokenize);
  return "the built-in corpus, 20,000 tokens";
}

std::string SmallRuns::Verify(const Keys& layout) const {
  Run(layout + Keys{"job.task=verify", "run.device=cpu", "job.output=" + folder_ + "/verify"}, "",
      RunVerify);
  return Joined(layout);
}

// Largest relative difference to the recorded losses, of all steps.
double SmallRuns::CompareLosses(const std::string& run) const {
  double most = 0;
  world_.Together([&] {
    if (!world_.IsRoot()) return;
    std::ifstream records(run + "/metrics.jsonl");
    std::size_t steps = 0;
    for (std::string line; std::getline(records, line);) {
      const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
      if (record.is_discarded() || record.value("kind", "") != "step") continue;
      const auto step = record.at("step").get<std::size_t>();
      Expect(step == ++steps && step <= kLosses.size(),
             fmt::format("the records of steps are not in order: step {}", step));
      const double loss = record.at("loss").is_number() ? record.at("loss").get<double>() : NAN;
      const double difference = std::abs(loss - kLosses.at(step - 1)) / kLosses.at(step - 1);
      Expect(difference <= kTolerance,
             fmt::format("the loss of step {} is {:.7f}, recorded is {:.7f} (tolerance {:.0e})",
                         step, loss, kLosses.at(step - 1), kTolerance),
             "job.task = verify with a deck of yours tells more.");
      most = std::max(most, difference);
    }
    Expect(steps == kLosses.size(),
           fmt::format("{} steps have a record, not {}", steps, kLosses.size()));
  });
  return world_.Max(most);
}

std::string SmallRuns::Train(const Keys& layout, const std::string& name,
                             const std::string& device) const {
  const std::string run = folder_ + "/" + name;
  Run(layout + Keys{"job.output=" + run, "run.device=" + device}, "", RunTraining);
  return fmt::format("{}: {} losses within {:.0e} of the recorded ones", Joined(layout),
                     kLosses.size(), std::max(CompareLosses(run), 1e-8));
}

std::string SmallRuns::Resume(const Keys& first, const Keys& second) const {
  const std::string run = folder_ + "/resumed";
  const Keys keys = {"job.output=" + run, "run.device=cpu"};
  Run(first + keys + Keys{fmt::format("schedule.stop_at={}", kMiddle)}, "", RunTraining);
  Run(second + keys, run, RunTraining);
  CompareLosses(run);
  return fmt::format("written by {}, read by {}", Joined(first), Joined(second));
}

std::string SmallRuns::Generate(const Keys& first, const Keys& second) const {
  std::string text;
  for (const Keys& layout : {first, second}) {
    Run(layout + Keys{"job.task=generate", "run.device=cpu"}, folder_ + "/resumed", RunGenerate);
    world_.Together([&] {
      if (!world_.IsRoot()) return;
      std::ostringstream shown;
      shown << std::ifstream(folder_ + "/screen").rdbuf();
      Expect(shown.str().starts_with("the "), "generation answered: " + shown.str());
      Expect(
          text.empty() || text == shown.str(),
          fmt::format("another text from {}: '{}', not '{}'", Joined(layout), shown.str(), text));
      text = shown.str();
    });
  }
  return fmt::format("8 tokens, the same by {} and {}", Joined(first), Joined(second));
}

}  // namespace trireme::tasks
