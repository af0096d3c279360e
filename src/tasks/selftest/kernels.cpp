// Kernels of this CPU, each against its definition computed in fp64.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "checks.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::tasks {

namespace {

using kernels::Form;
using kernels::Matrix;

// Rounding of sums of this length in fp32, and of operands in bf16, relative to the largest
// element.
constexpr double kFp32 = 1e-5, kBf16 = 2e-2, kFp64 = 1e-13;

// Numbers in (-1, 1), the same everywhere.
double Number(std::uint32_t which, std::uint32_t index) {
  const PhiloxCounter bits = Philox({index, which, 0, 0}, MakeKey(1, Purpose::kVerify));
  return 2 * UniformFrom(bits[0]) - 1;
}

template <typename T>
std::vector<T> Numbers(std::uint32_t which, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(Number(which, static_cast<std::uint32_t>(i)));
  }
  return values;
}

template <typename T>
Matrix View(std::vector<T>& values, std::int64_t rows, std::int64_t columns) {
  return {values.data(), sizeof(T) == sizeof(double) ? Dtype::kFloat64 : Dtype::kFloat32, rows,
          columns, columns};
}

// Largest difference of a [rows, columns] to `wanted`, relative to the largest wanted element.
template <typename T>
double Difference(const std::vector<T>& got, const std::vector<double>& wanted) {
  double most = 0, difference = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    most = std::max(most, std::abs(wanted[i]));
    const double here = std::abs(static_cast<double>(got[i]) - wanted[i]);
    difference = std::isfinite(here) ? std::max(difference, here) : INFINITY;
  }
  return difference / most;
}

struct Shape {
  std::int64_t m, n, k;
};

template <typename T>
void CheckProduct(const device::Stream& stream, const Shape& shape, double tolerance,
                  const char* name) {
  const auto [m, n, k] = shape;
  std::vector<T> a = Numbers<T>(1, m * k), b = Numbers<T>(2, k * n);
  std::vector<double> wanted(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += static_cast<double>(a[static_cast<std::size_t>(i * k + l)]) *
               static_cast<double>(b[static_cast<std::size_t>(l * n + j)]);
      }
      wanted[static_cast<std::size_t>(i * n + j)] = sum;
    }
  }
  std::vector<T> turned(b.size());  // b transposed: [n, k]
  for (std::int64_t l = 0; l < k; ++l) {
    for (std::int64_t j = 0; j < n; ++j) {
      turned[static_cast<std::size_t>(j * k + l)] = b[static_cast<std::size_t>(l * n + j)];
    }
  }
  for (const bool transposed : {false, true}) {
    std::vector<T> c(wanted.size(), static_cast<T>(NAN));
    kernels::MatrixMultiply(stream, Form::kPlain, View(a, m, k),
                            transposed ? Form::kTransposed : Form::kPlain,
                            transposed ? View(turned, n, k) : View(b, k, n), View(c, m, n), false);
    const double difference = Difference(c, wanted);
    Expect(difference <= tolerance,
           fmt::format("a product of matrices ({}, {} x {} x {}) differs by {:.1e} (tolerance "
                       "{:.0e}) from its definition",
                       name, m, n, k, difference, tolerance),
           "Was the program built for this processor? trireme --version tells of its libraries.");
  }
}

// Published vectors of the generator (Salmon et al. 2011), without which no run is reproducible.
void CheckRandomNumbers() {
  Expect(
      Philox({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
      "random numbers are not those of Philox4x32-10");
  Expect(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
             PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
         "random numbers are not those of Philox4x32-10");
}

// softmax(q k^T / sqrt(d)) v with a causal mask, in fp64.
std::vector<double> PlainAttention(const kernels::AttentionShape& shape,
                                   const std::vector<float>& qkv) {
  const std::int64_t rows = shape.sequences * shape.length, width = shape.Width();
  const std::int64_t d = shape.head_dim, heads = shape.heads;
  std::vector<double> out(static_cast<std::size_t>(rows * heads * d));
  const auto at = [&](std::int64_t row, std::int64_t column) {
    return static_cast<double>(qkv[static_cast<std::size_t>(row * width + column)]);
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t first = row / shape.length * shape.length;
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t keys = heads * d + head / (heads / shape.kv_heads) * d;
      const std::int64_t values = keys + shape.kv_heads * d;
      double sum = 0;
      for (std::int64_t key = first; key <= row; ++key) {
        double score = 0;
        for (std::int64_t i = 0; i < d; ++i) score += at(row, head * d + i) * at(key, keys + i);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
        sum += weight;
        for (std::int64_t i = 0; i < d; ++i) {
          out[static_cast<std::size_t>(row * heads * d + head * d + i)] +=
              weight * at(key, values + i);
        }
      }
      for (std::int64_t i = 0; i < d; ++i) {
        out[static_cast<std::size_t>(row * heads * d + head * d + i)] /= sum;
      }
    }
  }
  return out;
}

void CheckAttention(const device::Stream& stream) {
  kernels::AttentionShape shape;
  shape.sequences = 2;
  shape.length = 70;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 24;
  const std::int64_t rows = shape.sequences * shape.length;
  std::vector<float> qkv = Numbers<float>(3, rows * shape.Width());
  std::vector<float> out(static_cast<std::size_t>(rows * shape.heads * shape.head_dim), NAN);
  std::vector<float> lse(static_cast<std::size_t>(rows * shape.heads));
  std::vector<float> scratch(
      static_cast<std::size_t>(kernels::AttentionScratch(shape, stream.threads)));
  kernels::AttentionForward(stream, shape, View(qkv, rows, shape.Width()), {},
                            View(out, rows, shape.heads * shape.head_dim),
                            View(lse, rows, shape.heads), View(scratch, 1, std::ssize(scratch)));
  const double difference = Difference(out, PlainAttention(shape, qkv));
  Expect(difference <= kFp32, fmt::format("attention differs by {:.1e} (tolerance {:.0e}) from its "
                                          "definition",
                                          difference, kFp32));
}

}  // namespace

std::string CheckKernels(const comm::Runtime& runtime) {
  // Multiples of no tile, and one row, as generation has it.
  const std::vector<Shape> shapes = {{97, 131, 259}, {1, 200, 120}, {64, 64, 64}};
  const std::string bf16 = device::Bf16Instructions();
  runtime.World().Together([&] {
    CheckRandomNumbers();
    device::Stream plain, canonical, narrow;
    canonical.canonical = true;
    narrow.bf16 = true;
    for (const Shape& shape : shapes) {
      CheckProduct<float>(plain, shape, kFp32, "fp32");
      CheckProduct<float>(canonical, shape, kFp32, "canonical");
      CheckProduct<double>(plain, shape, kFp64, "fp64");
      if (!bf16.empty()) CheckProduct<float>(narrow, shape, kBf16, "bf16");
    }
    CheckAttention(plain);
  });
  return fmt::format("{}; products in fp32, fp64, canonical{}; attention", device::InstructionSet(),
                     bf16.empty() ? "" : ", bf16 (" + bf16 + ")");
}

}  // namespace trireme::tasks
