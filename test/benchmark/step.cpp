// Times a training step (forward, backward, clip, AdamW) of a preset on random tokens, one process:
// our side of a comparison with another program on the same machine. usage: trireme_step_benchmark
// PRESET SEQUENCE BATCH [STEPS]     threads: OMP_NUM_THREADS
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/driver/roof.hpp"
#include "trireme/model/model.hpp"
#include "trireme/monitor/monitor.hpp"
#include "trireme/optimizer/optimizer.hpp"

namespace {

using namespace trireme;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

data::MicroBatch RandomBatch(std::int64_t vocabulary, std::int64_t sequences, std::int64_t length) {
  data::MicroBatch batch;
  batch.sequences = sequences;
  batch.length = length;
  for (std::int64_t i = 0; i < sequences * length; ++i) {
    const auto words = Philox({static_cast<std::uint32_t>(i), 0, 0, 0}, {1, 0});
    batch.inputs.push_back(static_cast<std::int32_t>(words[0] % vocabulary));
    batch.targets.push_back(static_cast<std::int32_t>(words[1] % vocabulary));
  }
  for (std::int64_t b = 0; b < sequences; ++b) {
    batch.ordinals.push_back(static_cast<std::uint64_t>(b));
  }
  batch.valid = sequences * length;
  return batch;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print("usage: trireme_step_benchmark PRESET SEQUENCE BATCH [STEPS]\n");
    return 2;
  }
  const std::string preset = argv[1];
  const std::int64_t length = std::atoll(argv[2]), batch = std::atoll(argv[3]);
  const int steps = argc > 4 ? std::atoi(argv[4]) : 5;
  const std::int64_t vocabulary = preset.starts_with("gpt2") ? 50257 : 33278;

  input::Schema schema;
  model::DeclareModel(schema);
  optimizer::DeclareOptimizer(schema);
  std::vector<std::string> keys = {"model.preset=" + preset};
  if (preset == "wt2") {  // the peer's: dim 256, 8 heads, 4 layers, ffn 1024, tied
    keys = {"model.dim=256", "model.heads=8", "model.layers=4", "model.ffn=1024",
            "model.dropout=0.1"};
  }
  input::Deck deck = input::Deck::Parse(schema, "", "benchmark", keys);

  model::ModelSetup setup;
  setup.options = model::ReadModel(deck, vocabulary);
  setup.options.attention_dropout = setup.options.ffn_dropout = 0;  // as the peer
  setup.length = length;
  setup.micro_batch = std::min(batch, std::max<std::int64_t>(1, 4096 / length));
  setup.stream.threads = device::ConfigureThreads(0, 1);
  model::Model model(setup);
  optimizer::Optimizer optimizer(optimizer::ReadOptimizer(deck), model.Parameters(), setup.stream);
  const double roof = driver::MeasureRoof(setup.stream, setup.dtype);

  std::vector<double> times;
  double loss = 0;
  const std::int64_t tokens = batch * length;
  for (int step = 1; step <= steps + 2; ++step) {
    const double start = Seconds();
    model.Parameters().ZeroGradients();
    loss = 0;
    for (std::int64_t done = 0; done < batch; done += setup.micro_batch) {
      const auto part = RandomBatch(vocabulary, std::min(setup.micro_batch, batch - done), length);
      loss += model.ForwardBackward(part, {});
    }
    optimizer.Step(step, 1e-3, std::sqrt(optimizer.GradientSquares()) / static_cast<double>(tokens),
                   tokens);
    if (step > 2) times.push_back(Seconds() - start);
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double rate = static_cast<double>(tokens) / median;
  fmt::print(
      "trireme {} fp32 tokens/step {} step_s {:.3f} tokens/s {:.0f} roof {:.1f} GFLOP/s "
      "fraction {:.2f} peak_MiB {} loss {:.3f}\n",
      preset, tokens, median, rate, roof * 1e-9,
      rate * model::FlopsPerToken(setup.options, length) / roof, monitor::PeakResidentBytes() >> 20,
      loss / static_cast<double>(tokens));
  return 0;
}
