// Files made anew under names that others can guess: a link or a leftover of that name is removed,
// never followed or reused.
#ifndef TRIREME_BASE_NEW_FILE_HPP_
#define TRIREME_BASE_NEW_FILE_HPP_

#include <string>
#include <string_view>
#include <system_error>

namespace trireme {

// Makes an empty file for reading and writing and returns its descriptor, closed on exec. A file or
// link of that name, whole or dangling, is removed first, and its target left alone (O_EXCL,
// O_NOFOLLOW). -1 with errno set: EISDIR for a folder of that name.
int CreateNewFile(const std::string& path);

// Writes all of `text`, through short writes and interruptions. False with errno set.
bool WriteAll(int file, std::string_view text);

// What an output of the user's own name replaces: behind a link the file that it leads to, which
// need not be there yet; any other path as it is.
std::string BehindLink(const std::string& path);

// PATH.tmp, the file or folder that becomes `path` when it is whole; of a name that would become
// too long so, the end is cut.
std::string DraftName(const std::string& path);

// A random name beside `path`, of 30 bytes at most: no other process takes it, and no file has it.
std::string NewNameBeside(const std::string& path);

// A new file written under a temporary name and moved to `path` as a whole, over what lies there.
// The first failure is kept, and nothing is done after it.
class Replacement {
 public:
  Replacement(std::string path, std::string temporary);
  // Of a name that the user chose: written under NewNameBeside, behind a link.
  explicit Replacement(const std::string& path);
  // Removes the temporary file unless it was placed.
  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void Write(std::string_view text);
  // Syncs the file and renames it. Returns the first failure of all, or no error.
  std::error_code Place();

 private:
  void Note(bool good);

  std::string path_, temporary_;
  int file_ = -1;
  std::error_code error_;
};

}  // namespace trireme

#endif  // TRIREME_BASE_NEW_FILE_HPP_
