// Speed of generation on one process, of a GPT-2 of 124 M parameters with drawn weights: tokens of
// one text and of many at once, against the bandwidth of the machine's memory, and a long prompt
// against a training step's forward pass.
// usage: trireme_generate_benchmark [PROMPT [TOKENS [ROUNDS]]]      threads: OMP_NUM_THREADS
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "generator.hpp"
#include "models.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/comm/runtime.hpp"

namespace {

using namespace trireme;
using benchmark::Median;

constexpr std::int64_t kPrompt = 1000, kTokens = 48, kShort = 16, kMany = 16;
constexpr std::int64_t kVocabulary = 50257, kLength = 1024;

model::ModelPlan PlanOf(std::int64_t slots) {
  deck::Schema schema;
  model::Declare(schema);
  deck::Deck deck = deck::Deck::Parse(schema, "", "benchmark", {"model.preset=gpt2_124m"});
  model::Resolve(deck);
  model::ModelPlan plan;
  plan.options = model::WithVocabulary(model::Read(deck), kVocabulary, deck);
  plan.length = kLength;
  plan.micro_batch = 1;
  plan.training = false;
  plan.cache_slots = slots;
  plan.pack_weights = true;
  return plan;
}

// Bytes read and written a second by all threads that copy, as STREAM counts; and read alone.
struct Bandwidth {
  double copy = 0, read = 0;
};
Bandwidth Measure(int threads) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;  // beyond every cache
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  std::vector<double> copies, reads;
  double sink = 0;
  for (int round = 0; round < 9; ++round) {
    double start = Seconds();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; ++part) {
      const Part share = PartOf(kBytes, part, threads);
      std::memcpy(to.data() + share.begin, from.data() + share.begin,
                  static_cast<std::size_t>(share.Size()));
    }
    copies.push_back(Seconds() - start);
    start = Seconds();
    const auto* const words = reinterpret_cast<const float*>(from.data());
    double sum = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : sum)
    for (int part = 0; part < threads; ++part) {
      const Part share = PartOf(kBytes / 4, part, threads);
      float mine = 0;
#pragma omp simd reduction(+ : mine)
      for (std::int64_t i = share.begin; i < share.end; ++i) mine += words[i];
      sum += mine;
    }
    reads.push_back(Seconds() - start);
    sink += sum;
  }
  if (sink == 0.125) fmt::print("\n");
  return {2 * kBytes / Median(copies), kBytes / Median(reads)};
}

class Bench {
 public:
  Bench(const comm::Runtime& runtime, int threads)
      : tokens_(runtime.World(), benchmark::RandomTokens(kVocabulary, 4 * kLength)),
        grid_(runtime.World(), {.pipeline = 1, .data = 1, .context = 1, .tensor = 1}),
        net_(grid_, PlanOf(kMany), {.threads = threads}),
        generator_({.model = net_, .tokens = tokens_, .slots = kMany, .stopped = {}}) {
    net_.Inference().PackWeights();
  }

  // Seconds for `count` texts of so many tokens each.
  double Write(std::int64_t count, std::int64_t prompt, std::int64_t tokens) {
    std::vector<tasks::Prompt> prompts;
    for (std::int64_t i = 0; i < count; ++i) {
      tasks::Prompt& made = prompts.emplace_back();
      made.number = i;
      made.options.tokens = tokens;
      for (std::int64_t k = 1; k < prompt; ++k) {
        made.ids.push_back(tokens_.View(data::Split::kTrain, k + i, 1, false).Id(0));
      }
    }
    const double start = Seconds();
    generator_.Run(prompts);
    return Seconds() - start;
  }
  // Seconds for the loss of a sequence as long as a prompt.
  double Forward(std::int64_t prompt) {
    data::Entry entry;
    entry.sequences = 1;
    entry.length = prompt;
    for (std::int64_t k = 0; k < prompt; ++k) {
      entry.inputs.push_back(tokens_.View(data::Split::kTrain, k, 1, false).Id(0));
      entry.targets.push_back(tokens_.View(data::Split::kTrain, k + 1, 1, false).Id(0));
    }
    entry.ordinals = {0};
    const double start = Seconds();
    net_.Tasks().Loss({&entry, 1});
    return Seconds() - start;
  }
  // Of the weights that a token needs: all but the table of positions.
  double WeightBytes() const {
    const model::Options& o = net_.Plan().options;
    return static_cast<double>(net_.Parameters().ValueBytes() - o.max_positions * o.dim * 4);
  }

 private:
  data::TokenFile tokens_;
  comm::ProcessGrid grid_;
  model::ParallelModel net_;
  tasks::Generator generator_;
};

void Run(const comm::Runtime& runtime, std::int64_t prompt, std::int64_t tokens, int rounds) {
  const int threads = device::ConfigureThreads(0, 1);
  Bench bench(runtime, threads);
  std::vector<double> one, many, prefill, forward;
  Bandwidth bandwidth;
  for (int round = -1; round < rounds; ++round) {
    const Bandwidth now = Measure(threads);
    bandwidth = {std::max(bandwidth.copy, now.copy), std::max(bandwidth.read, now.read)};
    // A text's tokens after the first: the prompt's pass is left out.
    const double single = (bench.Write(1, kShort, tokens + 1) - bench.Write(1, kShort, 1));
    const double batch = bench.Write(kMany, kShort, tokens + 1) - bench.Write(kMany, kShort, 1);
    const double long_prompt = bench.Write(1, prompt, 1), loss = bench.Forward(prompt);
    if (round < 0) continue;  // first touches
    one.push_back(single / static_cast<double>(tokens));
    many.push_back(batch / static_cast<double>(tokens * kMany));
    prefill.push_back(long_prompt);
    forward.push_back(loss);
  }
  const double rate = bench.WeightBytes() / Median(one);
  fmt::print("{} threads, memory: copy {:.1f} GB/s, read {:.1f} GB/s\n", threads,
             bandwidth.copy / 1e9, bandwidth.read / 1e9);
  fmt::print(
      "one text: {:.2f} tokens/s, {:.1f} GB/s of weights: {:.0f}% of copy, {:.0f}% of read\n",
      1 / Median(one), rate / 1e9, 100 * rate / bandwidth.copy, 100 * rate / bandwidth.read);
  fmt::print("{} texts: {:.2f} tokens/s, {:.2f} times one\n", kMany, 1 / Median(many),
             Median(one) / Median(many));
  fmt::print("prompt of {}: {:.3f} s; forward pass with loss {:.3f} s: ratio {:.2f}\n", prompt,
             Median(prefill), Median(forward), Median(prefill) / Median(forward));
}

}  // namespace

int main(int argc, char** argv) {
  comm::Runtime runtime(&argc, &argv);
  return runtime.Guard([&] {
    Run(runtime, argc > 1 ? std::atoll(argv[1]) : kPrompt, argc > 2 ? std::atoll(argv[2]) : kTokens,
        argc > 3 ? std::atoi(argv[3]) : 5);
    return ExitCode::kDone;
  });
}
