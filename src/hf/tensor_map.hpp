// Maps the tensors of a Hugging Face model to parameters: names, shapes, element types.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/weights.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/model/options.hpp"

namespace trireme::hf {

// Element types in files (fp32, fp64, bf16, fp16), and conversion from and to checkpoint types.

enum class Stored { kF32, kF64, kBf16, kF16 };

std::optional<Stored> StoredOf(const std::string& dtype);  // nullopt: any other type
const char* SafetensorsName(Stored type);                  // "BF16"
constexpr std::int64_t BytesOf(Stored type) {
  return type == Stored::kF32 ? 4 : type == Stored::kF64 ? 8 : 2;
}
// The type in which a checkpoint holds the elements, without loss.
constexpr Dtype CheckpointType(Stored type) {
  return type == Stored::kF64 ? Dtype::kFloat64 : Dtype::kFloat32;
}

// From IEEE 754 half precision (binary16). NaN becomes infinite.
inline float FromHalf(std::uint16_t half) {
  constexpr std::uint32_t kMagnitude = 0x7fff, kInfinite = 0x7c00, kFloatInfinity = 0x7f800000;
  constexpr std::uint32_t kSmallestNormal = 0x400, kRebias = 112U << 23;
  const std::uint32_t magnitude = half & kMagnitude;
  std::uint32_t bits = (magnitude << 13) + kRebias;
  if (magnitude >= kInfinite) bits = kFloatInfinity;
  if (magnitude < kSmallestNormal) {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24F);
  }
  return std::bit_cast<float>(bits | static_cast<std::uint32_t>(half & 0x8000) << 16);
}

// To half precision: rounds to nearest, ties to even; infinite if out of range.
inline std::uint16_t ToHalf(float value) {
  constexpr std::uint32_t kMagnitude = 0x7fffffff, kSmallestNormal = 113U << 23;
  constexpr std::uint32_t kInfinite = 143U << 23;  // 65536
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & kMagnitude;
  if (magnitude >= kInfinite) return sign | 0x7c00;
  if (magnitude < kSmallestNormal) {
    // The sum's last bit is worth 2^-24, the smallest binary16 number, so the addition rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(sum) - (126U << 23));
  }
  const std::uint32_t rounded = magnitude - (112U << 23) + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<std::uint16_t>(rounded >> 13);
}

inline constexpr std::int64_t kAllFinite = -1;

// Converts `count` elements to CheckpointType(from). Returns the index of the first element that is
// not finite, or kAllFinite.
std::int64_t Widen(Stored from, const void* in, std::int64_t count, void* out);
// Converts `count` elements of a checkpoint to type `to`. Returns the index of the first result
// that is not finite, or kAllFinite.
std::int64_t Narrow(Dtype from, const void* in, std::int64_t count, Stored to, void* out);

// Transposes stored elements, in tiles that fit the cache.

// A matrix within a larger one; `stride` is the number of elements from one row to the next.
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

// out[rows, columns] = transpose of in[columns, rows]; aligned elements of 2, 4 or 8 bytes.
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

// A parameter within a tensor; its shape is [rows, columns] or [rows].
struct MappedPart {
  std::string name;        // "blocks.0.attention.query.weight"
  kernels::Shape shape;    // shape of the parameter
  std::int64_t begin = 0;  // its first row in the tensor
};

struct MappedTensor {
  std::string name;         // "model.layers.0.self_attn.q_proj.weight"
  kernels::Shape shape;     // shape in the file
  bool transposed = false;  // stored as [columns, rows]
  bool copy = false;        // a tied head, which repeats the embedding
  // The features of the residual stream (the last axis of its one parameter) are stored in Marian's
  // order: 0, 2, 4 ... (sines of sinusoidal positions), then 1, 3, 5 ...
  bool halves = false;
  std::vector<MappedPart> parts = {};  // stacked by rows

  std::int64_t Rows() const { return transposed ? shape.back() : shape.front(); }
  std::int64_t Columns() const {  // elements per row
    return shape.size() == 1 ? 1 : transposed ? shape.front() : shape.back();
  }
  std::int64_t Elements() const { return Rows() * Columns(); }
  bool Whole() const { return transposed || halves; }  // one rank must handle it as a whole
};

// All tensors of a model, in the order of its parameters (for kMarian, in that of its layers); the
// head is last. Names are those that transformers writes.
std::vector<MappedTensor> MapTensors(Family family, const model::Options& options);

// Prefix that a file may leave out of all names but the head's: "transformer."; empty: none.
std::string OptionalPrefix(Family family);

// Whether the tensor holds no weights: masks and tables of angles, which old versions wrote.
bool IsBuffer(Family family, const std::string& name);

// TensorNames: finds mapped tensors by the names in a listing, whether or not the listing leaves
// out the optional prefix.

class TensorNames {
 public:
  // map: must outlive this object.
  TensorNames(const std::vector<MappedTensor>& map, const Listing& listing, Family family);

  // The mapped tensor with this name in the listing; null: none.
  const MappedTensor* Find(const std::string& listed) const;

 private:
  std::map<std::string, const MappedTensor*> by_name_;  // by name in the listing
};

}  // namespace trireme::hf
