// The version, commit and compiler of this binary, its place, and its build id.
#include "trireme/base/program.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "commit.hpp"  // generated: kCommit, kVersion

namespace trireme {

std::string Version() { return generated::kVersion; }
std::string Commit() { return generated::kCommit; }

std::string Compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

namespace fs = std::filesystem;

std::string ProgramFile() {
  std::error_code unknown;
  return fs::read_symlink("/proc/self/exe", unknown).string();
}

std::string SharedFolder(const std::string& program) {
  if (program.empty()) return {};
  const fs::path above = fs::path(program).parent_path() / "..";
  std::error_code ignored;
  for (const fs::path& folder : {above / "share" / "trireme", above}) {
    if (fs::is_directory(folder / "input", ignored)) return folder.lexically_normal().string();
  }
  return {};
}

namespace {

std::size_t Padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// The build id (the linker's hash of the program) among a segment's notes; empty if there is none.
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

// Callback of dl_iterate_phdr. The first object is the program itself; returning 1 skips the rest.
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

// This file is compiled with the program's flags, so the predefined macros tell which instructions
// the compiler may use. TEXT_OF(__AVX2__) is "1" if that macro is defined, otherwise its name.
#define TEXT_OF_TOKENS(tokens) #tokens
#define TEXT_OF(macro) TEXT_OF_TOKENS(macro)
static constexpr unsigned Bit(int place, const char* text) {
  return text[0] == '_' ? 0U : 1U << place;
}

constinit const unsigned kBuiltFor =
    Bit(0, TEXT_OF(__SSE4_2__)) | Bit(1, TEXT_OF(__POPCNT__)) | Bit(2, TEXT_OF(__AVX__)) |
    Bit(3, TEXT_OF(__AVX2__)) | Bit(4, TEXT_OF(__FMA__)) | Bit(5, TEXT_OF(__BMI2__)) |
    Bit(6, TEXT_OF(__AVX512F__)) | Bit(7, TEXT_OF(__AVX512BW__)) | Bit(8, TEXT_OF(__AVX512DQ__)) |
    Bit(9, TEXT_OF(__AVX512VL__)) | Bit(10, TEXT_OF(__AVX512VNNI__)) |
    Bit(11, TEXT_OF(__AVX512BF16__));

}  // namespace trireme
