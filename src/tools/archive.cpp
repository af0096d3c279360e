// Archives by libarchive: tar (pax where ustar's fields are too short), gzip.
#include "archive.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <system_error>

#include "trireme/base/error.hpp"
#include "trireme/base/new_file.hpp"

namespace trireme::tools {

namespace {

using Writer = std::unique_ptr<archive, decltype(&archive_write_free)>;
using Header = std::unique_ptr<archive_entry, decltype(&archive_entry_free)>;

constexpr int kFileMode = 0644;

[[noreturn]] void Fail(const std::string& path, archive* writer) {
  const char* const why = archive_error_string(writer);
  throw InputError(
      fmt::format("{}: the archive cannot be written: {}", path, why == nullptr ? "failed" : why),
      "Call trireme --support in a folder where you may write.");
}

void Write(const std::string& path, const std::string& top, const std::vector<Entry>& entries) {
  const Writer writer(archive_write_new(), archive_write_free);
  archive_write_add_filter_gzip(writer.get());
  archive_write_set_format_pax_restricted(writer.get());
  if (archive_write_open_filename(writer.get(), path.c_str()) != ARCHIVE_OK) {
    Fail(path, writer.get());
  }
  const std::time_t now = std::time(nullptr);
  for (const Entry& entry : entries) {
    const Header header(archive_entry_new(), archive_entry_free);
    archive_entry_set_pathname(header.get(), (top + "/" + entry.name).c_str());
    archive_entry_set_size(header.get(), std::ssize(entry.text));
    archive_entry_set_filetype(header.get(), AE_IFREG);
    archive_entry_set_perm(header.get(), kFileMode);
    archive_entry_set_mtime(header.get(), now, 0);
    if (archive_write_header(writer.get(), header.get()) != ARCHIVE_OK) Fail(path, writer.get());
    if (archive_write_data(writer.get(), entry.text.data(), entry.text.size()) !=
        std::ssize(entry.text)) {
      Fail(path, writer.get());
    }
  }
  if (archive_write_close(writer.get()) != ARCHIVE_OK) Fail(path, writer.get());
}

}  // namespace

void WriteArchive(const std::string& path, const std::string& top,
                  const std::vector<Entry>& entries) {
  const std::string partial = NewNameBeside(path);
  std::error_code error;
  try {
    Write(partial, top, entries);
    std::filesystem::rename(partial, path, error);
    if (error) {
      throw InputError(fmt::format("{}: the archive cannot be written: {}", path, error.message()),
                       "Call trireme --support in a folder where you may write.");
    }
  } catch (const Error&) {
    std::filesystem::remove(partial, error);
    throw;
  }
}

}  // namespace trireme::tools
