// Attention on tensor cores (bf16 in whole vectors) against the CPU's in fp64: head sizes, lengths
// at and around the edges of tiles, groups of heads, dropout, documents, padding; in the emulator
// without bank conflicts.
#include "attention_testing.hpp"

#ifdef TRIREME_EMULATED
#include "emulator/matrix.hpp"
#endif

namespace trireme::test {
namespace {

using kernels::AttentionShape;

constexpr Dtype kAttentionMatrixType = Dtype::kBfloat16;

class MatrixAttentionTest : public AttentionOnGpu {
 protected:
  void Compare(const AttentionProblem& problem) const {
    ExpectNear(problem,
               RunOwnAttention(Stream(), problem, kAttentionMatrixType, Layout::kAligned).values,
               problem.OnCpu(), ToleranceOf(kAttentionMatrixType),
               Describe(problem, kAttentionMatrixType));
  }
};

TEST_F(MatrixAttentionTest, HeadSizes) {
  for (const std::int64_t head_dim : {8, 24, 32, 40, 64, 72, 80, 96, 128, 160, 192, 256}) {
    for (const double probability : {0.0, 0.2}) {
      Compare(AttentionProblem({1, 97, 2, 1, head_dim}, probability));
    }
  }
}

TEST_F(MatrixAttentionTest, Lengths) {
  for (const std::int64_t length : {65, 127, 128, 129, 192, 300}) {
    Compare(AttentionProblem({2, length, 2, 1, 64}, 0.1));
    Compare(AttentionProblem({1, length, 1, 1, 128}, 0));
  }
  Compare(AttentionProblem({1, 1100, 1, 1, 32}, 0.1));
}

TEST_F(MatrixAttentionTest, Groups) {
  for (const std::int64_t kv_heads : {1, 2, 3, 6}) {
    Compare(AttentionProblem({2, 70, 6, kv_heads, 32, 7}, 0.3));
  }
}

TEST_F(MatrixAttentionTest, WithoutCausality) {
  for (const std::int64_t head_dim : {32, 64, 128, 256}) {
    AttentionShape shape = {2, 100, 2, 1, head_dim};
    shape.causal = false;
    Compare(AttentionProblem(shape, 0.2));
  }
}

TEST_F(MatrixAttentionTest, DocumentsAndDropout) {
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t mean : {3, 40, 200}) {
      AttentionProblem problem({1, 260, 2, 1, head_dim}, 0.2);
      problem.begins = RandomBegins(1, 260, mean, 9);
      Compare(problem);
    }
  }
}

TEST_F(MatrixAttentionTest, Padding) {
  for (const bool causal : {false, true}) {
    AttentionShape shape = {4, 140, 2, 2, 64};
    shape.causal = causal;
    AttentionProblem problem(shape, 0.2);
    problem.key_lengths = {140, 64, 65, 1};
    Compare(problem);
  }
}

TEST_F(MatrixAttentionTest, TheSameBitsTwice) {
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionProblem problem({2, 300, 4, 2, head_dim}, 0.1);
    EXPECT_EQ(RunOwnAttention(Stream(), problem, kAttentionMatrixType, Layout::kAligned).bits,
              RunOwnAttention(Stream(), problem, kAttentionMatrixType, Layout::kAligned).bits);
  }
}

#ifdef TRIREME_EMULATED
TEST_F(MatrixAttentionTest, LoadsWithoutBankConflicts) {
  const emulator::MatrixLoads before = emulator::CountedMatrixLoads();
  for (const std::int64_t head_dim : {32, 64, 128, 256}) {
    RunOwnAttention(Stream(), AttentionProblem({1, 150, 2, 1, head_dim}, 0.1), kAttentionMatrixType,
                    Layout::kAligned);
  }
  const emulator::MatrixLoads after = emulator::CountedMatrixLoads();
  EXPECT_GT(after.turns, before.turns);
  EXPECT_EQ(after.more, before.more);
}
#endif

}  // namespace
}  // namespace trireme::test
