// The linker's hash of this program, from the notes that were loaded with it.
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "trireme/base/version.hpp"

namespace trireme {

namespace {

std::size_t Padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// The build id among a segment's notes; empty: there is none.
std::string IdAmong(std::span<const char> notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data(), sizeof note);
    const std::size_t begin = sizeof note + Padded(note.n_namesz);
    if (begin + note.n_descsz > notes.size()) return {};
    if (note.n_type == NT_GNU_BUILD_ID) {
      std::string id;
      for (const char byte : notes.subspan(begin, note.n_descsz)) {
        id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
      }
      return id;
    }
    notes = notes.subspan(std::min(begin + Padded(note.n_descsz), notes.size()));
  }
  return {};
}

// The first object is the program itself: returns 1, for no further ones.
int Visit(dl_phdr_info* info, std::size_t /*size*/, void* id) {
  for (const ElfW(Phdr) & part : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    if (part.p_type != PT_NOTE) continue;
    const auto* begin = reinterpret_cast<const char*>(info->dlpi_addr + part.p_vaddr);
    std::string found = IdAmong({begin, part.p_memsz});
    if (!found.empty()) *static_cast<std::string*>(id) = std::move(found);
  }
  return 1;
}

}  // namespace

std::string BuildId() {
  std::string id;
  dl_iterate_phdr(Visit, &id);
  return id;
}

}  // namespace trireme
