// For tests of the GPU back end, on a card or in the emulator: a stream, and matrices there.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/dtype.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::test {

// Opens the first card (or the one of `device`) for the tests of a suite; where there is none each
// test is skipped and says why.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = device::WhyNoGpu();
    if (!why.empty()) {
      constexpr const char* kPrefix = "no CUDA device";
      const bool known = why.rfind(kPrefix, 0) == 0;
      GTEST_SKIP() << "skipped: " << (known ? why : "no CUDA device: " + why);
    }
    gpu_ = std::make_unique<device::Gpu>(Device());
    stream_.gpu = &gpu_->Context();
  }
  virtual int Device() const { return 0; }
  const device::Stream& Stream() const { return stream_; }
  device::Stream& Stream() { return stream_; }
  void Synchronise() const { device::Synchronise(stream_); }

 private:
  std::unique_ptr<device::Gpu> gpu_;
  device::Stream stream_;
};

// Bytes on the GPU, from and to the host.
class OnGpu {
 public:
  OnGpu(const device::Stream& stream, const void* host, std::int64_t bytes)
      : stream_(&stream), bytes_(bytes), memory_(device::AllocateZeroed(bytes, stream.Where())) {
    device::CopyIn(stream, host, memory_.get(), bytes);
  }
  template <typename T>
  OnGpu(const device::Stream& stream, const std::vector<T>& host)
      : OnGpu(stream, host.data(), static_cast<std::int64_t>(host.size() * sizeof(T))) {}
  void* Data() const { return memory_.get(); }
  template <typename T>
  T* As() const {
    return static_cast<T*>(memory_.get());
  }
  void Out(void* host) const { device::CopyOut(*stream_, memory_.get(), host, bytes_); }
  template <typename T>
  std::vector<T> Out() const {
    std::vector<T> host(static_cast<std::size_t>(bytes_) / sizeof(T));
    Out(host.data());
    return host;
  }

 private:
  const device::Stream* stream_;
  std::int64_t bytes_;
  device::Buffer memory_;
};

// A [rows, columns] matrix on the GPU, its rows `stride` elements apart, behind `offset` elements:
// made from doubles (dense, row-major), read back as doubles. What lies between rows is NaN, and
// must stay so (GapsUntouched).
class GpuMatrix {
 public:
  GpuMatrix(const device::Stream& stream, Dtype dtype, std::int64_t rows, std::int64_t columns,
            const std::vector<double>& values, std::int64_t stride = 0, std::int64_t offset = 0)
      : stream_(&stream), dtype_(dtype), rows_(rows), columns_(columns), offset_(offset) {
    stride_ = stride == 0 ? columns : stride;
    bytes_.assign(static_cast<std::size_t>(offset + rows * stride_) * SizeOf(dtype), 0xff);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        Put(At(i, j), values.empty() ? 0 : values[static_cast<std::size_t>(i * columns + j)]);
      }
    }
    memory_ = std::make_unique<OnGpu>(stream, bytes_);
  }
  kernels::Matrix View() const {
    return {ElementAt(memory_->Data(), dtype_, offset_), dtype_, rows_, columns_, stride_};
  }
  // As they are now, dense.
  std::vector<double> Values() const {
    const auto bytes = memory_->Out<unsigned char>();
    std::vector<double> values;
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = 0; j < columns_; ++j) values.push_back(Get(bytes, At(i, j)));
    }
    return values;
  }
  bool GapsUntouched() const {
    auto bytes = memory_->Out<unsigned char>();
    auto mine = bytes_;
    for (std::int64_t i = 0; i < rows_; ++i) {
      const std::size_t begin = At(i, 0) * SizeOf(dtype_);
      const std::size_t size = static_cast<std::size_t>(columns_) * SizeOf(dtype_);
      std::memset(bytes.data() + begin, 0, size);
      std::memset(mine.data() + begin, 0, size);
    }
    return bytes == mine;
  }
  // The bits, gaps included.
  std::vector<unsigned char> Bits() const { return memory_->Out<unsigned char>(); }

 private:
  std::size_t At(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(offset_ + row * stride_ + column);
  }
  void Put(std::size_t at, double value) {
    unsigned char* to = bytes_.data() + at * SizeOf(dtype_);
    if (dtype_ == Dtype::kBfloat16) {
      const std::uint16_t bits = RoundToBfloat16(static_cast<float>(value));
      std::memcpy(to, &bits, sizeof bits);
    } else if (dtype_ == Dtype::kFloat32) {
      const auto single = static_cast<float>(value);
      std::memcpy(to, &single, sizeof single);
    } else {
      std::memcpy(to, &value, sizeof value);
    }
  }
  double Get(const std::vector<unsigned char>& bytes, std::size_t at) const {
    const unsigned char* from = bytes.data() + at * SizeOf(dtype_);
    if (dtype_ == Dtype::kBfloat16) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, from, sizeof bits);
      return static_cast<double>(FromBfloat16(bits));
    }
    if (dtype_ == Dtype::kFloat32) {
      float single = 0;
      std::memcpy(&single, from, sizeof single);
      return static_cast<double>(single);
    }
    double value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  const device::Stream* stream_;
  Dtype dtype_;
  std::int64_t rows_, columns_, stride_ = 0, offset_;
  std::vector<unsigned char> bytes_;
  std::unique_ptr<OnGpu> memory_;
};

}  // namespace trireme::test
