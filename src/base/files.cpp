// Opening, closing, syncing, replacing, reading and writing of files and folders.
#include "trireme/base/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "trireme/base/utf8.hpp"

namespace trireme {

std::string ErrorText(int error) { return std::generic_category().message(error); }

std::string AdviceOnMissing(const std::string& path) {
  std::error_code error;
  const std::filesystem::path wanted(path);
  if (wanted.is_relative()) {
    return fmt::format("It was looked for in {}, where Trireme was started.",
                       std::filesystem::current_path(error).string());
  }
  std::filesystem::path folder = wanted.parent_path(), missing;
  while (!std::filesystem::exists(folder, error) && !error && folder != folder.parent_path()) {
    missing = std::exchange(folder, folder.parent_path());
  }
  if (missing.empty()) return "Its folder is there: is the name right?";
  return fmt::format("There is no folder {} either.", missing.string());
}

static constexpr mode_t kMode = 0666;  // of new files, less what the umask removes

Descriptor::Descriptor(const std::string& path, int flags)
    : number_(Retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, kMode); })) {}

int Descriptor::Close() {
  if (number_ < 0) return 0;
  const int result = ::close(std::exchange(number_, -1));
  return result == 0 || errno == EINTR ? 0 : errno;
}

int SyncToDisk(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  if (!file.Valid()) return errno;
  // EINVAL: the file system has nothing to sync for this object (folders on some network mounts).
  return Retry([&] { return ::fsync(file.Get()); }) == 0 || errno == EINVAL ? 0 : errno;
}

int MakeFolderDurably(const std::string& folder) {
  namespace fs = std::filesystem;
  fs::path missing = fs::absolute(folder).lexically_normal();
  if (!missing.has_filename()) missing = missing.parent_path();  // drops a final '/'
  std::vector<fs::path> made;
  std::error_code error;
  for (; !fs::exists(missing, error) && !error; missing = missing.parent_path()) {
    made.push_back(missing);
  }
  fs::create_directories(folder, error);
  if (error) return error.value();
  if (!fs::is_directory(folder, error)) return ENOTDIR;
  for (const fs::path& each : made) {
    if (const int failed = SyncToDisk(each.parent_path().string()); failed != 0) return failed;
  }
  return 0;
}

namespace {

// Numbers from <linux/magic.h>, and those that Lustre, GPFS, BeeGFS, PanFS and others define.
constexpr auto kTypes = std::to_array<FileSystemType>({{0x0BD00BD0, "lustre", true, false},
                                                       {0x47504653, "gpfs", true, false},
                                                       {0x19830326, "beegfs", true, false},
                                                       {0x6969, "nfs", true, false},
                                                       {0x00C36400, "ceph", true, false},
                                                       {0xAAD7AAEA, "panfs", true, false},
                                                       {0xFF534D42, "cifs", true, false},
                                                       {0xFE534D42, "smb", true, false},
                                                       {0x01021997, "9p", true, false},
                                                       {0x65735546, "fuse", true, false},
                                                       {0x01021994, "tmpfs", false, true},
                                                       {0x858458F6, "ramfs", false, true},
                                                       {0xEF53, "ext4", false, false},
                                                       {0x58465342, "xfs", false, false},
                                                       {0x9123683E, "btrfs", false, false},
                                                       {0x2FC12FC1, "zfs", false, false},
                                                       {0x794C7630, "overlay", false, false},
                                                       {0xF2F52010, "f2fs", false, false},
                                                       {0x73717368, "squashfs", false, false}});

Error SystemError(const std::string& path, const std::string& what, int error,
                  const std::string& hint = {}) {
  return RunError(fmt::format("{}: {}: {}", path, what, ErrorText(error)), hint);
}

// Calls transfer(done, left) until `bytes` bytes are transferred, through interruptions. Returns
// their number: fewer if a call fails, or if it transfers none, which sets errno to `at_none`.
template <typename Transfer>
std::int64_t InPieces(std::int64_t bytes, int at_none, const Transfer& transfer) {
  std::int64_t done = 0;
  while (done < bytes) {
    const ssize_t now =
        Retry([&] { return transfer(done, static_cast<std::size_t>(bytes - done)); });
    if (now == 0) errno = at_none;
    if (now <= 0) return done;
    done += now;
  }
  errno = 0;
  return done;
}

// Just after another node has created a file, a client of a network file system may still believe
// that it does not exist.
constexpr int kOpenAttempts = 10;
constexpr std::chrono::milliseconds kOpenPause(100);

Descriptor Open(const std::string& path, PositionedFile::Access access) {
  const bool write = access == PositionedFile::Access::kWrite;
  const int flags = write ? O_RDWR | O_NOFOLLOW : O_RDONLY | O_NONBLOCK;
  for (int attempt = 1;; ++attempt) {
    Descriptor file(path, flags);
    if (file.Valid() || errno != ENOENT || !write || attempt == kOpenAttempts) return file;
    std::this_thread::sleep_for(kOpenPause);
  }
}

}  // namespace

std::uint64_t FileSystemNumber(std::int64_t type) {
  return static_cast<std::uint64_t>(type) & 0xFFFFFFFF;
}

const FileSystemType* FindFileSystem(std::uint64_t number) {
  const auto known = std::ranges::find(kTypes, number, &FileSystemType::number);
  return known == kTypes.end() ? nullptr : &*known;
}

std::string NameOfFileSystem(std::uint64_t number) {
  const FileSystemType* const known = FindFileSystem(number);
  return known == nullptr ? fmt::format("type {:#x}", number) : known->name;
}

std::string Mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

std::string ReadText(const std::string& path, std::int64_t most) {
  Descriptor file(path, O_RDONLY | O_NONBLOCK);  // must not wait on a pipe
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
  struct Foreign {
    const char *begin, *what, *hint;
  };
  constexpr std::array kForeign = {
      Foreign{"version https://git-lfs", "is a pointer of Git LFS, not the file itself",
              "'git lfs pull' in the folder that was cloned fetches it."},
      Foreign{"GGUF", "is a model in GGUF, llama.cpp's format, which is not read",
              "Take the folder with config.json and safetensors that it was made from."},
      Foreign{"PK\x03\x04", "is a zip archive, as PyTorch's pickled weights are: not read",
              "Write the model anew in Python: save_pretrained(NEW) makes safetensors."}};
  for (const auto& [begin, what, hint] : kForeign) {
    if (head.starts_with(begin)) throw InputError(path + ": " + what, hint);
  }
  std::string text = head.substr(head.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
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

void WriteTextDurably(const std::string& path, const std::string& text, const std::string& hint) {
  Descriptor file(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!file.Valid()) throw SystemError(path, "cannot be created", errno, hint);
  const std::int64_t put = WriteAt(file.Get(), text.data(), std::ssize(text), 0);
  const bool good = put == std::ssize(text) && Retry([&] { return ::fsync(file.Get()); }) == 0;
  int error = good ? 0 : errno;
  if (error == 0) error = file.Close();
  if (error == 0) return;
  ::unlink(path.c_str());
  throw SystemError(path, fmt::format("cannot be written at offset {}", put), error, hint);
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
  // fallocate(2) and not posix_fallocate(3): where the file system cannot reserve, the latter
  // writes a byte to every block, one by one, which takes hours for a large model.
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

void RenameDurably(const std::string& from, const std::string& to) {
  Rename(from, to);
  SyncPath(FolderOf(to));
}

std::vector<std::string> WordsIn(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

std::string FirstLine(const std::string& path, char end) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line, end);
  return line;
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    names.push_back(item->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
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

int CreateNewFile(const std::string& path) {
  constexpr int kTries = 8;  // another process may create the name again in between
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int file = -1;
  for (int i = 0; i < kTries; ++i) {
    file = ::open(path.c_str(), kFlags, kMode);
    if (file >= 0 || errno != EEXIST) break;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) break;
  }
  return file;
}

std::string BehindLink(const std::string& path) {
  constexpr int kMostLinks = 40;  // the system's own limit
  std::error_code error;
  std::filesystem::path found = path;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(found, error); ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(found, error);
    if (error) return path;
    found = target.is_absolute() ? target : found.parent_path() / target;
  }
  return found.string();
}

std::string DraftName(const std::string& path) {
  constexpr std::size_t kLongest = 255;  // NAME_MAX: bytes in a name
  constexpr std::string_view kEnding = ".tmp";
  const std::size_t name = path.find_last_of('/') + 1;  // 0 if there is none
  return path.substr(0, std::max(name, std::min(path.size(), name + kLongest - kEnding.size()))) +
         std::string(kEnding);
}

std::string NewNameBeside(const std::string& path) {
  std::random_device random;
  const std::uint64_t number = (std::uint64_t{random()} << 32) | random();
  return (std::filesystem::path(path).parent_path() / fmt::format(".trireme.{:016x}", number))
      .string();
}

bool WriteAll(int file, std::string_view text) {
  return InPieces(std::ssize(text), ENOSPC, [&](std::int64_t done, std::size_t left) {
           return ::write(file, text.data() + done, left);
         }) == std::ssize(text);
}

Replacement::Replacement(std::string path, std::string temporary)
    : path_(std::move(path)), temporary_(std::move(temporary)), file_(CreateNewFile(temporary_)) {
  Note(file_.Valid());
}

Replacement::Replacement(const std::string& path)
    : Replacement(BehindLink(path), NewNameBeside(BehindLink(path))) {}

Replacement::~Replacement() {
  if (file_.Valid()) ::unlink(temporary_.c_str());
}

void Replacement::Note(bool good) {
  if (!good && !error_) error_ = {errno, std::generic_category()};
}

void Replacement::Write(std::string_view text) {
  if (!error_) Note(WriteAll(file_.Get(), text));
}

std::error_code Replacement::Place(Name name) {
  if (!error_) Note(::fsync(file_.Get()) == 0);
  if (!file_.Valid()) return error_;
  Note(file_.Close() == 0);
  if (!error_) Note(std::rename(temporary_.c_str(), path_.c_str()) == 0);
  if (error_) {
    ::unlink(temporary_.c_str());
  } else if (name == Name::kDurable) {
    error_ = {SyncToDisk(FolderOf(path_)), std::generic_category()};
  }
  return error_;
}

std::int64_t ReadAt(int file, void* to, std::int64_t bytes, std::int64_t offset) {
  return InPieces(bytes, 0, [&](std::int64_t done, std::size_t left) {
    return ::pread(file, static_cast<char*>(to) + done, left, offset + done);
  });
}

std::int64_t WriteAt(int file, const void* from, std::int64_t bytes, std::int64_t offset) {
  return InPieces(bytes, ENOSPC, [&](std::int64_t done, std::size_t left) {
    return ::pwrite(file, static_cast<const char*>(from) + done, left, offset + done);
  });
}

PositionedFile::PositionedFile(const std::string& path, Access access, ExitCode blame)
    : path_(path), blame_(blame), file_(Open(path, access)) {
  if (!file_.Valid()) throw Complain("cannot be opened", errno);
}

Error PositionedFile::Complain(const std::string& what, int error) const {
  return {blame_, fmt::format("{}: {}: {}", path_, what, ErrorText(error))};
}

std::int64_t PositionedFile::Size() const {
  struct stat status = {};
  if (::fstat(file_.Get(), &status) != 0) throw Complain("its size is unknown", errno);
  return status.st_size;
}

void PositionedFile::Write(const void* data, std::int64_t bytes, std::int64_t offset) const {
  const std::int64_t put = WriteAt(file_.Get(), data, bytes, offset);
  if (put < bytes) {
    throw Complain(fmt::format("cannot be written at offset {}", offset + put), errno);
  }
}

void PositionedFile::Read(void* data, std::int64_t bytes, std::int64_t offset) const {
  const std::int64_t got = ReadAt(file_.Get(), data, bytes, offset);
  if (got == bytes) return;
  const std::string what = fmt::format("cannot be read at offset {}", offset + got);
  if (errno != 0) throw Complain(what, errno);
  throw Error(blame_, fmt::format("{}: {}: the file ends there", path_, what));
}

void PositionedFile::StartFlush(std::int64_t bytes, std::int64_t offset) const {
  if (bytes > 0) ::sync_file_range(file_.Get(), offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void PositionedFile::Sync(bool data_only) const {
  const auto sync = data_only ? ::fdatasync : ::fsync;
  if (Retry([&] { return sync(file_.Get()); }) != 0) throw Complain("cannot be synced", errno);
}

void PositionedFile::ForgetCopies(std::int64_t bytes, std::int64_t offset) const {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t begin = offset / page * page;
  const std::int64_t end = (offset + bytes + page - 1) / page * page;
  if (bytes > 0) ::posix_fadvise(file_.Get(), begin, end - begin, POSIX_FADV_DONTNEED);
}

void PositionedFile::Close() {
  if (const int error = file_.Close(); error != 0) throw Complain("cannot be closed", error);
}

}  // namespace trireme
