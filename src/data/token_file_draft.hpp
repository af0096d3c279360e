// The temporary file beside an HDF5 file's place: made, given its space, synced and renamed.
#ifndef TRIREME_SRC_DATA_TOKEN_FILE_DRAFT_HPP_
#define TRIREME_SRC_DATA_TOKEN_FILE_DRAFT_HPP_

#include <cstddef>
#include <string>

namespace trireme::data {

// Where the file for `target` is written until it is whole: beside it, or beside the file that a
// link of that name leads to, which it replaces.
std::string DraftOf(const std::string& target);

class TokenFileDraft {
 public:
  // Makes an empty file in place of a leftover; a link of its name is not followed. Throws
  // InputError if none can be made there. key: of the deck, names the target, for messages.
  explicit TokenFileDraft(const std::string& target, std::string key = "data.file");
  // Removes the file unless it was placed.
  ~TokenFileDraft();
  TokenFileDraft(const TokenFileDraft&) = delete;
  TokenFileDraft& operator=(const TokenFileDraft&) = delete;

  const std::string& Path() const { return path_; }

  // All throw RunError.

  // Gives the file `bytes` bytes of real disk space, so that a full disk shows before any write.
  // keep_length: leaves the file's length unchanged, for the call made while HDF5 has the file
  // open.
  void Reserve(std::size_t bytes, bool keep_length) const;
  void Sync() const;
  void Place();  // under the target's name

 private:
  std::string target_, path_, key_;
  bool placed_ = false;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKEN_FILE_DRAFT_HPP_
