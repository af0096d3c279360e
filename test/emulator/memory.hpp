// Memory of the emulated cards, and the end of a program that uses it as a GPU forbids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

// Memory of the emulated cards and page-locked host memory: each allocation lies between guards,
// and its addresses are never used again. Device memory is closed except while operations of
// streams run.

struct Allocation {
  std::uintptr_t begin, end;  // whole pages; the data end at `end`, up to 15 bytes of canary
  std::uintptr_t data;        // on a boundary of 16 bytes
  std::size_t bytes;          // of data
  bool live = true;
  bool open = false;
  bool filled = false;  // with 0xFF, before it was first touched
};

class Memory {
 public:
  enum class Kind { kDevice, kPinned };
  explicit Memory(Kind kind);

  void* Allocate(std::size_t bytes);             // filled with 0xFF; nullptr: the system has none
  bool Free(void* data);                         // false: no live allocation begins there
  bool Contains(std::uintptr_t address) const {  // in or near any allocation, live or not
    return address - base_ < next_ - base_;
  }
  // The last allocation that begins at or before the address; null before the first.
  Allocation* Find(std::uintptr_t address);
  // The live allocation that holds all of it; null: none does.
  Allocation* Holding(const void* data, std::size_t bytes);
  std::size_t LiveBytes() const { return live_bytes_; }
  // Bytes that a library takes, or gives back, without an address.
  void Take(std::size_t bytes) { live_bytes_ += bytes; }
  void GiveBack(std::size_t bytes) { live_bytes_ -= bytes; }

  void Open(Allocation& allocation);
  void CloseAll();
  // Sets bytes of one open or closed allocation to 0; costs next to nothing where that is all of it
  // and nothing was there yet.
  void Clear(void* data, std::size_t bytes);

 private:
  static void Fill(Allocation& allocation);
  Kind kind_;
  std::uintptr_t base_, next_, limit_;   // reserved addresses
  std::vector<Allocation> allocations_;  // by address; freed ones stay
  std::vector<std::size_t> open_;        // indices
  std::size_t live_bytes_ = 0;
};

Memory& DeviceMemory();
Memory& PinnedMemory();

// While one lives, device memory may be touched: what is touched opens by a fault, or by Prepare,
// which is cheaper. Closed again at the end of the outermost.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
  static bool Active();
  static void Prepare(const void* data);
};

// Ends the process with a message if an emulated program does what fails on a GPU.

// Catches invalid accesses from now on; again where another library took the signal over.
void WatchFaults();
// A fault in these addresses means that a kernel `did` ("overflowed a thread's stack").
void NoteGuarded(std::uintptr_t begin, std::uintptr_t end, const char* did);

// Operation that runs now, for messages.
struct Running {
  const char* what = nullptr;  // "kernel", "copy", ...; null: host code
  std::uint64_t number = 0;    // of the operation since the start
};
extern Running running;

}  // namespace emulator
