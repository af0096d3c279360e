// Speed of matrix products on the shapes that occur in training: of the library that the program
// was built with and of our own, in fp32 and in bf16, by fp32 products or, where the CPU has it, by
// bf16 instructions. usage:
// trireme_matrix_benchmark [PART OF A NAME]     threads: OMP_NUM_THREADS
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "kernels/cpu/matrix_library.hpp"
#include "kernels/cpu/product/multiply.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/linear.hpp"

namespace {

using namespace trireme;
using kernels::Form;
using kernels::Matrix;

struct Product {
  const char* name;
  Form form_a, form_b;
  std::int64_t m, n, k;
  bool accumulate = false;
};

// A way to compute it.
struct Way {
  const char* name;
  void (*multiply)(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                   const Matrix& b, const Matrix& c, bool accumulate);
};

double Seconds(const Way& way, const device::Stream& stream, const Product& p, const Matrix& a,
               const Matrix& b, const Matrix& c) {
  const auto start = std::chrono::steady_clock::now();
  // Small products repeat, so that the clock does not matter.
  const std::int64_t times = 1 + 20'000'000 / (p.m * p.n * p.k);
  for (std::int64_t i = 0; i < times; ++i) {
    way.multiply(stream, p.form_a, a, p.form_b, b, c, p.accumulate);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
         static_cast<double>(times);
}

// All ways in turns, several times: the least seconds of each.
std::vector<double> Measure(const std::vector<Way>& ways, const device::Stream& stream,
                            const Product& p) {
  const std::int64_t elements = p.m * p.k + p.k * p.n + p.m * p.n;
  device::Arena arena(elements * 4 + 4096);
  const auto make = [&](std::int64_t rows, std::int64_t columns) {
    const Matrix m = kernels::Allocate(arena, Dtype::kFloat32, rows, columns);
    for (std::int64_t i = 0; i < m.Size(); ++i) m.As<float>()[i] = static_cast<float>(i % 17) - 8;
    return m;
  };
  const Matrix a = p.form_a == Form::kPlain ? make(p.m, p.k) : make(p.k, p.m);
  const Matrix b = p.form_b == Form::kPlain ? make(p.k, p.n) : make(p.n, p.k);
  const Matrix c = make(p.m, p.n);
  std::vector<double> least(ways.size(), 1e9);
  for (int i = 0; i < 8; ++i) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      least[way] = std::min(least[way], Seconds(ways[way], stream, p, a, b, c));
    }
  }
  return least;
}

void Library(const device::Stream& /*stream*/, Form form_a, const Matrix& a, Form form_b,
             const Matrix& b, const Matrix& c, bool accumulate) {
  kernels::LibraryMultiply({form_a, a, form_b, b, c, accumulate});
}
void Own(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b, const Matrix& b,
         const Matrix& c, bool accumulate) {
  kernels::ProductMultiply(kernels::UsableProductSets()[0], stream,
                           {form_a, a, form_b, b, c, accumulate});
}
void OwnBf16(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
             const Matrix& b, const Matrix& c, bool accumulate) {
  kernels::Bf16Multiply(*kernels::UsableBf16Kernels(), stream,
                        {form_a, a, form_b, b, c, accumulate});
}

std::vector<Way> Ways() {
  std::vector<Way> ways = {
      {"library", &Library},
      {"own", &Own},
      {"copies bf16",
       [](const device::Stream& stream, Form form_a, const Matrix& a, Form form_b, const Matrix& b,
          const Matrix& c, bool accumulate) {
         kernels::MultiplyRoundedCopies(stream, {form_a, a, form_b, b, c, accumulate});
       }},
      {"rounded bf16", [](const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                          const Matrix& b, const Matrix& c, bool accumulate) {
         kernels::RoundedMultiply(kernels::UsableProductSets()[0], stream,
                                  {form_a, a, form_b, b, c, accumulate});
       }}};
  if (kernels::UsableBf16Kernels() != nullptr) {
    ways.push_back(
        {"library bf16", [](const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                            const Matrix& b, const Matrix& c, bool accumulate) {
           kernels::LibraryBf16Multiply(stream, {form_a, a, form_b, b, c, accumulate});
         }});
    ways.push_back({"own bf16", &OwnBf16});
  }
  return ways;
}

}  // namespace

int main(int argc, char** argv) {
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
  const std::vector<Way> ways = Ways();
  fmt::print("{}, {} threads, {} ({}), GFLOP/s\n{:<42}", kernels::MatrixLibrary(), stream.threads,
             device::CpuName(), device::InstructionSet(), "M x N x K");
  for (const Way& way : ways) fmt::print("{:>14}", way.name);
  fmt::print("\n");
  for (const Product& p : products) {
    if (argc > 1 && std::string(p.name).find(argv[1]) == std::string::npos) continue;
    fmt::print("{:<16} {:>6} x {:>6} x {:>6} ", p.name, p.m, p.n, p.k);
    for (const double seconds : Measure(ways, stream, p)) {
      fmt::print("{:14.1f}", 2e-9 * static_cast<double>(p.m * p.n * p.k) / seconds);
    }
    fmt::print("\n");
  }
  return 0;
}
