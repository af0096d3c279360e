// Transposition of stored elements, in tiles that fit a cache.
#ifndef TRIREME_SRC_HF_TRANSPOSE_HPP_
#define TRIREME_SRC_HF_TRANSPOSE_HPP_

#include <algorithm>
#include <cstdint>

namespace trireme::hf {

// A matrix within a larger one: `stride` elements from one row to the next.
struct Window {
  char* data = nullptr;
  std::int64_t stride = 0;
};

template <typename Element>
void TransposeElements(Window in, Window out, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kTile = 32;
  const auto* const from = reinterpret_cast<const Element*>(in.data);
  auto* const to = reinterpret_cast<Element*>(out.data);
  for (std::int64_t r = 0; r < rows; r += kTile) {
    for (std::int64_t c = 0; c < columns; c += kTile) {
      const std::int64_t last_row = std::min(r + kTile, rows), last = std::min(c + kTile, columns);
      for (std::int64_t row = r; row < last_row; ++row) {
        for (std::int64_t column = c; column < last; ++column) {
          to[row * out.stride + column] = from[column * in.stride + row];
        }
      }
    }
  }
}

// out[rows, columns] = transpose of in[columns, rows]; elements of 2, 4 or 8 bytes, aligned.
inline void Transpose(std::int64_t element_bytes, Window in, Window out, std::int64_t rows,
                      std::int64_t columns) {
  if (element_bytes == sizeof(std::uint16_t)) {
    TransposeElements<std::uint16_t>(in, out, rows, columns);
  } else if (element_bytes == sizeof(std::uint32_t)) {
    TransposeElements<std::uint32_t>(in, out, rows, columns);
  } else {
    TransposeElements<std::uint64_t>(in, out, rows, columns);
  }
}

}  // namespace trireme::hf

#endif  // TRIREME_SRC_HF_TRANSPOSE_HPP_
