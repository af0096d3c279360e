// Products as cuBLASLt describes them.
#include "cuda/products_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.hpp"

namespace trireme::kernels::cuda {

namespace {

const char* NameOf(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_64F:
      return "fp64";
    case CUDA_R_8F_E4M3:
      return "e4m3";
    case CUDA_R_8F_E5M2:
      return "e5m2";
    default:
      return "fp32";
  }
}

const char* NameOf(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kBias:
      return "bias";
    case Epilogue::kRelu:
      return "relu";
    case Epilogue::kReluBias:
      return "relu_bias";
    case Epilogue::kGelu:
      return "gelu_aux";
    case Epilogue::kGeluBias:
      return "gelu_aux_bias";
    case Epilogue::kGeluGradient:
      return "dgelu";
    default:
      return "none";
  }
}

cublasLtEpilogue_t LibraryEpilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kRelu:
      return CUBLASLT_EPILOGUE_RELU;
    case Epilogue::kReluBias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
    case Epilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kGeluBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    default:
      return CUBLASLT_EPILOGUE_DEFAULT;
  }
}

bool IsFp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

// The library supposes 256 bytes unless it is told otherwise.
std::uint32_t AlignmentOf(const void* address) {
  constexpr std::uintptr_t kEnough = 256;
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | kEnough;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

Layout MakeLayout(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                  std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  Check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), stride),
        "the layout of a matrix");
  return Layout(layout);
}

Operation MakeOperation(const ProductKey& key) {
  const bool fp64 = key.a_type == CUDA_R_64F;
  cublasLtMatmulDesc_t description = nullptr;
  // COMPUTE_32F keeps fp32 operands whole: TF32 has to be asked for.
  Check(cublasLtMatmulDescCreate(&description, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                 fp64 ? CUDA_R_64F : CUDA_R_32F),
        "a matrix product");
  Operation operation(description);
  const auto transposition = [](Form form) {
    return form == Form::kPlain ? CUBLAS_OP_N : CUBLAS_OP_T;
  };
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transposition(key.b_form));
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transposition(key.a_form));
  Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, LibraryEpilogue(key.epilogue));
  if (key.aux_stride > 0) Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.aux_stride);
  if (key.fast_sums) Set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  return operation;
}

}  // namespace

cudaDataType_t TypeOf(Dtype dtype) {
  return dtype == Dtype::kBfloat16  ? CUDA_R_16BF
         : dtype == Dtype::kFloat64 ? CUDA_R_64F
                                    : CUDA_R_32F;
}

Product MakeProduct(Form form_a, const Matrix& a, Form form_b, const Matrix& b,
                    const Matrix& c, bool accumulate) {
  if (a.dtype != b.dtype || (c.dtype != a.dtype && c.dtype != SumTypeOf(a.dtype))) {
    throw RunError(fmt::format("a matrix product of {} and {} into {}", trireme::NameOf(a.dtype),
                               trireme::NameOf(b.dtype), trireme::NameOf(c.dtype)),
                   "This is a bug in Trireme.");
  }
  Product product;
  product.a = {a.data, TypeOf(a.dtype), form_a, a.stride};
  product.b = {b.data, TypeOf(b.dtype), form_b, b.stride};
  product.c = c.data;
  product.c_type = TypeOf(c.dtype);
  product.rows = c.rows;
  product.columns = c.columns;
  product.inner = form_a == Form::kPlain ? a.columns : a.rows;
  product.c_stride = c.stride;
  product.accumulate = accumulate;
  return product;
}

ProductKey::ProductKey(const Product& product)
    : a_type(product.a.type),
      b_type(product.b.type),
      c_type(product.c_type),
      a_form(product.a.form),
      b_form(product.b.form),
      rows(product.rows),
      columns(product.columns),
      inner(product.inner),
      a_stride(product.a.stride),
      b_stride(product.b.stride),
      c_stride(product.c_stride),
      aux_stride(product.aux_stride),
      a_aligned(AlignmentOf(product.a.data)),
      b_aligned(AlignmentOf(product.b.data)),
      c_aligned(AlignmentOf(product.c)),
      bias_aligned(AlignmentOf(product.bias)),
      aux_aligned(AlignmentOf(product.aux)),
      accumulate(product.accumulate),
      fast_sums(product.fast_sums),
      epilogue(product.epilogue) {}

std::string ProductKey::Text() const {
  const auto letter = [](Form form) { return form == Form::kPlain ? 'n' : 't'; };
  std::string text =
      fmt::format("{} x {} {} {}, {}{}, {} x {} x {}, strides {} {} {}, aligned {} {} {}",
                  cuda::NameOf(a_type), cuda::NameOf(b_type), accumulate ? "+>" : "->",
                  cuda::NameOf(c_type), letter(a_form), letter(b_form), rows, columns, inner,
                  a_stride, b_stride, c_stride, a_aligned, b_aligned, c_aligned);
  if (fast_sums) text += ", fast";
  if (epilogue != Epilogue::kNone) {
    text +=
        fmt::format(", {} {} {} {}", cuda::NameOf(epilogue), bias_aligned, aux_stride, aux_aligned);
  }
  return text;
}

Plan::Plan(const Product& product) : key_(product), operation_(MakeOperation(key_)) {
  const auto layout = [](cudaDataType_t type, Form form, std::int64_t rows, std::int64_t columns,
                         std::int64_t stride) {
    return form == Form::kPlain ? MakeLayout(type, rows, columns, stride)
                                : MakeLayout(type, columns, rows, stride);
  };
  first_ = layout(key_.b_type, key_.b_form, key_.columns, key_.inner, key_.b_stride);
  second_ = layout(key_.a_type, key_.a_form, key_.inner, key_.rows, key_.a_stride);
  result_ = MakeLayout(key_.c_type, key_.columns, key_.rows, key_.c_stride);
  SetPointers(product);  // pointers' alignment decides which algorithms are proposed
}

void Plan::SetPointers(const Product& product) const {
  if (product.bias != nullptr) Set(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  if (product.aux != nullptr) {
    Set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux);
  }
  if (!IsFp8(key_.a_type)) return;
  Set(operation_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.b.scale);
  Set(operation_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a.scale);
}

int Plan::Propose(cublasLtHandle_t handle, std::int64_t workspace, int most,
                  cublasLtMatmulHeuristicResult_t* proposals) const {
  cublasLtMatmulPreference_t created = nullptr;
  Check(cublasLtMatmulPreferenceCreate(&created), "a preference among algorithms");
  const Preference preference(created);
  Set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace));
  // If the inner dimension is cut, a separate kernel adds up the parts, in fp32: neither in the
  // order in which blocks arrive nor rounded to bf16 in between.
  Set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key_.b_aligned);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key_.a_aligned);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key_.c_aligned);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key_.c_aligned);
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, operation_.get(), first_.get(), second_.get(), result_.get(), result_.get(),
      preference.get(), most, proposals, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return 0;
  Check(status, "the choice of an algorithm");
  const auto usable = [](const auto& proposal) { return proposal.state == CUBLAS_STATUS_SUCCESS; };
  return static_cast<int>(std::stable_partition(proposals, proposals + count, usable) - proposals);
}

bool Plan::Admits(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                  std::int64_t workspace) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle, operation_.get(), first_.get(), second_.get(),
                                 result_.get(), result_.get(), &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         static_cast<std::int64_t>(result.workspaceSize) <= workspace;
}

cublasStatus_t Plan::Run(cublasLtHandle_t handle, const device::GpuContext& gpu,
                         const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                         bool trial) const {
  SetPointers(product);
  const auto run = [&](auto one) {
    const decltype(one) zero = 0;
    const decltype(one) factor =
        trial && key_.accumulate ? std::numeric_limits<decltype(one)>::min() : one;
    return cublasLtMatmul(handle, operation_.get(), &factor, product.b.data, first_.get(),
                          product.a.data, second_.get(), key_.accumulate ? &one : &zero, product.c,
                          result_.get(), product.c, result_.get(), &algorithm, gpu.workspace,
                          static_cast<std::size_t>(gpu.workspace_bytes),
                          static_cast<cudaStream_t>(gpu.queue));
  };
  return key_.a_type == CUDA_R_64F ? run(1.0) : run(1.0F);
}

}  // namespace trireme::kernels::cuda
