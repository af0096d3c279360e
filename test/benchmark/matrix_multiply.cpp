// Speed of the matrix seam on the shapes that occur in training, with the library it was built
// with, and of the canonical product beside it. usage: trireme_matrix_benchmark     threads:
// OMP_NUM_THREADS
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace {

using namespace trireme;
using kernels::Form;
using tensor::Matrix;

struct Product {
  const char* name;
  Form form_a, form_b;
  std::int64_t m, n, k;
  bool accumulate = false;
};

double Seconds(const device::Stream& stream, const Product& p, const Matrix& a, const Matrix& b,
               const Matrix& c) {
  const auto start = std::chrono::steady_clock::now();
  // Small products repeat, so that the clock does not matter.
  const std::int64_t times = 1 + 20'000'000 / (p.m * p.n * p.k);
  for (std::int64_t i = 0; i < times; ++i) {
    kernels::MatrixMultiply(stream, p.form_a, a, p.form_b, b, c, p.accumulate);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
         static_cast<double>(times);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of the library and of the canonical product, called in turns, median of several repetitions.
struct Rates {
  double library = 0, canonical = 0;  // GFLOP/s
  double ratio = 0;                   // canonical to library, of neighbouring calls
};
Rates Measure(device::Stream stream, const Product& p) {
  const std::int64_t elements = p.m * p.k + p.k * p.n + p.m * p.n;
  device::Arena arena(elements * 4 + 4096);
  const auto make = [&](std::int64_t rows, std::int64_t columns) {
    const Matrix m = tensor::Allocate(arena, Dtype::kFloat32, rows, columns);
    for (std::int64_t i = 0; i < m.Size(); ++i) m.As<float>()[i] = static_cast<float>(i % 17) - 8;
    return m;
  };
  const Matrix a = p.form_a == Form::kPlain ? make(p.m, p.k) : make(p.k, p.m);
  const Matrix b = p.form_b == Form::kPlain ? make(p.k, p.n) : make(p.n, p.k);
  const Matrix c = make(p.m, p.n);
  std::vector<double> library, canonical, ratios;
  for (int i = 0; i < 12; ++i) {
    stream.canonical = false;
    const double seconds = Seconds(stream, p, a, b, c);
    stream.canonical = true;
    const double canonical_seconds = Seconds(stream, p, a, b, c);
    if (i < 2) continue;
    const double work = 2e-9 * static_cast<double>(p.m * p.n * p.k);
    library.push_back(work / seconds);
    canonical.push_back(work / canonical_seconds);
    ratios.push_back(seconds / canonical_seconds);
  }
  return {Median(library), Median(canonical), Median(ratios)};
}

}  // namespace

int main() {
  device::Stream stream;
  stream.threads = device::ConfigureThreads(0, 1);
  constexpr Form kPlain = Form::kPlain, kTransposed = Form::kTransposed;
  const Product products[] = {{"jsc logits", kPlain, kTransposed, 512, 33278, 128},
                              {"jsc head dx", kPlain, kPlain, 512, 128, 33278},
                              {"jsc head dW", kTransposed, kPlain, 33278, 128, 512},
                              {"jsc qkv", kPlain, kTransposed, 4096, 384, 128},
                              {"jsc up", kPlain, kTransposed, 4096, 2048, 128},
                              {"jsc down", kPlain, kPlain, 4096, 128, 2048},
                              {"jsc up dW", kTransposed, kPlain, 2048, 128, 4096},
                              {"dim 256 logits", kPlain, kTransposed, 512, 33278, 256},
                              {"dim 256 head dW", kTransposed, kPlain, 33278, 256, 512},
                              {"gpt2 logits", kPlain, kTransposed, 512, 50257, 768},
                              {"gpt2 up", kPlain, kTransposed, 2048, 3072, 768},
                              {"square 1024", kPlain, kPlain, 1024, 1024, 1024},
                              {"half logits", kPlain, kTransposed, 512, 16639, 128},
                              {"half head dx", kPlain, kPlain, 512, 128, 16639},
                              {"half head dW", kTransposed, kPlain, 16639, 128, 512, true},
                              {"qkv", kPlain, kTransposed, 4096, 384, 128},
                              {"qkv dx", kPlain, kPlain, 4096, 128, 384},
                              {"qkv dW", kTransposed, kPlain, 384, 128, 4096, true},
                              {"up", kPlain, kTransposed, 4096, 512, 128},
                              {"down", kPlain, kTransposed, 4096, 128, 512},
                              {"up dx", kPlain, kPlain, 4096, 128, 512},
                              {"down dx", kPlain, kPlain, 4096, 512, 128},
                              {"up dW", kTransposed, kPlain, 512, 128, 4096, true},
                              {"transposed both", kTransposed, kTransposed, 4096, 512, 128},
                              {"scores 64x64", kPlain, kTransposed, 64, 64, 32},
                              {"scores 64x256", kPlain, kTransposed, 64, 256, 32},
                              {"values 64x256", kPlain, kPlain, 64, 32, 256},
                              {"dkey 64x256", kTransposed, kPlain, 256, 32, 64, true},
                              {"cube 32", kPlain, kPlain, 32, 32, 32}};
  fmt::print("{}, {} threads, {} ({}), fp32, GFLOP/s\n", kernels::MatrixLibrary(), stream.threads,
             device::CpuName(), device::InstructionSet());
  fmt::print("{:<16} {:>24}  {:>10} {:>10}  ratio\n", "", "M x N x K", "library", "canonical");
  for (const Product& product : products) {
    const Rates rates = Measure(stream, product);
    fmt::print("{:<16} {:>6} x {:>6} x {:>6}  {:10.1f} {:10.1f}  {:5.2f}\n", product.name,
               product.m, product.n, product.k, rates.library, rates.canonical, rates.ratio);
  }
  return 0;
}
