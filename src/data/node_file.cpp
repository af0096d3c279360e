// NodeFile: making, opening and unlinking; leftovers of processes that were killed in between.
#include "node_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr std::string_view kPrefix = "trireme_tokens_";
constexpr std::string_view kUnique = "XXXXXX";  // replaced by mkostemp(3)

// The name of a file, taken away at the end of the scope.
struct Name {
  Name() = default;
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;
  ~Name() {
    if (!path.empty()) ::unlink(path.c_str());
  }
  std::string path = {};
};

// Makes a new file, locked for as long as it is open here: by the lock RemoveLeftovers sees that
// its maker lives.
Descriptor MakeLocked(const std::string& folder, Name& name) {
  constexpr int kTries = 100;  // each is lost only to a RemoveLeftovers between the next two calls
  for (int i = 0; i < kTries; ++i) {
    std::string path = fmt::format("{}/{}{}", folder, kPrefix, kUnique);
    Descriptor file(::mkostemp(path.data(), O_CLOEXEC));
    if (!file.Valid()) {
      throw InputError(
          fmt::format("{}: no file for tokens can be made here: {}", folder, ErrorText(errno)),
          "data.staging_path names another folder.");
    }
    name.path = path;
    Retry([&] { return ::flock(file.Get(), LOCK_EX); });  // no lock: nobody removes it either
    struct stat status = {};
    if (::fstat(file.Get(), &status) != 0 || status.st_nlink > 0) return file;
  }
  throw RunError(fmt::format("{}: each new file vanishes at once", folder),
                 "data.staging_path names another folder.");
}

// Removes an entry if it is this user's empty file that nobody holds.
bool RemoveIfLeft(int folder, const char* name) {
  const Descriptor file(::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status = {};
  if (!file.Valid() || ::fstat(file.Get(), &status) != 0) return false;
  const bool ours = S_ISREG(status.st_mode) && status.st_uid == ::geteuid();
  if (!ours || status.st_size > 0) return false;
  if (::flock(file.Get(), LOCK_EX | LOCK_NB) != 0) return false;
  return ::unlinkat(folder, name, 0) == 0;
}

}  // namespace

int RemoveLeftovers(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
  if (entries == nullptr) return 0;
  int removed = 0;
  while (const dirent* const entry = ::readdir(entries.get())) {
    const std::string_view known = entry->d_name;
    if (!known.starts_with(kPrefix) || known.size() != kPrefix.size() + kUnique.size()) continue;
    if (RemoveIfLeft(::dirfd(entries.get()), entry->d_name)) ++removed;
  }
  return removed;
}

NodeFile MakeNodeFile(const comm::Communicator& world, const comm::Communicator& node,
                      const std::string& folder, bool reads) {
  NodeFile made;
  Name name;
  const bool stages = node.Max(std::int64_t{reads}) > 0;
  world.Together([&] {
    if (!stages || !node.IsRoot()) return;
    RemoveLeftovers(folder);
    made.filled.emplace(MakeLocked(folder, name));
  });
  const std::string path = node.Broadcast(name.path);
  world.Together([&] {
    if (!reads || node.IsRoot()) return;
    made.read.emplace(path, O_RDONLY);
    if (made.read->Valid()) return;
    throw RunError(fmt::format("{}: cannot be opened by a rank of the node that made it: {}", path,
                               ErrorText(errno)),
                   "Do these ranks see different folders, as in containers of their own?");
  });
  return made;
}

}  // namespace trireme::data
