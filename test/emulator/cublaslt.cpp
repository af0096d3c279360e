// The emulated cuBLASLt: descriptions, algorithms, and products as operations of a stream.
#include "cublasLt.h"

#include <fmt/format.h>

#include <algorithm>

#include "cublaslt_checks.hpp"
#include "cublaslt_refusal.hpp"

namespace emulator::cublaslt {

namespace {

template <typename Object, typename... Fields>
cublasStatus_t Create(Object** object, const Fields&... fields) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *object = new Object{fields...};
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Field>
cublasStatus_t Assign(Field& field, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

}  // namespace emulator::cublaslt

using namespace emulator::cublaslt;  // NOLINT(google-build-using-namespace): the C API below

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }
std::size_t cublasLtGetVersion() { return 120400; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  emulator::RefuseAfterFinalize();
  int device = 0;
  cudaDeviceProp properties{};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  return Create(handle, device, properties.major);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  emulator::RefuseAfterFinalize();
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t ld) {
  emulator::RefuseAfterFinalize();
  return Create(layout, type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns),
                ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  emulator::RefuseAfterFinalize();
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  emulator::RefuseAfterFinalize();
  return Create(description, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  emulator::RefuseAfterFinalize();
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Assign(description->a_form, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Assign(description->b_form, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Assign(description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Assign(description->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Assign(description->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Assign(description->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return Assign(description->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return Assign(description->b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return Assign(description->fast, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  emulator::RefuseAfterFinalize();
  return Create(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  emulator::RefuseAfterFinalize();
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Assign(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Assign(preference->schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Assign(preference->a_aligned, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Assign(preference->b_aligned, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Assign(preference->c_aligned, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Assign(preference->d_aligned, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  emulator::RefuseAfterFinalize();
  *returned = 0;
  const Product p = Describe(*description, *a, *b, *c, *d);
  if (requested < 1 || !Fits(p, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!Supported(*handle, *description, p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && IsRefused(Hash(p))) {
    // The library may say so either way.
    return p.m % 2 == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  const auto& wish = *preference;
  // Each alignment is a power of two up to 256, so its half fits a byte.
  const std::uint64_t alignments = wish.a_aligned / 2 | std::uint64_t{wish.b_aligned / 2} << 8 |
                                   std::uint64_t{wish.c_aligned / 2} << 16 |
                                   std::uint64_t{wish.d_aligned / 2} << 24;
  const auto propose = [&](std::uint64_t pieces, cublasLtReductionScheme_t scheme) {
    const std::size_t workspace = WorkspaceOf(p, pieces);
    const auto allowed = static_cast<std::uint32_t>(scheme);
    if (*returned == requested || workspace > wish.workspace ||
        (wish.schemes & allowed) != allowed || static_cast<std::int64_t>(pieces) > p.k) {
      return;
    }
    const std::uint64_t in_place = scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE ? 1 : 0;
    results[(*returned)++] = {
        {{kMagic, pieces, in_place, Hash(p), alignments}}, workspace, CUBLAS_STATUS_SUCCESS, 1, {}};
  };
  propose(4, CUBLASLT_REDUCTION_SCHEME_INPLACE);
  propose(1, CUBLASLT_REDUCTION_SCHEME_NONE);
  propose(2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  propose(3, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  return *returned > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Product p = Describe(*description, *a, *b, *c, *d);
  if (!Fits(p, *a, *b, *c, *d) || algorithm == nullptr || algorithm->data[kTag] != kMagic ||
      algorithm->data[kProblem] != Hash(p)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!Supported(*handle, *description, p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = WorkspaceOf(p, algorithm->data[kPieces]);
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  emulator::RefuseAfterFinalize();
  cublasLtMatmulHeuristicResult_t checked{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, description, a_layout, b_layout,
                                                        c_layout, d_layout, algorithm, &checked);
  if (status != CUBLAS_STATUS_SUCCESS)
    return Refuse(status, "the algorithm is not for this product");
  Product p = Describe(*description, *a_layout, *b_layout, *c_layout, *d_layout);
  const auto number = [&](const void* value) {
    return description->scale == CUDA_R_64F ? *static_cast<const double*>(value)
                                            : double{*static_cast<const float*>(value)};
  };
  p.alpha = number(alpha);
  p.beta = number(beta);
  p.a = a;
  p.b = b;
  p.c = c;
  p.d = d;
  p.bias = description->bias;
  p.aux = description->aux;
  p.a_scale = description->a_scale;
  p.b_scale = description->b_scale;
  p.pieces = static_cast<int>(algorithm->data[kPieces]);
  p.in_place = algorithm->data[kInPlace] != 0;
  p.workspace = workspace;
  p.workspace_bytes = checked.workspaceSize;
  const auto aligned = [&](int which, const void* pointer) {
    const auto half = algorithm->data[kAlignments] >> (8 * which) & 0xff;
    return Alignment(pointer) / 2 >= half;
  };
  if (!aligned(0, a) || !aligned(1, b) || !aligned(2, c) || !aligned(3, d)) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "an operand is not aligned as it was said to be");
  }
  if (p.workspace_bytes > workspace_bytes ||
      (p.workspace_bytes > 0 &&
       (Alignment(workspace) < 256 || !emulator::IsDeviceMemory(workspace, workspace_bytes)))) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "the workspace is too small, or no device memory");
  }
  if (const char* what = WrongOperand(p, *a_layout, *b_layout)) {
    return Refuse(CUBLAS_STATUS_EXECUTION_FAILED,
                  fmt::format("{} does not lie in one allocation of device memory", what));
  }
  const auto run = [p] {
    Compute(p);
    return true;
  };
  const emulator::Label label = {.kind = emulator::Label::Kind::kKernel,
                                 .name = "emulated_gemm_128x64_execute_kernel__cublas"};
  return emulator::Enqueue(stream, run, label) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                              : CUBLAS_STATUS_EXECUTION_FAILED;
}
