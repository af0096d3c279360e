// Writing HDF5 files safely: a temporary file beside the target gets its disk space, is filled,
// synced and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hdf5.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Path of the temporary file for `target`: beside it or, if `target` is a symbolic link, beside the
// file that the link leads to and that will be replaced.
std::string DraftOf(const std::string& target);

class TokenFileDraft {
 public:
  // Creates an empty file, in place of one left by an earlier job; follows no symbolic link there.
  // key: the target's deck key, for messages. Throws InputError, or RunError if the disk is full.
  explicit TokenFileDraft(const std::string& target, std::string key = "data.file");
  // Removes the file unless Place was called.
  ~TokenFileDraft();
  TokenFileDraft(const TokenFileDraft&) = delete;
  TokenFileDraft& operator=(const TokenFileDraft&) = delete;

  const std::string& Path() const { return path_; }

  // The following throw RunError.

  // Reserves `bytes` bytes of disk space, so that a full disk shows before any write. keep_length:
  // leaves the file's length unchanged, for a call while HDF5 has the file open.
  void Reserve(std::size_t bytes, bool keep_length) const;
  void Sync() const;
  void Place();  // renames it to the target

 private:
  std::string target_, path_, key_;
  bool placed_ = false;
};

// Space for HDF5's own structures in a file; more than they need.
inline constexpr std::size_t kHdf5MetadataBytes = std::size_t{1} << 16;

// An HDF5 file under construction: attributes, and contiguous datasets that are allocated before
// their values are written. Every failure is a RunError that names the file and what failed.
class Hdf5Writer {
 public:
  // Replaces an existing file. in_memory: writes nothing to disk, to learn the offsets; `path` is
  // then only for messages.
  explicit Hdf5Writer(const std::string& path, bool in_memory = false);

  void Attribute(const char* name, hid_t type, const void* value);
  void Attribute(const char* name, std::int64_t value);
  void Attribute(const char* name, double value);
  void Attribute(const char* name, const std::string& value);

  // Allocates a contiguous dataset at once, and its groups. WriteAndClose writes `values`; if they
  // are null, the caller writes them, at the offset returned (bytes in the file). Stores no date,
  // so that equal data give equal bytes.
  std::int64_t Plan(const std::string& name, hid_t file_type, hid_t memory_type, std::size_t count,
                    const void* values);

  std::size_t Bytes() const;  // size of the file with all planned datasets
  void WriteAndClose();

 private:
  [[noreturn]] void Fail(const std::string& what) const;

  struct Planned {
    std::string name;
    Hdf5Handle set;
    hid_t memory_type;
    const void* values;
  };

  std::string path_;
  Hdf5Handle file_;
  std::vector<Planned> planned_;  // must be closed before the file
};

// How a token file stores a vocabulary and its tokenizer: attributes, /vocabulary, /tokenizer.
class StoredVocabulary {
 public:
  StoredVocabulary(const Vocabulary& words, std::string tokenizer);
  // prefix: put before all names, "" or "source_". The tokenizer must outlive the writing of the
  // file.
  StoredVocabulary(const Tokenizer& tokenizer, std::int64_t eos, std::string prefix);

  std::size_t Bytes() const;  // size of its datasets
  void Describe(Hdf5Writer& file) const;
  // The object must outlive the writing of the file.
  void Plan(Hdf5Writer& file) const;

 private:
  std::string tokenizer_, prefix_;
  std::int64_t eos_ = 0, unk_ = -1;
  const Files* files_ = nullptr;  // null: not a subword tokenizer
  std::string bytes_;
  std::vector<std::uint64_t> offsets_ = {0};
};

// Size of a stored id in bytes (2 or 4), and the matching HDF5 type.
std::int64_t IdWidthOf(std::int64_t vocabulary);
hid_t IdTypeOf(std::int64_t vocabulary);

}  // namespace trireme::data
