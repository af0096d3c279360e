// Row kernels on one thread: bytes a second that they have to move (every operand once), next to a
// plain copy of as many bytes (`copy`): the roof of whatever waits for memory. Items are elements
// of [rows, dim].
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/update.hpp"

namespace {

using namespace trireme;
using kernels::ActivationKind;
using kernels::Matrix;
using kernels::NormKind;

constexpr std::int64_t kRows = 4096, kLength = 256;
constexpr double kFloat = sizeof(float);
const device::Stream kStream;
const std::vector<std::uint64_t> kOrdinals(kRows / kLength, 7);

// Bytes a second of a memcpy that reads and writes `bytes` together; best of several.
double CopySpeed(double bytes) {
  static std::map<double, double> known;
  if (const auto found = known.find(bytes); found != known.end()) return found->second;
  const auto half = static_cast<std::size_t>(bytes / 2);
  std::vector<char> from(half, 1), to(half, 2);
  double best = 0;
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), half);
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::max(best, bytes / taken.count());
  }
  return known[bytes] = best;
}

// Operands of a kernel: dense, uniform in [-1, 1], alive as long as this is.
class Operands {
 public:
  Matrix Make(std::int64_t rows, std::int64_t columns) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    const std::int64_t count = rows * columns;
    memory_.push_back(device::AllocateZeroed(count * static_cast<std::int64_t>(sizeof(float))));
    auto* values = static_cast<float*>(memory_.back().get());
    std::generate_n(values, count, [&] { return uniform(engine_); });
    return {values, Dtype::kFloat32, rows, columns, columns};
  }
  std::vector<std::int32_t> Tokens(std::int64_t count, std::int32_t vocabulary) {
    // Roughly as words occur: half of the tokens are one of a few.
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens) {
      const double u = uniform(engine_);
      token = static_cast<std::int32_t>(u * u * u * u * vocabulary);
    }
    return tokens;
  }

 private:
  std::vector<device::Buffer> memory_;
  std::mt19937 engine_{1};
};

double Elements(const Matrix& x) { return static_cast<double>(x.Size()); }

// A kernel ready to run, and the bytes that it has to read and write.
struct Case {
  std::function<void()> run;
  double bytes = 0;
};
using Maker = Case (*)(Operands&, std::int64_t dim);

kernels::Dropout MakeDropout(double probability) {
  return {probability, 1, Purpose::kResidualDropout, 2, 1, kOrdinals.data(), kLength};
}

Case Copy(Operands& o, std::int64_t dim) {
  const Matrix x = o.Make(kRows, dim), y = o.Make(kRows, dim);
  return {[=] { kernels::Copy(kStream, x, y); }, 2 * kFloat * Elements(x)};
}
Case Add(Operands& o, std::int64_t dim) {
  const Matrix x = o.Make(kRows, dim), y = o.Make(kRows, dim);
  return {[=] { kernels::Add(kStream, x, y); }, 3 * kFloat * Elements(x)};
}
Case AddBias(Operands& o, std::int64_t dim) {
  const Matrix x = o.Make(kRows, dim), bias = o.Make(1, dim);
  return {[=] { kernels::AddBias(kStream, x, bias); }, 2 * kFloat * Elements(x)};
}
Case ColumnSum(Operands& o, std::int64_t dim) {
  const Matrix x = o.Make(kRows, dim), sums = o.Make(1, dim);
  const Matrix scratch = o.Make(kernels::kReductionBlocks, dim);
  return {[=] { kernels::ColumnSum(kStream, x, sums, scratch); }, kFloat * Elements(x)};
}
Case Dropout(Operands& o, std::int64_t dim) {
  const Matrix x = o.Make(kRows, dim), y = o.Make(kRows, dim);
  return {[=] { kernels::DropoutForward(kStream, x, MakeDropout(0.1), y); },
          2 * kFloat * Elements(x)};
}
Case NormForward(Operands& o, std::int64_t dim) {
  const Matrix x = o.Make(kRows, dim), y = o.Make(kRows, dim), statistics = o.Make(kRows, 2);
  const Matrix weight = o.Make(1, dim), bias = o.Make(1, dim);
  return {[=] {
            kernels::NormForward(kStream, NormKind::kLayerNorm, x, weight, bias, 1e-5, y,
                                 statistics);
          },
          2 * kFloat * Elements(x)};
}
template <int kPercent>
Case ResidualNormForward(Operands& o, std::int64_t dim) {
  const Matrix x = o.Make(kRows, dim), branch = o.Make(kRows, dim), y = o.Make(kRows, dim);
  const Matrix weight = o.Make(1, dim), bias = o.Make(1, dim), statistics = o.Make(kRows, 2);
  const Matrix sum = o.Make(kRows, dim);
  return {[=] {
            kernels::ResidualNormForward(kStream, NormKind::kLayerNorm, x, branch, bias,
                                         MakeDropout(kPercent / 100.0), sum, weight, bias, 1e-5, y,
                                         statistics);
          },
          4 * kFloat * Elements(x)};
}
template <int kPercent>
Case NormBackward(Operands& o, std::int64_t dim) {
  kernels::NormBackwardPass pass;
  pass.dy = o.Make(kRows, dim);
  pass.x = o.Make(kRows, dim);
  pass.residual = pass.dx = o.Make(kRows, dim);
  pass.weight = o.Make(1, dim);
  pass.statistics = o.Make(kRows, 2);
  pass.dweight = o.Make(1, dim);
  pass.dbias = o.Make(1, dim);
  pass.scratch = o.Make(kernels::kReductionBlocks, 2 * dim);
  pass.dropout = MakeDropout(kPercent / 100.0);
  if (kPercent > 0) pass.dbranch = o.Make(kRows, dim);
  return {[=] { kernels::NormBackward(kStream, pass); },
          (kPercent > 0 ? 5 : 4) * kFloat * static_cast<double>(kRows * dim)};
}
template <ActivationKind kKind, int kPercent>
Case ActivationForward(Operands& o, std::int64_t dim) {
  constexpr int kParts = kKind == ActivationKind::kSwiglu ? 2 : 1;
  const Matrix pre = o.Make(kRows, kParts * dim), out = o.Make(kRows, dim);
  return {[=] {
            kernels::ActivationForward(kStream, kKind, pre, {}, MakeDropout(kPercent / 100.0), out);
          },
          (1 + kParts) * kFloat * Elements(out)};
}
template <ActivationKind kKind, int kPercent>
Case ActivationBackward(Operands& o, std::int64_t dim) {
  constexpr int kParts = kKind == ActivationKind::kSwiglu ? 2 : 1;
  const Matrix pre = o.Make(kRows, kParts * dim), dout = o.Make(kRows, dim);
  const Matrix dpre = o.Make(kRows, kParts * dim);
  return {[=] {
            kernels::ActivationBackward(kStream, kKind, pre, MakeDropout(kPercent / 100.0), dout,
                                        dpre);
          },
          (1 + 2 * kParts) * kFloat * Elements(dout)};
}
constexpr std::int32_t kVocabulary = 33278;
Case EmbeddingForward(Operands& o, std::int64_t dim) {
  const Matrix weight = o.Make(kVocabulary, dim), out = o.Make(kRows, dim);
  return {[=, tokens = o.Tokens(kRows, kVocabulary)] {
            kernels::EmbeddingForward(kStream, tokens.data(), 0, weight, 2, out);
          },
          2 * kFloat * Elements(out)};
}
Case EmbeddingBackward(Operands& o, std::int64_t dim) {
  const Matrix dweight = o.Make(kVocabulary, dim), dout = o.Make(kRows, dim);
  return {[=, tokens = o.Tokens(kRows, kVocabulary)] {
            kernels::EmbeddingBackward(kStream, tokens.data(), 0, 2, dout, dweight);
          },
          3 * kFloat * Elements(dout)};
}
Case PositionForward(Operands& o, std::int64_t dim) {
  const Matrix x = o.Make(kRows, dim), positions = o.Make(kLength, dim);
  return {[=] { kernels::PositionForward(kStream, positions, nullptr, MakeDropout(0.1), x); },
          2 * kFloat * Elements(x)};
}
Case PositionBackward(Operands& o, std::int64_t dim) {
  const Matrix dout = o.Make(kRows, dim), dpositions = o.Make(kLength, dim);
  return {[=] { kernels::PositionBackward(kStream, nullptr, MakeDropout(0.1), dout, dpositions); },
          kFloat * Elements(dout)};
}
const kernels::UpdateScalars kScalars = {1e-3, 0.9, 0.95, 1e-8, 0.1, 0.05, 1e-3};
template <bool kClear>
Case AdamW(Operands& o, std::int64_t dim) {
  const Matrix g = o.Make(kRows, dim), w = o.Make(kRows, dim), m = o.Make(kRows, dim);
  const Matrix v = o.Make(kRows, dim);
  std::for_each_n(v.As<float>(), v.Size(), [](float& x) { x = x * x; });
  const kernels::UpdateRange range{g.Size(), 0.1, g.data, w.data, m.data, v.data};
  return {[=] {
            kernels::AdamW(kStream, g.dtype, {&range, 1}, &kScalars, kClear);
          },
          (kClear ? 8 : 7) * kFloat * Elements(g)};
}
Case SquareSum(Operands& o, std::int64_t dim) {
  const Matrix x = o.Make(kRows, dim);
  return {
      [=] { benchmark::DoNotOptimize(kernels::SquareSumOf(kStream, x.dtype, x.Size(), x.data)); },
      kFloat * Elements(x)};
}

void Register(const std::string& name, Maker make) {
  for (const std::int64_t dim : {128, 256, 768}) {
    const auto run = [make, dim](benchmark::State& state) {
      Operands operands;
      const Case kernel = make(operands, dim);
      const double roof = CopySpeed(kernel.bytes);
      for (auto _ : state) kernel.run();
      const auto bytes = static_cast<std::int64_t>(kernel.bytes);
      state.SetBytesProcessed(state.iterations() * bytes);
      state.SetItemsProcessed(state.iterations() * kRows * dim);
      using benchmark::Counter;
      state.counters["copy"] = Counter(roof, Counter::kDefaults, Counter::kIs1024);
    };
    benchmark::RegisterBenchmark((name + "/" + std::to_string(dim)).c_str(), run);
  }
}

}  // namespace

int main(int argc, char** argv) {
  using enum ActivationKind;
  Register("Copy", Copy);
  Register("Add", Add);
  Register("AddBias", AddBias);
  Register("ColumnSum", ColumnSum);
  Register("Dropout", Dropout);
  Register("NormForward", NormForward);
  Register("ResidualNormForward", ResidualNormForward<0>);
  Register("ResidualNormForward/dropout", ResidualNormForward<10>);
  Register("NormBackward", NormBackward<0>);
  Register("NormBackward/dropout", NormBackward<10>);
  Register("ReluForward", ActivationForward<kRelu, 0>);
  Register("ReluForward/dropout", ActivationForward<kRelu, 10>);
  Register("ReluBackward/dropout", ActivationBackward<kRelu, 10>);
  Register("GeluForward", ActivationForward<kGelu, 0>);
  Register("GeluBackward", ActivationBackward<kGelu, 0>);
  Register("GeluBackward/dropout", ActivationBackward<kGelu, 10>);
  Register("SwigluForward", ActivationForward<kSwiglu, 0>);
  Register("SwigluBackward", ActivationBackward<kSwiglu, 0>);
  Register("EmbeddingForward", EmbeddingForward);
  Register("EmbeddingBackward", EmbeddingBackward);
  Register("PositionForward/dropout", PositionForward);
  Register("PositionBackward", PositionBackward);
  Register("AdamW", AdamW<false>);
  Register("AdamW/clear", AdamW<true>);
  Register("SquareSum", SquareSum);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
