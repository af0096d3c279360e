// WriteTokenFile: writes a temporary file beside the target, reserves space, syncs, reads back,
// renames.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>

#include "hdf5.hpp"
#include "token_arrays.hpp"
#include "token_file_draft.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kReadBackTokens = std::int64_t{1} << 20;  // tokens compared at once

void WriteDraft(const TokenFileDraft& draft, const TokenData& data) {
  const StoredVocabulary vocabulary(data.vocabulary, data.tokenizer);
  const std::int64_t types = std::ssize(data.vocabulary.words);

  // When HDF5 1.10 finds no space it cannot close the file and crashes at the program's end. So the
  // space is reserved before HDF5 begins, and stays reserved.
  std::size_t bytes = vocabulary.Bytes() + kHdf5MetadataBytes;
  VisitArrays(data, [&](Split, Array array, const auto& values) {
    const std::size_t width = array == Array::kTokens ? static_cast<std::size_t>(IdWidthOf(types))
                                                      : sizeof values.front();
    bytes += values.size() * width;
  });
  draft.Reserve(bytes, false);

  Hdf5Writer file(draft.Path());
  file.Attribute("format", kTokenFormat);
  vocabulary.Describe(file);
  file.Attribute("source_sha256", data.source_sha256);
  if (data.entropy_rate) file.Attribute("entropy_rate", *data.entropy_rate);
  if (data.harbour_seed) file.Attribute("harbour_seed", *data.harbour_seed);
  vocabulary.Plan(file);
  const std::array stored = {IdTypeOf(types), H5T_STD_U64LE, H5T_STD_U8LE};  // by Array
  const std::array in_memory = {H5T_NATIVE_INT32, H5T_NATIVE_INT64, H5T_NATIVE_UINT8};
  VisitArrays(data, [&](Split split, Array array, const auto& values) {
    const auto a = static_cast<std::size_t>(array);
    if (array != Array::kTokens && values.empty()) return;
    file.Plan(PathOf(split, array), stored.at(a), in_memory.at(a), values.size(), values.data());
  });
  draft.Reserve(file.Bytes(), true);
  file.WriteAndClose();
}

void ReadBack(const TokenFileDraft& draft, const TokenData& data) {
  const TokenLayout layout = InspectTokenFile(draft.Path());
  if (layout.vocabulary.words != data.vocabulary.words) {
    throw RunError(draft.Path() + ": /vocabulary differs when read back");
  }
  const TokenArrays file(draft.Path(), layout);
  std::vector<std::uint16_t> narrow(kReadBackTokens);
  std::vector<std::int32_t> ids(kReadBackTokens);
  for (const Split split : kSplits) {
    const StoredArray& array = layout.Of(split, Array::kTokens);
    const auto& tokens = data.tokens.at(static_cast<std::size_t>(split));
    for (std::int64_t begin = 0; begin < std::ssize(tokens); begin += kReadBackTokens) {
      const std::int64_t end = std::min(begin + kReadBackTokens, std::ssize(tokens));
      const bool wide = array.width == sizeof ids.front();
      file.Read(array, begin, end, wide ? static_cast<void*>(ids.data()) : narrow.data());
      if (!wide) std::ranges::copy(narrow, ids.begin());
      const auto last = tokens.begin() + end;
      const auto differing = std::mismatch(tokens.begin() + begin, last, ids.begin()).first;
      if (differing == last) continue;
      throw RunError(fmt::format("{}: {}: token {} differs when read back", draft.Path(),
                                 array.Path(), differing - tokens.begin()),
                     "The disk did not keep what was written: is it full or broken?");
    }
  }
}

constexpr const char* kTokenFileKey = "data.file";

Error CannotCreate(const std::string& path, const std::string& reason, const std::string& key) {
  return InputError(fmt::format("{}: cannot be created: {}", path, reason),
                    fmt::format("Let {} name a place where you may write.", key));
}

Error InTheWay(const std::string& path, const std::string& key) {
  return InputError(path + ": this file is in the way, and is not an unfinished file of Trireme's",
                    fmt::format("Move it away, or let {} name another.", key));
}

Error NoSpace(const std::string& what, int error, const std::string& key) {
  return RunError(fmt::format("{}: {}", what, ErrorText(error)),
                  fmt::format("Free some space, or let {} name another disk.", key));
}

// Whether `path` can be replaced without loss: nothing is there, no regular file (such as a link),
// or what a killed job left: a file that HDF5 had begun, or that was only reserved (zeros).
bool IsDraft(const std::string& path) {
  constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1a\n";
  constexpr std::string_view kReserved("\0\0\0\0\0\0\0\0", kHdf5.size());
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(path, ignored);
  if (!fs::is_regular_file(status)) return true;
  std::array<char, kHdf5.size()> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), begin.size());
  const std::string_view found(begin.data(), static_cast<std::size_t>(file.gcount()));
  return found.empty() || found == kHdf5 || found == kReserved;
}

}  // namespace

void CheckTokens(const TokenData& data, const std::string& what) {
  const auto words = std::ssize(data.vocabulary.words);
  for (const Split split : kSplits) {
    const auto& tokens = data.tokens.at(static_cast<std::size_t>(split));
    const auto& counted = data.counted.at(static_cast<std::size_t>(split));
    const auto complain = [&](const std::string& fault) {
      throw InputError(fmt::format("{}the {} split{}", what, NameOf(split), fault));
    };
    constexpr std::size_t kLeast = 2;  // a first token, and one target
    if (tokens.size() < kLeast) {
      complain(fmt::format(" holds {} tokens; at least {} are needed", tokens.size(), kLeast));
    }
    if (!counted.empty() && counted.size() != tokens.size()) {
      complain(fmt::format(": a mask of {} elements for {} tokens", counted.size(), tokens.size()));
    }
    const auto bad =
        std::ranges::find_if(tokens, [&](std::int32_t id) { return id < 0 || id >= words; });
    if (bad != tokens.end()) {
      complain(fmt::format(": token {} has id {}, but there are {} words", bad - tokens.begin(),
                           *bad, words));
    }
  }
}

void WriteTokenFile(const std::string& path, const TokenData& data, bool overwrite) {
  CheckTokenFileTarget(path, overwrite);
  CheckTokens(data, "");
  const QuietHdf5 quiet;
  TokenFileDraft draft(path);
  WriteDraft(draft, data);
  draft.Sync();
  ReadBack(draft, data);
  draft.Place();
}

std::string DraftOf(const std::string& target) { return DraftName(BehindLink(target)); }

void CheckTokenFileTarget(const std::string& path, bool overwrite) {
  if (path.empty()) throw InputError("data.file is empty: it must name the token file to write");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::status_known(status)) throw CannotCreate(path, error.message(), kTokenFileKey);
  if (fs::is_directory(status)) {
    throw InputError(path + ": this is a folder; data.file names a file");
  }
  if (fs::exists(status) && !overwrite) {
    throw InputError(path + ": this file exists already",
                     "tokenize.overwrite = yes replaces it; data.file names another.");
  }
  const std::string target = BehindLink(path);
  if (!IsDraft(DraftName(target))) throw InTheWay(DraftName(target), kTokenFileKey);
  const std::string folder = FolderOf(target);
  const fs::file_status place = fs::status(folder, error);
  if (!fs::is_directory(place)) {
    throw InputError(fmt::format("{}: the folder {} {}", path, folder,
                                 fs::exists(place) ? "is a file" : "does not exist"),
                     "Make it, or let data.file name another place.");
  }
  // For the effective user, as in open(2).
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    throw CannotCreate(path, ErrorText(errno), kTokenFileKey);
  }
}

TokenFileDraft::TokenFileDraft(const std::string& target, std::string key)
    : target_(BehindLink(target)), path_(DraftName(target_)), key_(std::move(key)) {
  if (!IsDraft(path_)) throw InTheWay(path_, key_);
  const Descriptor file(CreateNewFile(path_));
  if (file.Valid()) return;
  const int error = errno;
  if (error == ENOSPC || error == EDQUOT)
    throw NoSpace(target + ": cannot be created", error, key_);
  throw CannotCreate(target, ErrorText(error), key_);
}

TokenFileDraft::~TokenFileDraft() {
  std::error_code ignored;
  if (!placed_) fs::remove(path_, ignored);
}

void TokenFileDraft::Reserve(std::size_t bytes, bool keep_length) const {
  const Descriptor file(path_, O_RDWR | O_NOFOLLOW);
  if (!file.Valid()) {
    throw RunError(fmt::format("{}: cannot be opened: {}", path_, ErrorText(errno)));
  }
  const int mode = keep_length ? FALLOC_FL_KEEP_SIZE : 0;
  const int error = ::fallocate(file.Get(), mode, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  // If the file system cannot reserve space, the read-back will show a full disk.
  if (error == 0 || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) return;
  throw NoSpace(fmt::format("{}: cannot reserve {} bytes", path_, bytes), error, key_);
}

void TokenFileDraft::Sync() const { SyncPath(path_); }

void TokenFileDraft::Place() {
  RenameDurably(path_, target_);
  placed_ = true;
}

Hdf5Writer::Hdf5Writer(const std::string& path, bool in_memory) : path_(path) {
  constexpr std::size_t kStep = std::size_t{1} << 20;  // growth of a file in memory, in bytes
  constexpr hsize_t kMetadataBlock = hsize_t{1}
                                     << 14;  // bytes; more than a token file's structures
  const Hdf5Handle access = MakeProperties(H5P_FILE_ACCESS);
  if (in_memory) {
    H5Pset_fapl_core(access.Get(), kStep, false);
  } else {
    H5Pset_file_locking(access.Get(), true, true);
  }
  // Puts all of HDF5's own structures at the front, so that a truncated file can still say what it
  // lacks.
  H5Pset_meta_block_size(access.Get(), kMetadataBlock);
  file_ = {H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.Get()), H5Fclose};
  if (!file_.Valid()) Fail("cannot be created");
}

void Hdf5Writer::Attribute(const char* name, hid_t type, const void* value) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle attribute(
      H5Acreate2(file_.Get(), name, type, space.Get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (H5Awrite(attribute.Get(), type, value) < 0) {
    Fail(fmt::format("attribute {}: cannot be written", name));
  }
}

void Hdf5Writer::Attribute(const char* name, std::int64_t value) {
  Attribute(name, H5T_NATIVE_INT64, &value);
}

void Hdf5Writer::Attribute(const char* name, double value) {
  Attribute(name, H5T_NATIVE_DOUBLE, &value);
}

void Hdf5Writer::Attribute(const char* name, const std::string& value) {
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.Get(), H5T_VARIABLE);
  H5Tset_cset(type.Get(), H5T_CSET_UTF8);
  const char* text = value.c_str();
  Attribute(name, type.Get(), &text);
}

std::int64_t Hdf5Writer::Plan(const std::string& name, hid_t file_type, hid_t memory_type,
                              std::size_t count, const void* values) {
  const Hdf5Handle links = MakeProperties(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(links.Get(), 1);
  const Hdf5Handle creation = MakeProperties(H5P_DATASET_CREATE);
  H5Pset_layout(creation.Get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.Get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.Get(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.Get(), false);
  const hsize_t extent = count;
  const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
  Hdf5Handle set(H5Dcreate2(file_.Get(), name.c_str(), file_type, space.Get(), links.Get(),
                            creation.Get(), H5P_DEFAULT),
                 H5Dclose);
  if (!set.Valid()) Fail(name + ": cannot be created");
  const haddr_t offset = H5Dget_offset(set.Get());
  planned_.push_back({name, std::move(set), memory_type, values});
  return static_cast<std::int64_t>(offset);
}

std::size_t Hdf5Writer::Bytes() const {
  hsize_t bytes = 0;
  if (H5Fget_filesize(file_.Get(), &bytes) < 0) Fail("has no size");
  return bytes;
}

void Hdf5Writer::WriteAndClose() {
  for (Planned& block : planned_) {
    const bool good =
        block.values == nullptr || H5Dwrite(block.set.Get(), block.memory_type, H5S_ALL, H5S_ALL,
                                            H5P_DEFAULT, block.values) >= 0;
    if (!good || !block.set.Close()) Fail(block.name + ": cannot be written");
  }
  if (!file_.Close()) Fail("cannot be closed");
}

void Hdf5Writer::Fail(const std::string& what) const {
  throw RunError(fmt::format("{}: {}", path_, what), Hdf5Reason());
}

StoredVocabulary::StoredVocabulary(const Vocabulary& words, std::string tokenizer)
    : tokenizer_(std::move(tokenizer)), eos_(words.eos), unk_(words.unk) {
  for (const std::string& word : words.words) {
    bytes_ += word;
    offsets_.push_back(bytes_.size());
  }
}

StoredVocabulary::StoredVocabulary(const Tokenizer& tokenizer, std::int64_t eos, std::string prefix)
    : tokenizer_(tokenizer.Kind()),
      prefix_(std::move(prefix)),
      eos_(eos),
      unk_(tokenizer.Unk().value_or(-1)),
      files_(&tokenizer.Source()) {
  for (std::int64_t id = 0; id < tokenizer.VocabularySize(); ++id) {
    bytes_ += tokenizer.Piece(static_cast<std::int32_t>(id));
    offsets_.push_back(bytes_.size());
  }
}

std::size_t StoredVocabulary::Bytes() const {
  std::size_t bytes = bytes_.size() + offsets_.size() * sizeof offsets_.front();
  if (files_ == nullptr) return bytes;
  for (const auto& [name, text] : *files_) bytes += text.size();
  return bytes;
}

void StoredVocabulary::Describe(Hdf5Writer& file) const {
  file.Attribute((prefix_ + "tokenizer").c_str(), tokenizer_);
  file.Attribute((prefix_ + "eos").c_str(), eos_);
  file.Attribute((prefix_ + "unk").c_str(), unk_);
}

void StoredVocabulary::Plan(Hdf5Writer& file) const {
  const std::string folder = "/" + prefix_ + "vocabulary";
  file.Plan(folder + "/bytes", H5T_STD_U8LE, H5T_NATIVE_UINT8, bytes_.size(), bytes_.data());
  file.Plan(folder + "/offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, offsets_.size(),
            offsets_.data());
  if (files_ == nullptr) return;
  for (const auto& [name, text] : *files_) {
    file.Plan("/" + prefix_ + "tokenizer/" + name, H5T_STD_U8LE, H5T_NATIVE_UINT8, text.size(),
              text.data());
  }
}

std::int64_t IdWidthOf(std::int64_t vocabulary) {
  constexpr std::int64_t kNarrowIds = std::numeric_limits<std::uint16_t>::max() + std::int64_t{1};
  return vocabulary <= kNarrowIds ? 2 : 4;
}

hid_t IdTypeOf(std::int64_t vocabulary) {
  return IdWidthOf(vocabulary) == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;
}

}  // namespace trireme::data
