// Static shared memory: __shared__ gives a variable a tag that is part of its symbol, and the
// program's own symbol table has its address. In a stripped program nothing is filled.
#include "static_shared.hpp"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "settings.hpp"

namespace emulator {
namespace {

constexpr std::string_view kTag = "B15emulated_shared";
constexpr int kPoison = 0xFF;
constexpr std::uint32_t kLearnOneIn = 16;  // launches of a kernel that is known

// By how much the program lies above the addresses in its file.
std::uintptr_t LoadOffset() {
  std::uintptr_t offset = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* information, std::size_t, void* result) {
        *static_cast<std::uintptr_t*>(result) = information->dlpi_addr;
        return 1;  // the first is the program
      },
      &offset);
  return offset;
}

// The program's file, mapped for good; empty where it cannot be read.
std::string_view ProgramFile() {
  const int descriptor = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  struct stat status {};
  void* mapped = MAP_FAILED;
  if (fstat(descriptor, &status) == 0) {
    mapped = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE,
                  descriptor, 0);
  }
  close(descriptor);
  if (mapped == MAP_FAILED) return {};
  return {static_cast<const char*>(mapped), static_cast<std::size_t>(status.st_size)};
}

template <typename T>
T At(std::string_view file, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) <= file.size()) std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

}  // namespace

StaticShared& StaticShared::The() {
  static StaticShared shared;
  return shared;
}

StaticShared::StaticShared() {
  const std::string_view file = ProgramFile();
  const std::uintptr_t offset = LoadOffset();
  const auto header = At<ElfW(Ehdr)>(file, 0);
  const auto section = [&](std::size_t number) {
    return At<ElfW(Shdr)>(file, header.e_shoff + number * header.e_shentsize);
  };
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const auto symbols = section(i);
    if (symbols.sh_type != SHT_SYMTAB) continue;
    const auto names = section(symbols.sh_link);
    for (std::size_t at = 0; at + sizeof(ElfW(Sym)) <= symbols.sh_size; at += sizeof(ElfW(Sym))) {
      const auto symbol = At<ElfW(Sym)>(file, symbols.sh_offset + at);
      const std::size_t name = names.sh_offset + symbol.st_name;
      if ((symbol.st_info & 0xf) != STT_OBJECT || name >= file.size()) continue;
      if (std::string_view(file.data() + name).find(kTag) == std::string_view::npos) continue;
      variables_.push_back({reinterpret_cast<unsigned char*>(offset + symbol.st_value),
                            static_cast<std::size_t>(symbol.st_size)});
    }
  }
  for (const Variable& variable : variables_) std::memset(variable.data, kPoison, variable.bytes);
}

void StaticShared::Spoil(const void* kernel) const {
  const auto found = used_.find(kernel);
  if (found == used_.end()) return;
  for (const std::size_t i : found->second) {
    std::memset(variables_[i].data, kPoison, variables_[i].bytes);
  }
}

void StaticShared::Learn(const void* kernel) {
  const auto [entry, is_new] = used_.try_emplace(kernel);
  if (!is_new && TheDice().Below(kLearnOneIn) != 0) return;
  std::vector<std::size_t>& used = entry->second;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const Variable& variable = variables_[i];
    const bool untouched = std::all_of(variable.data, variable.data + variable.bytes,
                                       [](unsigned char byte) { return byte == kPoison; });
    if (!untouched && std::find(used.begin(), used.end(), i) == used.end()) used.push_back(i);
  }
}

}  // namespace emulator
