// Order of a batch's rows by token (or by position in a document), and by row for one token: with
// it the gradient of an embedding needs no atomics.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dropout.cuh"
#include "trireme/device/stream.hpp"

namespace trireme::kernels::cuda {

// A slice of the vocabulary: key of a token is token - first, or count for those outside.
struct TokenSlice {
  std::int32_t first;
  std::uint32_t count;
};

// Tokens of rows; or, if they are null, positions of the rows in their documents.
struct RowTokens {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* begins = nullptr;  // kernels/elementwise.hpp
  DropoutPlace place = {};               // for the positions of rows only

  __device__ __forceinline__ std::int64_t At(unsigned row) const {
    if (tokens != nullptr) return tokens[row];
    return std::int64_t{place.PositionOf(row)} - begins[row];
  }
  // The same from row `row` on.
  RowTokens From(std::int64_t row) const {
    RowTokens later = *this;
    if (tokens != nullptr) later.tokens += row;
    if (begins != nullptr) later.begins += row;
    later.place.first_row += static_cast<std::uint32_t>(row);
    return later;
  }
};

struct TokenOrder {
  const std::uint32_t* keys;  // [rows], rising
  const std::uint32_t* rows;  // [rows]: whose tokens these are
};

// Bytes of device memory that SortTokens takes.
std::int64_t TokenOrderBytes(std::int64_t rows);

// Sorts the tokens of `rows` rows, queued; the result lies in `scratch`, TokenOrderBytes(rows)
// bytes on a boundary of 16. At most 2^31 rows.
TokenOrder SortTokens(const device::Stream& stream, const RowTokens& tokens, std::int64_t rows,
                      const TokenSlice& slice, std::byte* scratch);

// PositionBackward where positions restart in documents: rows sorted by position.
void DocumentPositionBackward(const device::Stream& stream, const std::int32_t* begins,
                              const Dropout& dropout, const Matrix& dout, const Matrix& dpositions);

}  // namespace trireme::kernels::cuda
