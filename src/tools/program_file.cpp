// ProgramFile: the file that this process runs, hashed once on each node.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "trireme/base/descriptor.hpp"
#include "trireme/tools/preflight.hpp"

namespace trireme::tools {

namespace {

constexpr const char* kProgram = "/proc/self/exe";

struct Hashed {
  std::int64_t device = 0, inode = 0, bytes = 0, changed = 0;
  std::uint64_t hash = 0;
  bool SameFile(const Hashed& other) const {
    return device == other.device && inode == other.inode && bytes == other.bytes &&
           changed == other.changed;
  }
};

Hashed LookAtProgram() {
  struct stat facts {};
  if (::stat(kProgram, &facts) != 0) return {};
  return {.device = static_cast<std::int64_t>(facts.st_dev),
          .inode = static_cast<std::int64_t>(facts.st_ino),
          .bytes = facts.st_size,
          .changed = facts.st_mtim.tv_sec * 1000000000 + facts.st_mtim.tv_nsec};
}

// Most pages are in memory already: the program runs.
void HashProgram(Hashed& program) {
  const Descriptor file(kProgram, O_RDONLY | O_CLOEXEC);
  if (!file.Valid() || program.bytes == 0) return;
  const auto size = static_cast<std::size_t>(program.bytes);
  void* const bytes = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.Get(), 0);
  if (bytes == MAP_FAILED) return;
  program.hash = XXH3_64bits(bytes, size);
  ::munmap(bytes, size);
}

}  // namespace

std::string ProgramFile(const comm::Communicator& node) {
  Hashed mine = LookAtProgram();
  if (node.IsRoot()) HashProgram(mine);
  Hashed first = mine;
  node.Broadcast(&first, static_cast<std::int64_t>(sizeof first));
  if (mine.SameFile(first)) {
    mine = first;
  } else if (!node.IsRoot()) {
    HashProgram(mine);
  }
  if (mine.bytes == 0) return {};
  return fmt::format("{:016x} ({} bytes)", mine.hash, mine.bytes);
}

}  // namespace trireme::tools
