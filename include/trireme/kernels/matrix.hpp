// Matrix: a view of a row-major matrix, the operand of kernels. Owns nothing.
#pragma once

#include <cstdint>

#include "trireme/base/dtype.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::kernels {

struct Matrix {
  void* data = nullptr;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t stride = 0;  // elements from one row to the next, >= columns

  std::int64_t Size() const { return rows * columns; }
  bool Empty() const { return data == nullptr; }

  template <typename T>
  T* As() const {
    return static_cast<T*>(data);
  }
  Matrix Rows(std::int64_t begin, std::int64_t count) const {
    return {Offset(begin * stride), dtype, count, columns, stride};
  }
  Matrix Columns(std::int64_t begin, std::int64_t count) const {
    return {Offset(begin), dtype, rows, count, stride};
  }
  void* Offset(std::int64_t elements) const {
    return data == nullptr ? nullptr : ElementAt(data, dtype, elements);
  }
};

// An uninitialised [rows, columns] matrix of the arena, stride = columns.
inline Matrix Allocate(device::Arena& arena, Dtype dtype, std::int64_t rows, std::int64_t columns) {
  void* data = arena.Allocate(rows * columns * static_cast<std::int64_t>(SizeOf(dtype)));
  return {data, dtype, rows, columns, columns};
}

}  // namespace trireme::kernels
