// Speed of the matrix seam on the shapes that occur in training, with the library it was built
// with. usage: trireme_matrix_benchmark     threads: OMP_NUM_THREADS
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
};

// GFLOP/s, median of several repetitions.
double Measure(const device::Stream& stream, const Product& p) {
  const std::int64_t elements = p.m * p.k + p.k * p.n + p.m * p.n;
  device::Arena arena(elements * 4 + 4096);
  const auto make = [&](std::int64_t rows, std::int64_t columns) {
    return tensor::Allocate(arena, Dtype::kFloat32, rows, columns);
  };
  const Matrix a = p.form_a == Form::kPlain ? make(p.m, p.k) : make(p.k, p.m);
  const Matrix b = p.form_b == Form::kPlain ? make(p.k, p.n) : make(p.n, p.k);
  const Matrix c = make(p.m, p.n);
  std::vector<double> rates;
  for (int i = 0; i < 12; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernels::MatrixMultiply(stream, p.form_a, a, p.form_b, b, c, false);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (i >= 2) rates.push_back(2e-9 * static_cast<double>(p.m * p.n * p.k) / seconds);
  }
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
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
                              {"square 1024", kPlain, kPlain, 1024, 1024, 1024}};
  fmt::print("{}, {} threads, {} ({}), fp32\n", kernels::MatrixLibrary(), stream.threads,
             device::CpuName(), device::InstructionSet());
  for (const Product& product : products) {
    fmt::print("{:<16} {:>6} x {:>6} x {:>6}  {:8.1f} GFLOP/s\n", product.name, product.m,
               product.n, product.k, Measure(stream, product));
  }
  return 0;
}
