// Scratch of a calling thread: grows to the largest that was asked for and stays, so that a step
// allocates nothing.
#ifndef TRIREME_KERNELS_CPU_WORKSPACE_HPP_
#define TRIREME_KERNELS_CPU_WORKSPACE_HPP_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace trireme::kernels {

class Workspace {
 public:
  static constexpr std::int64_t kPage = 4096;  // of memory: what it begins on

  std::byte* Get(std::int64_t bytes) {
    if (bytes > bytes_) {
      data_.reset();
      bytes_ = 0;
      const std::int64_t pages = (bytes + kPage - 1) / kPage;
      data_.reset(std::aligned_alloc(kPage, static_cast<std::size_t>(pages * kPage)));
      if (!data_) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return static_cast<std::byte*>(data_.get());
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  std::int64_t bytes_ = 0;
};

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CPU_WORKSPACE_HPP_
