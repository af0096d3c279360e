// Heuristics of the emulated cuBLASLt that refuse epilogues: the same problems each time.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>

#include "emulator/cublaslt_refusal.hpp"
#include "emulator_testing.hpp"

namespace {

using namespace emulator_test;

constexpr int kProblems = 200;

// Proposals for [rows, 16] = [rows, 8] [8, 16], with an epilogue; 0 if the library has none.
int Proposals(cublasLtHandle_t handle, std::uint64_t rows, cublasLtEpilogue_t epilogue) {
  const Array<float> bias(kProblems);
  const void* const at = bias.Data();
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulPreference_t wish = nullptr;
  cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                 sizeof epilogue);
  cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at, sizeof at);
  cublasLtMatrixLayoutCreate(&a, CUDA_R_32F, rows, 8, static_cast<std::int64_t>(rows));
  cublasLtMatrixLayoutCreate(&b, CUDA_R_32F, 8, 16, 8);
  cublasLtMatrixLayoutCreate(&c, CUDA_R_32F, rows, 16, static_cast<std::int64_t>(rows));
  cublasLtMatmulPreferenceCreate(&wish);
  cublasLtMatmulHeuristicResult_t results[4];
  int count = -1;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, product, a, b, c, c, wish, 4, results, &count);
  EXPECT_TRUE(status == CUBLAS_STATUS_SUCCESS || count == 0);
  cublasLtMatmulPreferenceDestroy(wish);
  for (const cublasLtMatrixLayout_t layout : {a, b, c}) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(product);
  return count;
}

std::vector<bool> Refused(std::uint64_t percent, cublasLtEpilogue_t epilogue) {
  cublasLtHandle_t handle = nullptr;
  EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  emulator::cublaslt::RefuseEpilogues(percent);
  std::vector<bool> refused;
  for (int rows = 1; rows <= kProblems; ++rows) {
    refused.push_back(Proposals(handle, static_cast<std::uint64_t>(rows), epilogue) == 0);
  }
  emulator::cublaslt::RefuseEpilogues(0);
  cublasLtDestroy(handle);
  return refused;
}

TEST(Heuristics, RefuseAPartOfTheEpilogues) {
  const std::vector<bool> none(kProblems, false), all(kProblems, true);
  EXPECT_EQ(Refused(0, CUBLASLT_EPILOGUE_BIAS), none);
  EXPECT_EQ(Refused(100, CUBLASLT_EPILOGUE_BIAS), all);
  EXPECT_EQ(Refused(100, CUBLASLT_EPILOGUE_DEFAULT), none);
  const std::vector<bool> half = Refused(50, CUBLASLT_EPILOGUE_BIAS);
  const auto count = std::count(half.begin(), half.end(), true);
  EXPECT_GT(count, kProblems * 35 / 100);
  EXPECT_LT(count, kProblems * 65 / 100);
  EXPECT_EQ(Refused(50, CUBLASLT_EPILOGUE_BIAS), half);
  EXPECT_NE(Refused(50, CUBLASLT_EPILOGUE_RELU_BIAS), half);
}

}  // namespace
