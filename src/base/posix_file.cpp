// Small files, folders and disk space through POSIX calls.
#include "trireme/base/posix_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"

namespace trireme {

namespace {

Error SystemError(const std::string& path, const std::string& what, int error) {
  return RunError(fmt::format("{}: {}: {}", path, what, ErrorText(error)));
}

}  // namespace

std::string Mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

std::string ReadText(const std::string& path, std::int64_t most) {
  Descriptor file(path, O_RDONLY | O_NONBLOCK);  // a pipe must not make it wait
  if (!file.Valid()) {
    throw InputError(fmt::format("{}: cannot be opened: {}", path, ErrorText(errno)));
  }
  std::string text;
  struct stat status = {};
  if (::fstat(file.Get(), &status) == 0 && S_ISREG(status.st_mode)) {
    text.reserve(static_cast<std::size_t>(std::clamp<std::int64_t>(status.st_size, 0, most)));
  }
  std::string buffer(std::size_t{1} << 16, '\0');
  while (true) {
    const ssize_t got = Retry([&] { return ::read(file.Get(), buffer.data(), buffer.size()); });
    if (got < 0) {
      throw InputError(
          fmt::format("{}: cannot be read at offset {}: {}", path, text.size(), ErrorText(errno)));
    }
    if (got == 0) return text;
    text.append(buffer, 0, static_cast<std::size_t>(got));
    if (static_cast<std::int64_t>(text.size()) > most) {
      throw InputError(
          fmt::format("{}: is longer than {} bytes, the most that are read of it", path, most));
    }
  }
}

void RefuseForeignFile(const std::string& path) {
  constexpr std::size_t kHead = 512;
  std::string head(kHead, '\0');
  const Descriptor file(path, O_RDONLY | O_NONBLOCK);
  if (!file.Valid()) return;
  const ssize_t got = Retry([&] { return ::read(file.Get(), head.data(), head.size()); });
  head.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (head.starts_with("version https://git-lfs")) {
    throw InputError(path + ": is a pointer of Git LFS, not the file itself",
                     "'git lfs pull' in the folder that was cloned fetches it.");
  }
  if (head.starts_with("GGUF")) {
    throw InputError(path + ": is a model in GGUF, llama.cpp's format, which is not read",
                     "Take the folder with config.json and safetensors that it was made from.");
  }
  if (head.starts_with("PK\x03\x04")) {
    throw InputError(path + ": is a zip archive, as PyTorch's pickled weights are: not read",
                     "Write the model anew in Python: save_pretrained(NEW) makes safetensors.");
  }
  std::string text = head.substr(head.starts_with("\xEF\xBB\xBF") ? 3 : 0);
  text.erase(0, text.find_first_not_of(" \t\r\n"));
  for (char& letter : text) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  if (text.starts_with("<!doctype html") || text.starts_with("<html")) {
    throw InputError(path + ": is a web page, not the file itself",
                     "At huggingface.co a file's address has /resolve/ where its page has /blob/; "
                     "models that ask for consent need a token.");
  }
}

void WriteTextDurably(const std::string& path, const std::string& text) {
  Descriptor file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!file.Valid()) throw SystemError(path, "cannot be created", errno);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t put =
        Retry([&] { return ::write(file.Get(), text.data() + done, text.size() - done); });
    if (put < 0)
      throw SystemError(path, fmt::format("cannot be written at offset {}", done), errno);
    done += static_cast<std::size_t>(put);
  }
  if (Retry([&] { return ::fsync(file.Get()); }) != 0) {
    throw SystemError(path, "cannot be synced", errno);
  }
  if (const int error = file.Close(); error != 0)
    throw SystemError(path, "cannot be closed", error);
}

int MayRead(const std::string& path) {
  return ::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0 ? 0 : errno;
}

void SyncPath(const std::string& path) {
  if (const int error = SyncToDisk(path); error != 0) {
    throw SystemError(path, "cannot be synced", error);
  }
}

int Reserve(const std::string& path, std::int64_t bytes, bool& held, bool exists) {
  held = true;
  Descriptor file(path, O_RDWR | (exists ? 0 : O_CREAT | O_EXCL) | O_NOFOLLOW);
  if (!file.Valid()) return errno;
  // fallocate(2), not posix_fallocate(3): where the file system cannot reserve, the latter writes a
  // byte to every block one by one, which takes hours for a large model.
  int result = Retry([&] { return ::fallocate(file.Get(), 0, 0, bytes); });
  if (result != 0 && (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS)) {
    held = false;
    result = Retry([&] { return ::ftruncate(file.Get(), bytes); });
  }
  if (result != 0) return errno;
  return file.Close();
}

std::int64_t FreeBytes(const std::string& folder) {
  struct statvfs status = {};
  if (Retry([&] { return ::statvfs(folder.c_str(), &status); }) != 0) return -1;
  if (status.f_blocks == 0) return -1;  // a file system that counts no blocks, such as ramfs
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

void Rename(const std::string& from, const std::string& to) {
  if (Retry([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
    throw SystemError(from, fmt::format("cannot be renamed to {}", to), errno);
  }
}

void MoveLink(const std::string& target, const std::string& link) {
  const std::string temporary = link + ".tmp";
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    throw SystemError(temporary, "a leftover cannot be removed", errno);
  }
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    throw SystemError(temporary, fmt::format("cannot be linked to {}", target), errno);
  }
  Rename(temporary, link);
}

}  // namespace trireme
