// One matrix product of a GPU: its operands, its key (all properties that an algorithm may depend
// on), and its description for cuBLASLt.
#ifndef TRIREME_SRC_KERNELS_CUDA_PRODUCTS_PLAN_HPP_
#define TRIREME_SRC_KERNELS_CUDA_PRODUCTS_PLAN_HPP_

#include <compare>
#include <cstdint>
#include <string>

#include "cuda/products_library.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/kernels/matrix_multiply.hpp"

namespace trireme::kernels::cuda {

cudaDataType_t TypeOf(Dtype dtype);

// Operation on the sums before they are stored.
enum class Epilogue {
  kNone,
  kBias,          // + bias
  kRelu,          // relu(sum)
  kReluBias,      // relu(sum + bias)
  kGelu,          // aux = sum, gelu(aux)
  kGeluBias,      // aux = sum + bias, gelu(aux)
  kGeluGradient,  // sum gelu'(aux)
};

// A matrix in memory: row-major, `stride` elements from row to row.
struct Operand {
  const void* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;
  Form form = Form::kPlain;
  std::int64_t stride = 0;
  const float* scale = nullptr;  // of fp8, on the GPU: factor of stored values
};

// c = form_a(a) form_b(b), or c += ; c: [rows, columns], with `inner` products per element; no
// dimension is 0.
struct Product {
  Operand a, b;
  void* c = nullptr;
  cudaDataType_t c_type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0, inner = 0, c_stride = 0;
  bool accumulate = false;
  Epilogue epilogue = Epilogue::kNone;
  const void* bias = nullptr;  // [columns], of c's type
  void* aux = nullptr;         // [rows, columns], of c's type
  std::int64_t aux_stride = 0;
  bool fast_sums = false;  // of fp8: sums stay in the tensor cores, with some 14 bits
};

// The product of two matrices, not yet with an epilogue.
Product MakeProduct(Form form_a, const Matrix& a, Form form_b, const Matrix& b,
                    const Matrix& c, bool accumulate);

// All properties that an algorithm may depend on. Alignments are in bytes, those of 256 and more
// alike.
struct ProductKey {
  cudaDataType_t a_type, b_type, c_type;
  Form a_form, b_form;
  std::int64_t rows, columns, inner;
  std::int64_t a_stride, b_stride, c_stride, aux_stride;
  std::uint32_t a_aligned, b_aligned, c_aligned, bias_aligned, aux_aligned;
  bool accumulate, fast_sums;
  Epilogue epilogue;

  explicit ProductKey(const Product& product);
  auto operator<=>(const ProductKey&) const = default;
  // "bf16 x bf16 -> bf16, nt, 16384 x 2304 x 768, strides 768 768 2304, aligned 256 256 256, bias":
  // different for different keys.
  std::string Text() const;
};

// A product as cuBLASLt describes it: matrices are column-major there, so c^T = form(b)^T form(a)^T
// is computed, with b as its first operand.
class Plan {
 public:
  explicit Plan(const Product& product);

  const ProductKey& Key() const { return key_; }
  // Up to `most` algorithms that the library proposes, the best first, which sum in a fixed order;
  // returns how many. `workspace`: bytes they may use.
  int Propose(cublasLtHandle_t handle, std::int64_t workspace, int most,
              cublasLtMatmulHeuristicResult_t* proposals) const;
  // Whether the algorithm can compute this product with so much workspace.
  bool Admits(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
              std::int64_t workspace) const;
  // Queues it. trial: a product that accumulates adds the smallest normal number times its sums,
  // which leaves c as it is (but for zeros, which then are as small), and takes as long.
  cublasStatus_t Run(cublasLtHandle_t handle, const device::GpuContext& gpu, const Product& product,
                     const cublasLtMatmulAlgo_t& algorithm, bool trial) const;

 private:
  void SetPointers(const Product& product) const;

  ProductKey key_;
  Operation operation_;
  Layout first_, second_, result_;
};

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_PRODUCTS_PLAN_HPP_
