// The vocabulary's loss and gradients on a tile of tokens: in blocks, over whole logits, and the
// three products alone. usage: trireme_vocabulary_benchmark [Google Benchmark's options, such as
// --benchmark_filter=jsc --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true]
// threads: OMP_NUM_THREADS
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace {

using namespace trireme;
using kernels::Form;
using kernels::Matrix;

struct Model {
  const char* name;
  std::int64_t vocabulary, dim;
};
constexpr Model kModels[] = {{"jsc", 33278, 128}, {"wt2", 33278, 256}, {"gpt2", 50257, 768}};

// Of whole logits: which of the steps are taken.
struct Method {
  const char* name;
  bool blocks, loss, gradients;
};
constexpr Method kMethods[] = {{"blocks", true, true, true},
                               {"whole", false, true, true},
                               {"products", false, false, true},
                               {"loss_blocks", true, true, false},
                               {"loss_whole", false, true, false}};
struct Case {
  Model model;
  std::int64_t rows;
  Method method;
  device::Stream stream;
};

// Small random-looking operands of one tile, and room for either method.
class Tile {
 public:
  explicit Tile(const Case& c)
      : arena_(4 * Elements(c) + (1 << 20)),
        x(Filled(c.rows, c.model.dim, 1)),
        weight(Filled(c.model.vocabulary, c.model.dim, 0.05F)),
        dweight(Filled(c.model.vocabulary, c.model.dim, 0)),
        dx(Filled(c.rows, c.model.dim, 0)),
        scratch(kernels::Allocate(arena_, Dtype::kFloat32, 1, ScratchOf(c))),
        logits(kernels::Allocate(arena_, Dtype::kFloat32, c.rows, c.model.vocabulary)),
        statistics(static_cast<std::size_t>(kernels::kSoftmaxStatistics * c.rows)),
        losses(static_cast<std::size_t>(c.rows)) {
    for (std::int64_t r = 0; r < c.rows; ++r) {
      targets.push_back(static_cast<std::int32_t>(r * 7919 % c.model.vocabulary));
    }
  }

 private:
  device::Arena arena_;
  static std::int64_t ScratchOf(const Case& c) {
    return kernels::VocabularyScratch({.threads = c.stream.threads}, c.rows, c.model.vocabulary,
                                      c.model.dim, c.method.gradients);
  }
  static std::int64_t Elements(const Case& c) {
    return 2 * (c.rows + c.model.vocabulary) * c.model.dim + ScratchOf(c) +
           c.rows * c.model.vocabulary;
  }
  Matrix Filled(std::int64_t rows, std::int64_t columns, float scale) {
    const Matrix m = kernels::Allocate(arena_, Dtype::kFloat32, rows, columns);
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < m.Size(); ++i) {
      state = state * 1664525U + 1013904223U;
      m.As<float>()[i] = scale * (static_cast<float>(state >> 8) * 0x1p-23F - 1);
    }
    return m;
  }

 public:
  Matrix x, weight, dweight, dx, scratch, logits;
  std::vector<std::int32_t> targets;
  std::vector<double> statistics, losses;
};

void InBlocks(const Case& c, Tile& t) {
  const kernels::VocabularyTile tile{.x = t.x,
                                     .weight = t.weight,
                                     .targets = t.targets.data(),
                                     .vocabulary = c.model.vocabulary,
                                     .gradient = c.method.gradients};
  kernels::VocabularyStatistics(c.stream, tile, t.scratch, t.statistics.data());
  kernels::VocabularyLosses({}, tile, t.statistics.data(), 1, t.losses.data());
  if (!tile.gradient) return;
  kernels::VocabularyGradient(c.stream, tile, t.scratch, t.statistics.data(), 1, t.dx, t.dweight);
}

void Whole(const Case& c, Tile& t) {
  const auto multiply = [&](Form form_a, const Matrix& a, Form form_b, const Matrix& b,
                            const Matrix& out, bool accumulate) {
    kernels::MatrixMultiply(c.stream, form_a, a, form_b, b, out, accumulate);
  };
  multiply(Form::kPlain, t.x, Form::kTransposed, t.weight, t.logits, false);
  if (c.method.loss) {
    kernels::CrossEntropy(c.stream, t.logits, t.targets.data(), {}, c.method.gradients,
                          t.losses.data());
  }
  if (!c.method.gradients) return;
  multiply(Form::kPlain, t.logits, Form::kPlain, t.weight, t.dx, false);
  multiply(Form::kTransposed, t.logits, Form::kPlain, t.x, t.dweight, true);
}

void Measure(benchmark::State& state, const Case& c) {
  Tile tile(c);
  const auto run = c.method.blocks ? InBlocks : Whole;
  run(c, tile);
  for (auto _ : state) run(c, tile);
  const double work = (c.method.gradients ? 6.0 : 2.0) * static_cast<double>(c.rows) *
                      static_cast<double>(c.model.vocabulary * c.model.dim);
  state.counters["GFLOP/s"] = benchmark::Counter(
      1e-9 * work, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
  state.counters["MB"] =
      4e-6 * static_cast<double>(c.method.blocks ? tile.scratch.Size() : tile.logits.Size());
}

}  // namespace

int main(int argc, char** argv) {
  device::Stream stream;
  stream.threads = device::ConfigureThreads(0, 1);
  for (const bool bf16 : {false, true}) {
    if (bf16 && device::Bf16Instructions().empty()) continue;
    stream.bf16 = bf16;
    for (const Model& model : kModels) {
      for (const std::int64_t rows : {128, 256, 512, 1024}) {
        for (const Method& method : kMethods) {
          const std::string title = std::string(bf16 ? "bf16/" : "fp32/") + model.name + "/" +
                                    std::to_string(rows) + "/" + method.name;
          const Case c{model, rows, method, stream};
          benchmark::RegisterBenchmark(title.c_str(),
                                       [c](benchmark::State& state) { Measure(state, c); })
              ->Unit(benchmark::kMillisecond)
              ->UseRealTime();
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
