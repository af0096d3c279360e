// Kernels on a planned device: memory is not touched (addresses would fault), products and
// attention are counted, sizes of scratch are those of the device that is planned.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/device/activities.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::kernels {
namespace {

using device::Kind;
using kernels::Matrix;

// Adds up the bytes of kernels without products.
class PassLog : public device::WorkLog {
 public:
  void Product(std::int64_t, std::int64_t, std::int64_t, Dtype, bool) override {}
  void Attention(double, double, Dtype) override {}
  void Pass(double pass) override { bytes += pass; }
  int Start(const device::LoggedTransfer&) override { return 0; }
  void Wait(int) override {}
  void BeginTask(int, int, int) override {}
  void EndTask() override {}

  double bytes = 0;
};

// A planned CPU (parameter false) or GPU.
class PlannedKernels : public testing::TestWithParam<bool> {
 protected:
  device::Stream Stream() {
    return {.gpu = GetParam() ? &gpu_.Context() : nullptr, .planned = &count_, .threads = 3};
  }
  // Operations counted since the last call.
  double Taken() {
    const double flops = count_.flops;
    count_.flops = 0;
    return flops;
  }
  Matrix Of(std::int64_t rows, std::int64_t columns) {
    return kernels::Allocate(arena_, Dtype::kFloat32, rows, columns);
  }
  template <typename T>
  T* Pointer() {
    return static_cast<T*>(arena_.Allocate(1 << 20));
  }

  device::OperationCount count_;

 private:
  const device::Gpu gpu_{device::GpuContext{.name = "a card", .major = 9}};
  device::Arena arena_{std::int64_t{1} << 40, Kind::kPlanned};
};

TEST_P(PlannedKernels, MatricesAreNotEmpty) {
  EXPECT_FALSE(Of(3, 4).Empty());
  EXPECT_FALSE(Of(3, 4).Columns(1, 2).Empty());
}

TEST_P(PlannedKernels, ProductsCountTwoOperationsPerElementAndInnerIndex) {
  constexpr std::int64_t kM = 70'000, kN = 30'000, kK = 513;
  constexpr double kFlops = 2.0 * kM * kN * kK;
  const Matrix c = Of(kM, kN);
  const auto form = [](bool transposed) { return transposed ? Form::kTransposed : Form::kPlain; };
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      const Matrix left = a ? Of(kK, kM) : Of(kM, kK), right = b ? Of(kN, kK) : Of(kK, kN);
      MatrixMultiply(Stream(), form(a), left, form(b), right, c, a);
      EXPECT_EQ(Taken(), kFlops);
    }
  }
}

TEST_P(PlannedKernels, LinearLayersCountTheirProducts) {
  constexpr std::int64_t kRows = 40, kIn = 96, kOut = 56;
  constexpr double kFlops = 2.0 * kRows * kIn * kOut;
  const Matrix x = Of(kRows, kIn), y = Of(kRows, kOut), z = Of(kRows, kOut), bias = Of(1, kOut);
  for (const Form form : {Form::kPlain, Form::kTransposed}) {
    const Matrix weight = form == Form::kPlain ? Of(kIn, kOut) : Of(kOut, kIn);
    const Linear linear{0, form, weight};
    int calls = 0;
    LinearForward(Stream(), linear, x, bias, y, [&](const Part& rows) {
      EXPECT_EQ(rows.Size(), kRows);
      ++calls;
    });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(Taken(), kFlops);
    LinearActivation(Stream(), linear, x, bias, ActivationKind::kGelu, {}, y, z);
    EXPECT_EQ(Taken(), kFlops);
    LinearInputGradient(Stream(), linear, y, x);
    EXPECT_EQ(Taken(), kFlops);
    LinearActivationGradient(Stream(), linear, y, ActivationKind::kGelu, x, {}, x, x);
    EXPECT_EQ(Taken(), kFlops);
    LinearWeightGradient(Stream(), linear, x, y, weight);
    EXPECT_EQ(Taken(), kFlops);
  }
}

// Forward and backward together: 6 heads head_dim (length + 1) per token, as model::FlopsPerToken.
TEST_P(PlannedKernels, WholeAttentionCountsCausalPairs) {
  AttentionShape shape{.sequences = 3, .length = 37, .heads = 6, .kv_heads = 2, .head_dim = 16};
  const Matrix qkv = Of(111, shape.Width()), out = Of(111, 96), lse = Of(111, 6);
  const Matrix scratch = Of(1, 1000);
  const double pair = 6.0 * 16;  // heads head_dim
  AttentionForward(Stream(), shape, qkv, {}, out, lse, scratch);
  const double forward = Taken();
  EXPECT_EQ(forward, 4 * pair * 3 * (37 * 38 / 2));
  AttentionBackward(Stream(), shape, qkv, {}, out, out, lse, qkv, scratch);
  EXPECT_EQ(forward + Taken(), 6 * pair * (37 + 1) * 111);
  shape.causal = false;
  AttentionForward(Stream(), shape, qkv, {}, out, lse, scratch);
  EXPECT_EQ(Taken(), 4 * pair * 3 * 37 * 37);
}

// Pairs counted one by one; the parts of all ranks are together those of whole sequences.
TEST_P(PlannedKernels, PartsOfAttentionCountWhatTheirQueriesSee) {
  constexpr std::int64_t kLength = 53;
  constexpr int kRanks = 3;
  const Matrix m = Of(200, 200);
  double all = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Positions queries = PositionsOf(kLength, rank, kRanks);
    const AttentionShape shape{.sequences = 2,
                               .length = queries.Count(),
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 8,
                               .positions = queries};
    for (int other = 0; other < kRanks; ++other) {
      const KeyValueBlock block{PositionsOf(kLength, other, kRanks), m};
      double pairs = 0;
      for (std::int64_t q = 0; q < queries.Count(); ++q) {
        for (std::int64_t k = 0; k < block.positions.Count(); ++k) {
          if (block.positions.At(k) <= queries.At(q)) ++pairs;
        }
      }
      const Part tasks{1, 4};  // of 2 sequences of 2 key/value heads
      AttentionPartForward(Stream(), shape, tasks, m, block, {}, m, m, m);
      EXPECT_EQ(Taken(), 4 * 8 * (3 * 2) * pairs) << rank << " sees " << other;
      AttentionPartBackward(Stream(), shape, tasks, m, block, {}, m, m, m, m, m, m);
      EXPECT_EQ(Taken(), 8 * 8 * (3 * 2) * pairs) << rank << " sees " << other;
      all += pairs;
    }
    AttentionPartStart(Stream(), m, m);
    AttentionPartStartBackward(Stream(), shape, m, m);
  }
  EXPECT_EQ(all, kLength * (kLength + 1) / 2);
  EXPECT_EQ(Taken(), 0);
}

TEST_P(PlannedKernels, TheVocabularyCountsThreeProducts) {
  const Matrix x = Of(100, 64), weight = Of(5000, 64), scratch = Of(1, 1 << 20);
  const VocabularyTile tile{.x = x,
                            .weight = weight,
                            .targets = Pointer<std::int32_t>(),
                            .vocabulary = 10'000,
                            .gradient = true};
  auto* const numbers = Pointer<double>();
  VocabularyStatistics(Stream(), tile, scratch, numbers);
  EXPECT_EQ(Taken(), 2.0 * 100 * 5000 * 64);
  VocabularyLosses(Stream(), tile, numbers, 2, numbers);
  EXPECT_EQ(Taken(), 0);
  VocabularyGradient(Stream(), tile, scratch, numbers, 2, x, weight);
  EXPECT_EQ(Taken(), 4.0 * 100 * 5000 * 64);
}

// Logits are read for the statistics, read and written for the gradient; a GPU reads them once
// where a row is the whole vocabulary and short enough (28,672 in fp32).
TEST_P(PlannedKernels, LogitsAreReadOnceWhereARowIsTheVocabulary) {
  const auto bytes = [&](std::int64_t slice, std::int64_t vocabulary) {
    PassLog log;
    count_.log = &log;
    const Matrix x = Of(10, 64), weight = Of(slice, 64), scratch = Of(1, 10 * slice);
    const VocabularyTile tile{.x = x,
                              .weight = weight,
                              .targets = Pointer<std::int32_t>(),
                              .vocabulary = vocabulary,
                              .gradient = true};
    VocabularyStatistics(Stream(), tile, scratch, Pointer<double>());
    VocabularyGradient(Stream(), tile, scratch, Pointer<double>(), 1, x, weight);
    count_.log = nullptr;
    return log.bytes / (4.0 * 10 * static_cast<double>(slice));
  };
  EXPECT_EQ(bytes(28'672, 28'672), GetParam() ? 2 : 3);
  EXPECT_EQ(bytes(28'673, 28'673), 3);
  EXPECT_EQ(bytes(5000, 10'000), 3);
}

// An access would end the program.
TEST_P(PlannedKernels, PassesTouchNothing) {
  const Matrix x = Of(40, 64), wide = Of(40, 128), row = Of(1, 64), statistics = Of(40, 2);
  const Matrix scratch = Of(kReductionBlocks, 128);
  const Dropout dropout{.probability = 0.1, .ordinals = Pointer<std::uint64_t>(), .length = 20};
  AddBias(Stream(), x, row);
  ResidualForward(Stream(), x, x, row, dropout, x);
  Clear(Stream(), x);
  Copy(Stream(), x, x);
  Add(Stream(), x, x);
  ActivationForward(Stream(), ActivationKind::kSwiglu, wide, {}, dropout, x);
  ActivationBackward(Stream(), ActivationKind::kSwiglu, wide, dropout, x, wide);
  DropoutForward(Stream(), x, dropout, x);
  const auto* const tokens = Pointer<std::int32_t>();
  EmbeddingForward(Stream(), tokens, 0, x, 1, x);
  EmbeddingBackward(Stream(), tokens, 0, 1, x, x);
  PositionForward(Stream(), x, nullptr, dropout, x);
  PositionBackward(Stream(), nullptr, dropout, x, x);
  NormForward(Stream(), NormKind::kLayerNorm, x, row, row, 1e-5, x, statistics);
  ResidualNormForward(Stream(), NormKind::kRmsNorm, x, x, {}, dropout, x, row, {}, 1e-5, x,
                      statistics);
  NormBackward(Stream(), {.dy = x, .x = x, .weight = row, .statistics = statistics, .dx = x});
  NormBackwardWeight(Stream(), x, x, statistics, row, row, scratch);
  ColumnSum(Stream(), x, row, scratch);
  Rope(Stream(), {.sequences = 2, .length = 20, .heads = 2, .kv_heads = 1, .head_dim = 16}, x,
       false, x);
  auto* const numbers = Pointer<double>();
  CrossEntropy(Stream(), x, tokens, {}, true, numbers);
  SoftmaxStatistics(Stream(), x, tokens, 0, numbers);
  CrossEntropySlice(Stream(), x, tokens, 0, 64, {}, true, numbers, 1, 0, numbers);
  EXPECT_EQ(Taken(), 0);
}

TEST_P(PlannedKernels, UpdatesTouchNothingAndSumsAreZero) {
  float* const values = Pointer<float>();
  const UpdateRange update{100, 0.1, values, values, values, values, nullptr};
  const FlatRange range{100, values};
  const auto* const scalars = Pointer<UpdateScalars>();
  AdamW(Stream(), Dtype::kFloat32, {&update, 1}, scalars, true);
  GradientDescent(Stream(), Dtype::kFloat32, {&update, 1}, scalars, true);
  EXPECT_EQ(SquareSum(Stream(), Dtype::kFloat32, {&range, 1}), 0);
  SquareSums(Stream(), Dtype::kFloat32, {&range, 1}, Pointer<double>());
  ExactSum sum;
  ExactSquareSum(Stream(), Dtype::kFloat32, {&range, 1}, sum);
  EXPECT_EQ(sum.Value(), 0);
  Accumulate(Stream(), Dtype::kFloat32, 100, values, values);
  Convert(Stream(), 100, Dtype::kFloat32, values, Dtype::kBfloat16, values);
  EXPECT_EQ(Taken(), 0);
}

TEST_P(PlannedKernels, ScratchIsThatOfThePlannedDevice) {
  const AttentionShape shape{
      .sequences = 2, .length = 100, .heads = 4, .kv_heads = 2, .head_dim = 16};
  const std::int64_t attention = AttentionScratch(Stream(), shape, Dtype::kFloat32, false);
  const std::int64_t part = AttentionPartScratch(Stream(), shape, 50, Dtype::kFloat32, false);
  const std::int64_t vocabulary = VocabularyScratch(Stream(), 512, 1000, 64, true);
  const std::int64_t tokens = VocabularyTileTokens(Stream(), 1 << 20, 1000, Dtype::kFloat32);
  if (GetParam()) {  // rows of logits in units of 64; attention keeps a number per row and head
    EXPECT_EQ(attention, 2 * 100 * 4);
    EXPECT_EQ(part, 2 * 100 * 4 + 2 * 100 * 64);
    EXPECT_EQ(vocabulary, 512 * 1024);
    EXPECT_EQ(tokens, 8192);
    EXPECT_EQ(VocabularySpareRows(Stream(), 1000), 24);
  } else {
    EXPECT_EQ(attention, AttentionScratch({.threads = 3}, shape, Dtype::kFloat64, true));
    EXPECT_EQ(part, AttentionPartScratch({.threads = 3}, shape, 50, Dtype::kFloat64, true));
    EXPECT_EQ(vocabulary, VocabularyScratch({.threads = 3}, 512, 1000, 64, true));
    EXPECT_EQ(tokens, kVocabularyTileTokens);
    EXPECT_EQ(VocabularySpareRows(Stream(), 1000), 0);
  }
}

// fp8: 3 roles of 10 layers and of 2 operands outside of training have 6 numbers of 4 bytes; then
// two operands, and weights in two forms.
TEST_P(PlannedKernels, LibrariesTakeTheMemoryOfFp8) {
  device::Stream stream = Stream();
  const std::int64_t before = device::PlannedBytes();
  {
    const std::unique_ptr<Libraries> without = MakeLibraries(stream, 10);
    EXPECT_EQ(without != nullptr, GetParam());
    if (without != nullptr) without->Reserve(1000);
    EXPECT_EQ(device::PlannedBytes(), before);
  }
  if (!GetParam()) return;
  stream.fp8 = true;
  {
    const std::unique_ptr<Libraries> libraries = MakeLibraries(stream, 10);
    EXPECT_EQ(device::PlannedBytes() - before, 896);  // 864, rounded up to 128
    libraries->Reserve(1000);
    EXPECT_EQ(device::PlannedBytes() - before, 896 + 2 * 1024);
    libraries->Reserve(500);
    EXPECT_EQ(device::PlannedBytes() - before, 896 + 2 * 1024);
    const Matrix weight{nullptr, Dtype::kBfloat16, 48, 64, 64};
    const std::vector<Linear> layers(3, {.site = 0, .weight = weight});
    libraries->KeepWeights(layers);
    EXPECT_EQ(device::PlannedBytes() - before, 896 + 2 * 1024 + KeptWeightBytes(layers));
    EXPECT_EQ(KeptWeightBytes(layers), 3 * 2 * 48 * 64);
    EXPECT_TRUE(libraries->Sealed());
    EXPECT_TRUE(libraries->Scaled());
    EXPECT_TRUE(libraries->Largest().empty());
  }
  EXPECT_EQ(device::PlannedBytes(), before);
}

INSTANTIATE_TEST_SUITE_P(Device, PlannedKernels, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "gpu" : "cpu"); });

}  // namespace
}  // namespace trireme::kernels
