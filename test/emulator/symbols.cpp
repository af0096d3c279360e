// SymbolOf: the table of symbols in the program's own file, which has static functions too.
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "activity.hpp"

namespace emulator {
namespace {

struct Symbol {
  std::uintptr_t address;  // within the file
  std::string name;
};

template <typename T>
const T* At(const std::string& file, std::size_t offset, std::size_t count = 1) {
  if (offset + count * sizeof(T) > file.size()) return nullptr;
  return reinterpret_cast<const T*>(file.data() + offset);
}

// Functions of the program, by address; none if its table was stripped.
std::vector<Symbol> ReadSymbols() {
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  std::vector<Symbol> symbols;
  const auto* const header = At<ElfW(Ehdr)>(file, 0);
  if (header == nullptr) return symbols;
  const auto* const sections = At<ElfW(Shdr)>(file, header->e_shoff, header->e_shnum);
  for (int i = 0; sections != nullptr && i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const std::size_t count = sections[i].sh_size / sizeof(ElfW(Sym));
    const auto* const table = At<ElfW(Sym)>(file, sections[i].sh_offset, count);
    const std::size_t names = sections[sections[i].sh_link].sh_offset;
    for (std::size_t k = 0; table != nullptr && k < count; ++k) {
      if (ELF64_ST_TYPE(table[k].st_info) != STT_FUNC || table[k].st_value == 0) continue;
      symbols.push_back({table[k].st_value, file.data() + names + table[k].st_name});
    }
  }
  std::ranges::sort(symbols, {}, &Symbol::address);
  return symbols;
}

// Address at which the program's file, the first object, lies in memory.
std::uintptr_t Base() {
  std::uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* out) {
        *static_cast<std::uintptr_t*>(out) = object->dlpi_addr;
        return 1;
      },
      &base);
  return base;
}

}  // namespace

std::string SymbolOf(const void* function) {
  static const std::vector<Symbol> symbols = ReadSymbols();
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(function) - Base();
  const auto found = std::ranges::lower_bound(symbols, address, {}, &Symbol::address);
  return found != symbols.end() && found->address == address ? found->name : "";
}

}  // namespace emulator
