// The emulated cuBLASLt: descriptions, algorithms, and products as operations of a stream.
#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "cublasLt.h"
#include "cuda_bf16.h"
#include "cuda_fp8.h"
#include "settings.hpp"
#include "stream.hpp"

namespace emulator::cublaslt {

// A matrix product of the emulated cuBLASLt, computed when its stream reaches it: Eigen's products
// on operands converted to fp32 or fp64, then the epilogue, element by element.

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

struct cublasLtContext {
  int device, major;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::int64_t rows, columns, ld;
};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a_form = CUBLAS_OP_N, b_form = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* aux = nullptr;
  std::int64_t aux_ld = 0;
  const float *a_scale = nullptr, *b_scale = nullptr;
  std::int8_t fast = 0;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t a_aligned = 256, b_aligned = 256, c_aligned = 256, d_aligned = 256;
};

namespace emulator::cublaslt {

// Contents of the emulated cuBLASLt's handles, and its checks of them.

using Description = cublasLtMatmulDescOpaque_t;
using Layout = cublasLtMatrixLayoutOpaque_t;

inline constexpr std::uint64_t kMagic = 0x74726972656d6521;

// Words of cublasLtMatmulAlgo_t::data.
enum Word { kTag, kPieces, kInPlace, kProblem, kAlignments };

inline std::uint32_t Alignment(const void* pointer) {
  constexpr std::uintptr_t kMost = 256;
  const auto bits = reinterpret_cast<std::uintptr_t>(pointer) | kMost;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

inline cublasStatus_t Refuse(cublasStatus_t status, const std::string& why) {
  emulator::Refuse(cudaErrorInvalidValue, "cublasLt: " + why);
  return status;
}

inline Product Describe(const Description& description, const Layout& a, const Layout& b,
                        const Layout& c, const Layout& d) {
  Product p{};
  p.a_type = a.type;
  p.b_type = b.type;
  p.d_type = d.type;
  p.a_transposed = description.a_form == CUBLAS_OP_T;
  p.b_transposed = description.b_form == CUBLAS_OP_T;
  p.m = d.rows;
  p.n = d.columns;
  p.k = p.a_transposed ? a.rows : a.columns;
  p.lda = a.ld;
  p.ldb = b.ld;
  p.ldc = c.ld;
  p.ldd = d.ld;
  p.epilogue = description.epilogue;
  p.aux_ld = description.aux_ld;
  return p;
}

inline bool Fits(const Product& p, const Layout& a, const Layout& b, const Layout& c,
                 const Layout& d) {
  const auto is = [](const Layout& layout, bool transposed, std::int64_t rows,
                     std::int64_t columns) {
    return layout.ld >= layout.rows && layout.rows > 0 && layout.columns > 0 &&
           layout.rows == (transposed ? columns : rows) &&
           layout.columns == (transposed ? rows : columns);
  };
  return is(a, p.a_transposed, p.m, p.k) && is(b, p.b_transposed, p.k, p.n) &&
         is(c, false, p.m, p.n) && is(d, false, p.m, p.n) && c.type == d.type;
}

inline bool TypesSupported(const cublasLtContext& handle, const Description& description,
                           const Product& p) {
  const bool fp64 = description.compute == CUBLAS_COMPUTE_64F;
  if (description.scale != (fp64 ? CUDA_R_64F : CUDA_R_32F)) return false;
  if (fp64) return p.a_type == CUDA_R_64F && p.b_type == CUDA_R_64F && p.d_type == CUDA_R_64F;
  if (description.fast != 0 && !IsFp8(p.a_type)) return false;
  const bool short_or_single = p.d_type == CUDA_R_16BF || p.d_type == CUDA_R_32F;
  if (p.a_type == CUDA_R_32F) return p.b_type == CUDA_R_32F && p.d_type == CUDA_R_32F;
  if (p.a_type == CUDA_R_16BF) return p.b_type == CUDA_R_16BF && short_or_single;
  if (!IsFp8(p.a_type) || !IsFp8(p.b_type) || !short_or_single || handle.major < 9) return false;
  const bool range_twice = p.a_type == CUDA_R_8F_E5M2 && p.b_type == CUDA_R_8F_E5M2;
  const auto whole = [](std::int64_t size) { return size % 16 == 0; };
  return !range_twice && p.a_transposed && !p.b_transposed && whole(p.m) && whole(p.n) &&
         whole(p.k) && whole(p.lda) && whole(p.ldb) &&
         whole(p.ldd * static_cast<std::int64_t>(SizeOf(p.d_type)));
}

inline bool EpilogueSupported(const Description& description, const Product& p) {
  const auto epilogue = static_cast<unsigned>(description.epilogue);
  if (p.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
  if (p.a_type == CUDA_R_64F) return false;
  constexpr unsigned kWithBias =
      CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB;
  if ((epilogue & kWithBias) != 0 && description.bias == nullptr) return false;
  if (IsFp8(p.a_type) && (p.d_type == CUDA_R_32F || p.epilogue != CUBLASLT_EPILOGUE_BIAS)) {
    return false;
  }
  if ((epilogue & 128u) == 0) return true;
  return description.aux != nullptr && Alignment(description.aux) >= 16 &&
         description.aux_ld % 8 == 0 && description.aux_ld >= p.m;
}

inline bool Supported(const cublasLtContext& handle, const Description& description,
                      const Product& p) {
  return TypesSupported(handle, description, p) && EpilogueSupported(description, p);
}

// Hash of the product that an algorithm is made for: another product refuses it.
inline std::uint64_t Hash(const Product& p) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::int64_t value :
       {std::int64_t{p.a_type}, std::int64_t{p.b_type}, std::int64_t{p.d_type},
        std::int64_t{p.a_transposed}, std::int64_t{p.b_transposed}, p.m, p.n, p.k, p.lda, p.ldb,
        p.ldc, p.ldd, std::int64_t{p.epilogue}, p.aux_ld}) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3;
  }
  return hash;
}

inline std::size_t WorkspaceOf(const Product& p, std::uint64_t pieces) {
  const std::size_t sums = static_cast<std::size_t>(p.m * p.n) * (p.a_type == CUDA_R_64F ? 8 : 4);
  return pieces == 1 ? 0 : pieces * sums;
}

inline bool InDeviceMemory(const void* data, cudaDataType_t type, std::int64_t rows,
                           std::int64_t columns, std::int64_t ld) {
  const auto elements = static_cast<std::size_t>((columns - 1) * ld + rows);
  return IsDeviceMemory(data, elements * SizeOf(type));
}

// nullptr where all operands lie where they must.
inline const char* WrongOperand(const Product& p, const Layout& a, const Layout& b) {
  const auto epilogue = static_cast<unsigned>(p.epilogue);
  if (!InDeviceMemory(p.a, p.a_type, a.rows, a.columns, a.ld)) return "A";
  if (!InDeviceMemory(p.b, p.b_type, b.rows, b.columns, b.ld)) return "B";
  if (p.beta != 0 && !InDeviceMemory(p.c, p.d_type, p.m, p.n, p.ldc)) return "C";
  if (!InDeviceMemory(p.d, p.d_type, p.m, p.n, p.ldd)) return "D";
  if ((epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 && !InDeviceMemory(p.bias, p.d_type, p.m, 1, p.m)) {
    return "the bias";
  }
  const std::int64_t sums = SumsOf(p);
  if (sums > 0 && !InDeviceMemory(p.bias, p.d_type, sums, 1, sums)) return "the bias gradient";
  if ((epilogue & 128u) != 0 && !InDeviceMemory(p.aux, p.d_type, p.m, p.n, p.aux_ld)) return "aux";
  for (const float* scale : {p.a_scale, p.b_scale}) {
    if (scale != nullptr && !IsDeviceMemory(scale, sizeof *scale)) return "a scale";
  }
  return nullptr;
}

// IsRefused: a hash mixed with the seed, as a part of a hundred.

namespace {

std::uint64_t Checked(std::uint64_t percent) {
  if (percent <= 100) return percent;
  Die("TRIREME_EMULATOR_CUBLASLT_REFUSE=" + std::to_string(percent) + " is no part of a hundred");
}

std::uint64_t& Percent() {
  static std::uint64_t percent = Checked(Number("TRIREME_EMULATOR_CUBLASLT_REFUSE", 0));
  return percent;
}

// Finalizer of splitmix64 (S. Vigna).
std::uint64_t Mixed(std::uint64_t bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebULL;
  return bits ^ bits >> 31;
}

}  // namespace

void RefuseEpilogues(std::uint64_t percent) { Percent() = Checked(percent); }

bool VariesSums() {
  static const bool vary = Number("TRIREME_EMULATOR_CUBLASLT_VARY", 0) != 0;
  return vary;
}

bool IsRefused(std::uint64_t hash) {
  static const std::uint64_t seed = Mixed(Number("TRIREME_EMULATOR_SEED", 1));
  return Mixed(hash ^ seed) % 100 < Percent();
}

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
