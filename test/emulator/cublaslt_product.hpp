// A matrix product of the emulated cuBLASLt, computed when its stream reaches it: Eigen's products
// on operands converted to fp32 or fp64, then the epilogue, element by element.
#ifndef TRIREME_TEST_EMULATOR_CUBLASLT_PRODUCT_HPP_
#define TRIREME_TEST_EMULATOR_CUBLASLT_PRODUCT_HPP_

#ifndef EIGEN_DONT_PARALLELIZE
#define EIGEN_DONT_PARALLELIZE  // the same bits whatever the number of threads
#endif
#include <Eigen/Core>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "cublasLt.h"
#include "cublaslt_refusal.hpp"
#include "cuda_bf16.h"
#include "cuda_fp8.h"

namespace emulator::cublaslt {

// Column-major: d = epilogue(alpha form(a) form(b) + beta c + bias). form(a): [m, k], d: [m, n].
struct Product {
  cudaDataType_t a_type, b_type, d_type;
  bool a_transposed, b_transposed;
  std::int64_t m, n, k, lda, ldb, ldc, ldd;
  cublasLtEpilogue_t epilogue;
  std::int64_t aux_ld;
  // Known only when it is queued.
  double alpha = 1, beta = 0;
  const void *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;
  void *d = nullptr, *aux = nullptr;
  int pieces = 1;         // of k, each summed by itself, then added up
  bool in_place = false;  // in an order that changes from run to run
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

inline std::size_t SizeOf(cudaDataType_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1;
}
inline bool IsFp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

template <typename S>
using Dense = Eigen::Matrix<S, Eigen::Dynamic, Eigen::Dynamic>;
template <typename S>
using Strided = Eigen::Map<const Dense<S>, 0, Eigen::OuterStride<>>;

template <typename S>
S Read(const void* data, cudaDataType_t type, std::int64_t at) {
  if (type == CUDA_R_64F) return static_cast<S>(static_cast<const double*>(data)[at]);
  if (type == CUDA_R_32F) return static_cast<S>(static_cast<const float*>(data)[at]);
  return static_cast<S>(static_cast<float>(static_cast<const __nv_bfloat16*>(data)[at]));
}
template <typename S>
void Write(void* data, cudaDataType_t type, std::int64_t at, S value) {
  if (type == CUDA_R_64F) {
    static_cast<double*>(data)[at] = static_cast<double>(value);
  } else if (type == CUDA_R_32F) {
    static_cast<float*>(data)[at] = static_cast<float>(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[at] = __nv_bfloat16(static_cast<float>(value));
  }
}

// An operand in the type of sums: as it lies, or converted.
template <typename S>
class Operand {
 public:
  Operand(const void* data, cudaDataType_t type, std::int64_t rows, std::int64_t columns,
          std::int64_t ld)
      : view_(Convert(data, type, rows, columns, ld), rows, columns,
              Eigen::OuterStride<>(IsNative(type) ? ld : rows)) {}
  const Strided<S>& View() const { return view_; }

 private:
  static bool IsNative(cudaDataType_t type) { return type == CUDA_R_64F || type == CUDA_R_32F; }
  const S* Convert(const void* data, cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                   std::int64_t ld) {
    if (IsNative(type)) return static_cast<const S*>(data);
    converted_.resize(static_cast<std::size_t>(rows * columns));
    const auto fill = [&](auto&& read) {
      for (std::int64_t j = 0; j < columns; ++j) {
        S* to = converted_.data() + j * rows;
        for (std::int64_t i = 0; i < rows; ++i) to[i] = read(j * ld + i);
      }
    };
    if (type == CUDA_R_16BF) {
      const auto* from = static_cast<const __nv_bfloat16*>(data);
      fill([&](std::int64_t at) { return static_cast<S>(static_cast<float>(from[at])); });
      return converted_.data();
    }
    std::array<S, 256> values{};
    for (unsigned code = 0; code < values.size(); ++code) {
      values[code] = static_cast<S>(FromFp8(static_cast<__nv_fp8_storage_t>(code),
                                            type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2));
    }
    const auto* from = static_cast<const unsigned char*>(data);
    fill([&](std::int64_t at) { return values[from[at]]; });
    return converted_.data();
  }

  std::vector<S> converted_;  // before view_, which may point there
  Strided<S> view_;
};

// form(a) form(b) over inner indices [begin, begin + count).
template <typename S>
Dense<S> Multiply(const Product& p, const Strided<S>& a, const Strided<S>& b, std::int64_t begin,
                  std::int64_t count) {
  Dense<S> sums(p.m, p.n);
  if (p.a_transposed && p.b_transposed) {
    sums.noalias() =
        a.middleRows(begin, count).transpose() * b.middleCols(begin, count).transpose();
  } else if (p.a_transposed) {
    sums.noalias() = a.middleRows(begin, count).transpose() * b.middleRows(begin, count);
  } else if (p.b_transposed) {
    sums.noalias() = a.middleCols(begin, count) * b.middleCols(begin, count).transpose();
  } else {
    sums.noalias() = a.middleCols(begin, count) * b.middleRows(begin, count);
  }
  return sums;
}

template <typename S>
Dense<S> Sums(const Product& p) {
  const Operand<S> a(p.a, p.a_type, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k, p.lda);
  const Operand<S> b(p.b, p.b_type, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n, p.ldb);
  static unsigned calls = 0;
  const int first = p.in_place ? static_cast<int>(++calls % static_cast<unsigned>(p.pieces)) : 0;
  Dense<S> sums;
  for (int step = 0; step < p.pieces; ++step) {
    const int piece = (first + step) % p.pieces;
    const std::int64_t begin = p.k * piece / p.pieces, end = p.k * (piece + 1) / p.pieces;
    if (step == 0) {
      sums = Multiply<S>(p, a.View(), b.View(), begin, end - begin);
    } else {
      sums += Multiply<S>(p, a.View(), b.View(), begin, end - begin);
    }
  }
  return sums;
}

// Numbers of a bias gradient; 0: there is none.
inline std::int64_t SumsOf(const Product& p) {
  return p.epilogue == CUBLASLT_EPILOGUE_BGRADA   ? p.m
         : p.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n
                                                  : 0;
}

// The bias gradient: an operand's sums over k, piece by piece.
template <typename S>
void SumOperand(const Product& p) {
  const std::int64_t count = SumsOf(p);
  const bool of_a = p.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  static unsigned calls = 0;
  const int first = VariesSums() ? static_cast<int>(++calls % static_cast<unsigned>(p.k)) : 0;
  const void* const data = of_a ? p.a : p.b;
  const cudaDataType_t type = of_a ? p.a_type : p.b_type;
  const std::int64_t ld = of_a ? p.lda : p.ldb;
  // Whether elements of one sum follow each other in memory: a is [m, k], b is [k, n].
  const bool along = of_a ? p.a_transposed : !p.b_transposed;
  for (std::int64_t i = 0; i < count; ++i) {
    S sum = 0;
    for (int piece = 0; piece < p.pieces; ++piece) {
      S part = 0;
      for (std::int64_t at = p.k * piece / p.pieces; at < p.k * (piece + 1) / p.pieces; ++at) {
        const std::int64_t k = (at + first) % p.k;
        part += Read<S>(data, type, along ? i * ld + k : k * ld + i);
      }
      sum += part;
    }
    Write(const_cast<void*>(p.bias), p.d_type, i, sum);
  }
}

template <typename S>
S Gelu(S x) {
  const S inner = S(0.7978845608028654) * (x + S(0.044715) * x * x * x);
  return S(0.5) * x * (1 + std::tanh(inner));
}
template <typename S>
S GeluSlope(S x) {
  const S t = std::tanh(S(0.7978845608028654) * (x + S(0.044715) * x * x * x));
  const S slope = S(0.7978845608028654) * (1 + 3 * S(0.044715) * x * x);
  return S(0.5) * (1 + t) + S(0.5) * x * (1 - t * t) * slope;
}

template <typename S>
S Finish(const Product& p, S value, std::int64_t row, std::int64_t column) {
  constexpr unsigned kBias = CUBLASLT_EPILOGUE_BIAS, kRelu = CUBLASLT_EPILOGUE_RELU;
  const auto epilogue = static_cast<unsigned>(p.epilogue);
  if ((epilogue & kBias) != 0) value += Read<S>(p.bias, p.d_type, row);
  if ((epilogue & kRelu) != 0) return value > 0 ? value : S(0);
  const std::int64_t at = column * p.aux_ld + row;
  if (p.epilogue == CUBLASLT_EPILOGUE_DGELU) return value * GeluSlope(Read<S>(p.aux, p.d_type, at));
  if ((epilogue & CUBLASLT_EPILOGUE_GELU) == 0) return value;
  if ((epilogue & 128u) != 0) Write(p.aux, p.d_type, at, value);
  return Gelu(value);
}

template <typename S>
void Compute(const Product& p) {
  const Dense<S> sums = Sums<S>(p);
  const auto scale = [](const float* pointer) { return pointer == nullptr ? S(1) : S(*pointer); };
  const S alpha = S(p.alpha) * scale(p.a_scale) * scale(p.b_scale);
  for (std::int64_t column = 0; column < p.n; ++column) {
    for (std::int64_t row = 0; row < p.m; ++row) {
      S value = alpha * sums(row, column);
      if (p.beta != 0) value += S(p.beta) * Read<S>(p.c, p.d_type, column * p.ldc + row);
      Write(p.d, p.d_type, column * p.ldd + row, Finish(p, value, row, column));
    }
  }
  if (SumsOf(p) > 0) SumOperand<S>(p);
  // Contents of the workspace after an algorithm are undefined.
  if (p.workspace_bytes > 0) std::memset(p.workspace, 0xff, p.workspace_bytes);
}

inline void Compute(const Product& p) {
  if (p.a_type == CUDA_R_64F) {
    Compute<double>(p);
  } else {
    Compute<float>(p);
  }
}

}  // namespace emulator::cublaslt

#endif  // TRIREME_TEST_EMULATOR_CUBLASLT_PRODUCT_HPP_
