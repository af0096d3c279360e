// Matrices at any alignment and stride in guarded memory, compared bit by bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "trireme/kernels/matrix.hpp"

namespace trireme::test {

// The dtype of float or double.
template <typename T>
constexpr Dtype DtypeOf() {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return sizeof(T) == 4 ? Dtype::kFloat32 : Dtype::kFloat64;
}

template <typename T>
class Held {
 public:
  // offset: elements by which it begins behind where the allocator aligns.
  Held(std::int64_t rows, std::int64_t columns, std::int64_t padding, std::int64_t offset)
      : memory_(static_cast<std::size_t>(2 * kGuard + offset + rows * (columns + padding)),
                T(-7.5)),
        matrix_{memory_.data() + kGuard + offset, DtypeOf<T>(), rows, columns, columns + padding} {}
  // Random values in [-scale, scale].
  Held(std::int64_t rows, std::int64_t columns, std::int64_t padding, std::int64_t offset,
       std::uint32_t seed, double scale = 1)
      : Held(rows, columns, padding, offset) {
    std::mt19937_64 engine(seed);
    std::uniform_real_distribution<double> uniform(-scale, scale);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) (*this)(i, j) = static_cast<T>(uniform(engine));
    }
  }
  Held(const Held& other) : memory_(other.memory_), matrix_(other.matrix_) {
    matrix_.data = memory_.data() + (other.matrix_.template As<T>() - other.memory_.data());
  }
  Held(Held&&) = default;  // a moved vector keeps its memory

  T& operator()(std::int64_t i, std::int64_t j) {
    return matrix_.template As<T>()[i * matrix_.stride + j];
  }
  T At(std::int64_t i, std::int64_t j) const {
    return matrix_.template As<T>()[i * matrix_.stride + j];
  }
  const kernels::Matrix& View() const { return matrix_; }
  // Guards and padding included.
  bool SameBits(const Held& other) const {
    return memory_.size() == other.memory_.size() &&
           std::memcmp(memory_.data(), other.memory_.data(), memory_.size() * sizeof(T)) == 0;
  }

 private:
  static constexpr std::int64_t kGuard = 40;  // elements around that nothing may touch
  std::vector<T> memory_;
  kernels::Matrix matrix_;
};

}  // namespace trireme::test
