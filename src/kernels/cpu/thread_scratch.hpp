// Memory of a thread that grows to the largest use and stays, so that the step loop allocates
// nothing.
#ifndef TRIREME_SRC_KERNELS_CPU_THREAD_SCRATCH_HPP_
#define TRIREME_SRC_KERNELS_CPU_THREAD_SCRATCH_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace trireme::kernels {

inline constexpr std::int64_t kPage = 4096;  // alignment of a thread's scratch, bytes

// `count` uninitialised elements, page-aligned, valid until this thread asks for the same Use
// again. Use: a type that names the purpose.
template <typename Use, typename T>
T* ThreadScratch(std::int64_t count) {
  struct Free {
    void operator()(T* data) const { ::operator delete[](data, std::align_val_t{kPage}); }
  };
  thread_local std::unique_ptr<T[], Free> memory;
  thread_local std::int64_t room = 0;
  if (count > room) {
    room = 0;
    memory.reset(static_cast<T*>(
        ::operator new[](static_cast<std::size_t>(count) * sizeof(T), std::align_val_t{kPage})));
    room = count;
  }
  return memory.get();
}

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_THREAD_SCRATCH_HPP_
