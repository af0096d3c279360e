// The temporary file beside an HDF5 file's place: made, given its space, synced and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hdf5.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

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

// An HDF5 file under construction: attributes, and contiguous datasets whose space is in the file
// before their values are.

// Bytes of a file; more than HDF5's own structures need.
inline constexpr std::size_t kHdf5MetadataBytes = std::size_t{1} << 16;

// Every failure is a RunError that names the file and the thing.
class Hdf5Writer {
 public:
  struct InMemory {};

  explicit Hdf5Writer(const std::string& path);  // an empty file takes the place of what is there
  // Writes nothing to any disk: for a look at the offsets. path: for messages.
  Hdf5Writer(const std::string& path, InMemory);

  void Attribute(const char* name, hid_t type, const void* value);
  void Attribute(const char* name, std::int64_t value);
  void Attribute(const char* name, double value);
  void Attribute(const char* name, const std::string& value);

  // A dataset whose space is in the file at once and whose values follow in WriteAndClose; null:
  // somebody else writes them, at the offset that is returned. Contiguous and without a date: same
  // data, same bytes. Groups on the way are made. Returns the offset of the values in the file.
  std::int64_t Plan(const std::string& name, hid_t file_type, hid_t memory_type, std::size_t count,
                    const void* values);

  std::size_t Bytes() const;  // of the file with all planned blocks
  void WriteAndClose();

 private:
  void Create(hid_t access);
  [[noreturn]] void Fail(const std::string& what) const;

  struct Planned {
    std::string name;
    Hdf5Handle set;
    hid_t memory_type;
    const void* values;
  };

  std::string path_;
  Hdf5Handle file_;
  std::vector<Planned> planned_;  // closed before the file
};

// A vocabulary and its tokenizer as a token file keeps them: attributes, /vocabulary, /tokenizer.
class StoredVocabulary {
 public:
  StoredVocabulary(const Vocabulary& words, std::string tokenizer);
  // The tokenizer must live until the file is written. prefix: of all names, "" or "source_".
  StoredVocabulary(const Tokenizer& tokenizer, std::int64_t eos, std::string prefix);

  std::size_t Bytes() const;  // of its datasets
  void Describe(Hdf5Writer& file) const;
  // The object must live until the file is written.
  void Plan(Hdf5Writer& file) const;

 private:
  std::string tokenizer_, prefix_;
  std::int64_t eos_ = 0, unk_ = -1;
  const Files* files_ = nullptr;  // null: none
  std::string bytes_;
  std::vector<std::uint64_t> offsets_ = {0};
};

// Bytes of a stored id, 2 or 4, and the type of the dataset.
std::int64_t IdWidthOf(std::int64_t vocabulary);
hid_t IdTypeOf(std::int64_t vocabulary);

}  // namespace trireme::data
