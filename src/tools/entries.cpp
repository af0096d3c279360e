// Reading files within bounds.
#include "entries.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "trireme/base/descriptor.hpp"

namespace trireme::tools {

namespace {

// Bytes [from, from + count) as far as the file has them; false if reading fails.
bool ReadPart(int file, std::size_t from, std::size_t count, std::string& text) {
  const std::size_t before = text.size();
  text.resize(before + count);
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = Retry([&] {
      return pread(file, text.data() + before + done, count - done,
                   static_cast<off_t>(from + done));
    });
    if (got < 0) return false;
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  text.resize(before + done);
  return true;
}

}  // namespace

std::optional<FileText> ReadBounded(const std::string& path, Bounds bounds, bool expected,
                                    Contents& contents) {
  const auto give_up = [&](const std::string& why) {
    contents.notes.push_back(fmt::format("{}: {}", path, why));
    return std::nullopt;
  };
  // A pipe must not make this wait.
  const Descriptor file(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (!file.Valid()) {
    if (errno == ENOENT && !expected) return std::nullopt;
    return give_up(errno == ENOENT ? "not there" : ErrorText(errno));
  }
  struct stat facts {};
  if (fstat(file.Get(), &facts) != 0) return give_up(ErrorText(errno));
  if (!S_ISREG(facts.st_mode)) return give_up("not a regular file");
  const auto size = static_cast<std::size_t>(facts.st_size);
  FileText result;
  if (size <= bounds.head + bounds.tail) {
    if (!ReadPart(file.Get(), 0, size, result.text)) return give_up(ErrorText(errno));
    return result;
  }
  if (!ReadPart(file.Get(), 0, bounds.head, result.text)) return give_up(ErrorText(errno));
  // Whole lines on both sides of the gap.
  result.text.resize(result.text.rfind('\n') == std::string::npos ? 0
                                                                  : result.text.rfind('\n') + 1);
  std::string end;
  if (!ReadPart(file.Get(), size - bounds.tail, bounds.tail, end)) return give_up(ErrorText(errno));
  end.erase(0, std::min(end.find('\n'), end.size() - 1) + 1);
  const std::size_t cut = size - result.text.size() - end.size();
  result.text += fmt::format("{}{} bytes]\n", kGapMark, cut);
  result.text += end;
  result.note = fmt::format("{} of its {} bytes left out", cut, size);
  return result;
}

}  // namespace trireme::tools
