// Tensor cores and copies beside the thread: products against a plain loop, bank conflicts, and
// that a missing wait or a swapped operand shows.
#include "emulator/matrix.hpp"

#include <cmath>
#include <cstring>

#include "emulator/mutation.hpp"
#include "emulator_testing.hpp"
#include "trireme/device/cuda/matrix.cuh"

namespace {

using namespace emulator_test;
using namespace trireme::device::cuda;

constexpr int kRows = 16, kInner = 16, kColumns = 8, kPiece = 8;

enum class Fault { kNone, kSwapped, kNoWait };

// y [16, 8] = x [16, 16] w^T, w [8, 16], each row in two pieces; rows of shared memory are `row`
// elements apart. kTransposed: w is [16, 8], and y = x w.
template <Fault kFault, bool kTransposed>
__global__ void ProductKernel(const __nv_bfloat16* x, const __nv_bfloat16* w, float* y, int row) {
  auto* const shared = static_cast<__nv_bfloat16*>(emulator::DynamicSharedMemory());
  __nv_bfloat16* const other = shared + kRows * row;
  const int lane = static_cast<int>(threadIdx.x);
  CopyAsync(shared + lane / 2 * row + lane % 2 * kPiece, x + lane * kPiece, true);
  const int pieces = kTransposed ? 1 : 2;
  if (lane < 16) {
    CopyAsync(other + lane / pieces * row + lane % pieces * kPiece, w + lane * kPiece, true);
  }
  CommitCopies();
  if (kFault != Fault::kNoWait) WaitForCopies<0>();
  __syncwarp();
  unsigned a[4], b[4];
  LoadMatrices(shared + lane % 16 * row + lane / 16 * kPiece, a);
  if (kTransposed) {
    LoadMatricesTransposed(other + lane % 16 * row, b);
  } else {
    LoadMatrices(other + lane % 8 * row + lane / 8 % 2 * kPiece, b);
  }
  float d[4] = {};
  if (kFault == Fault::kSwapped) std::swap(a[1], a[2]);
  MultiplyMatrices(a, b[0], b[1], d);
  for (int i = 0; i < 4; ++i) y[(lane / 4 + i / 2 * 8) * kColumns + lane % 4 * 2 + i % 2] = d[i];
  if (kFault == Fault::kNoWait) WaitForCopies<0>();
}

std::vector<__nv_bfloat16> Numbers(int count, int factor) {
  std::vector<__nv_bfloat16> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i * factor % 23 - 11));
  return values;
}

// Largest difference to the plain product; infinite where anything is no number.
template <Fault kFault, bool kTransposed>
double ProductError(int row) {
  const auto x = Numbers(kRows * kInner, 7), w = Numbers(kInner * kColumns, 5);
  const Stream stream;
  const Array<__nv_bfloat16> left(x), right(w);
  const Array<float> product(kRows * kColumns);
  Launch(stream, ProductKernel<kFault, kTransposed>, dim3(1), dim3(32),
         static_cast<std::size_t>(2 * kRows * row) * sizeof(__nv_bfloat16), left.Data(),
         right.Data(), product.Data(), row);
  stream.Synchronize();
  const std::vector<float> y = product.Values();
  double worst = 0;
  for (int i = 0; i < kRows * kColumns; ++i) {
    float sum = 0;
    for (int k = 0; k < kInner; ++k) {
      const int column = i % kColumns;
      const int at = kTransposed ? k * kColumns + column : column * kInner + k;
      sum += static_cast<float>(x[static_cast<std::size_t>(i / kColumns * kInner + k)]) *
             static_cast<float>(w[static_cast<std::size_t>(at)]);
    }
    const double error = std::fabs(y[static_cast<std::size_t>(i)] - sum);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

TEST(EmulatedMatrices, ProductsAreThoseOfAPlainLoop) {
  EXPECT_EQ((ProductError<Fault::kNone, false>(16)), 0);
  EXPECT_EQ((ProductError<Fault::kNone, true>(16)), 0);
}

TEST(EmulatedMatrices, ASwappedOperandShows) {
  EXPECT_GT((ProductError<Fault::kSwapped, false>(16)), 1);
}

TEST(EmulatedMatrices, AMissingWaitShows) {
  EXPECT_EQ((ProductError<Fault::kNoWait, false>(16)), INFINITY);
  emulator::Omit(emulator::Mutation::kCopyWait, 0);
  EXPECT_DEATH((ProductError<Fault::kNone, false>(16)),
               "ends with . copies to shared memory under way");
  emulator::Omit(emulator::Mutation::kCopyWait, -1);
}

// Rows 32 bytes apart meet in a bank every fourth row, rows of 144 bytes nowhere.
TEST(EmulatedMatrices, BankConflictsAreCounted) {
  const auto more = [](int row) {
    const std::int64_t before = emulator::CountedMatrixLoads().more;
    ProductError<Fault::kNone, false>(row);
    return emulator::CountedMatrixLoads().more - before;
  };
  EXPECT_EQ(more(16), 8);
  EXPECT_EQ(more(72), 0);
}

__global__ void CrookedKernel(float* y) {
  auto* const shared = static_cast<char*>(emulator::DynamicSharedMemory());
  unsigned a[4];
  LoadMatrices(shared + 8, a);
  y[0] = static_cast<float>(a[0]);
}

TEST(EmulatedMatrices, RowsOnOtherBoundariesAreRefused) {
  const auto run = [] {
    const Stream stream;
    const Array<float> y(1);
    Launch(stream, CrookedKernel, dim3(1), dim3(32), 256, y.Data());
    stream.Synchronize();
  };
  EXPECT_DEATH(run(), "not on a boundary of 16 bytes");
}

}  // namespace
