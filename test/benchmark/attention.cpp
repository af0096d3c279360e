// Attention of whole sequences, forward and backward, and for comparison the two products of the
// forward pass alone, head by head through the seam of all products, which computes the masked half
// too. GFLOP/s count what causal attention needs. usage: trireme_attention_benchmark [Google
// Benchmark's options, such as --benchmark_filter=jsc]    threads: OMP_NUM_THREADS
#include "trireme/kernels/attention.hpp"

#include <benchmark/benchmark.h>

#include <string>
#include <utility>

#include "trireme/device/memory.hpp"
#include "trireme/kernels/linear.hpp"

namespace {

using namespace trireme;
using kernels::Form;
using kernels::Matrix;

struct Case {
  const char* name;
  std::int64_t sequences, length, heads, head_dim;
};
// Sizes that a rank of the models' decks takes at once, and as much as a second-level cache holds.
constexpr Case kCases[] = {{"jsc", 256, 32, 4, 32},          {"dim256", 64, 128, 8, 32},
                           {"gpt2", 2, 1024, 12, 64},        {"jsc_cached", 4, 32, 4, 32},
                           {"dim256_cached", 1, 128, 8, 32}, {"gpt2_cached", 1, 1024, 2, 64}};
enum class Method { kForward, kBackward, kProducts };

// Of one product in all heads.
double FlopsOf(const Case& c) {
  return static_cast<double>(c.sequences * c.heads * c.head_dim * c.length * (c.length + 1));
}

struct Operands {
  explicit Operands(const kernels::AttentionShape& s, int threads)
      : arena(s.sequences * s.length * (2 * s.Width() + 2 * s.heads * s.head_dim + s.heads) * 4 +
              (kernels::AttentionScratch({.threads = threads}, s, Dtype::kFloat64, true) +
               s.length * s.length) *
                  4 +
              8192) {
    const std::int64_t rows = s.sequences * s.length;
    for (Matrix* m : {&qkv, &dqkv}) *m = Make(rows, s.Width());
    for (Matrix* m : {&out, &dout}) *m = Make(rows, s.heads * s.head_dim);
    lse = Make(rows, s.heads);
    scratch = Make(1, kernels::AttentionScratch({.threads = threads}, s, Dtype::kFloat64, true));
    scores = Make(s.length, s.length);
  }
  Matrix Make(std::int64_t rows, std::int64_t columns) {
    const Matrix m = kernels::Allocate(arena, Dtype::kFloat32, rows, columns);
    for (std::int64_t i = 0; i < m.Size(); ++i) {
      m.As<float>()[i] = static_cast<float>(i * 7919 % 2003) / 1001 - 1;
    }
    return m;
  }
  device::Arena arena;
  Matrix qkv, dqkv, out, dout, lse, scratch, scores;
};

void Products(const device::Stream& stream, const kernels::AttentionShape& s, const Operands& x) {
  for (std::int64_t task = 0; task < s.sequences * s.heads; ++task) {
    const std::int64_t row = task / s.heads * s.length, d = s.head_dim;
    const Matrix block = x.qkv.Rows(row, s.length);
    const auto head = [&](std::int64_t part) {
      return block.Columns((part * s.heads + task % s.heads) * d, d);
    };
    kernels::MatrixMultiply(stream, Form::kPlain, head(0), Form::kTransposed, head(1), x.scores,
                            false);
    kernels::MatrixMultiply(stream, Form::kPlain, x.scores, Form::kPlain, head(2),
                            x.out.Rows(row, s.length).Columns(task % s.heads * d, d), false);
  }
}

void Run(benchmark::State& state, const Case& c, Method method, const device::Stream& stream) {
  kernels::AttentionShape s;
  s.sequences = c.sequences;
  s.length = c.length;
  s.heads = s.kv_heads = c.heads;
  s.head_dim = c.head_dim;
  const Operands x(s, stream.threads);
  kernels::AttentionForward(stream, s, x.qkv, {}, x.out, x.lse, x.scratch);
  for ([[maybe_unused]] auto _ : state) {
    if (method == Method::kForward) {
      kernels::AttentionForward(stream, s, x.qkv, {}, x.out, x.lse, x.scratch);
    } else if (method == Method::kBackward) {
      kernels::AttentionBackward(stream, s, x.qkv, {}, x.out, x.dout, x.lse, x.dqkv, x.scratch);
    } else {
      Products(stream, s, x);
    }
  }
  const double products = method == Method::kBackward ? 5 : 2;
  state.counters["GFLOP/s"] =
      benchmark::Counter(1e-9 * products * FlopsOf(c) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}

}  // namespace

int main(int argc, char** argv) {
  device::Stream stream;
  stream.threads = device::ConfigureThreads(0, 1);
  for (const Case& c : kCases) {
    for (const auto& [name, method] : {std::pair{"forward", Method::kForward},
                                       {"backward", Method::kBackward},
                                       {"products", Method::kProducts}}) {
      benchmark::RegisterBenchmark(
          (std::string(c.name) + "/" + name).c_str(),
          [c, method = method, stream](benchmark::State& state) { Run(state, c, method, stream); })
          ->Unit(benchmark::kMicrosecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
