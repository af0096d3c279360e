// Contents of the emulated cuBLASLt's handles, and its checks of them.
#ifndef TRIREME_TEST_EMULATOR_CUBLASLT_CHECKS_HPP_
#define TRIREME_TEST_EMULATOR_CUBLASLT_CHECKS_HPP_

#include <string>

#include "cublaslt_product.hpp"
#include "stream.hpp"

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

}  // namespace emulator::cublaslt

#endif  // TRIREME_TEST_EMULATOR_CUBLASLT_CHECKS_HPP_
