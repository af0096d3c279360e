// Order of a batch's rows by token, and by row for one token: with it the gradient of an embedding
// needs no atomics.
#ifndef TRIREME_SRC_KERNELS_CUDA_TOKEN_ORDER_CUH_
#define TRIREME_SRC_KERNELS_CUDA_TOKEN_ORDER_CUH_

#include <cstddef>
#include <cstdint>

#include "trireme/device/stream.hpp"

namespace trireme::kernels::cuda {

// A slice of the vocabulary: key of a token is token - first, or count for those outside.
struct TokenSlice {
  std::int32_t first;
  std::uint32_t count;
};

struct TokenOrder {
  const std::uint32_t* keys;  // [rows], rising
  const std::uint32_t* rows;  // [rows]: whose tokens these are
};

// Bytes of device memory that SortTokens takes.
std::int64_t TokenOrderBytes(std::int64_t rows);

// Sorts the tokens of `rows` rows, queued; the result lies in `scratch`, TokenOrderBytes(rows)
// bytes on a boundary of 16. At most 2^31 rows.
TokenOrder SortTokens(const device::Stream& stream, const std::int32_t* tokens, std::int64_t rows,
                      const TokenSlice& slice, std::byte* scratch);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_TOKEN_ORDER_CUH_
