// Fuzz target: what a token file says of itself. HDF5 is not made for hostile bytes and not ours to
// repair, so that the input describes a file, which HDF5 writes; hostile_token_file.hpp says what
// of it may be wrong.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "fuzz.hpp"
#include "hdf5.hpp"
#include "hostile_token_file.hpp"
#include "token_layout.hpp"

namespace trireme::fuzz {
namespace {

// A file of this process in TMPDIR, written over and over. HDF5 asks for the real path: an unnamed
// file in memory has none.
class ScratchFile {
 public:
  ScratchFile() {
    const char* folder = std::getenv("TMPDIR");
    path_ = std::string(folder != nullptr ? folder : "/tmp") + "/fuzz_token_file_" +
            std::to_string(getpid()) + ".h5";
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    Require(file_ >= 0, path_ + " cannot be made");
  }
  ~ScratchFile() {
    ::close(file_);
    ::unlink(path_.c_str());
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::string& Path() const { return path_; }
  void Fill(const std::string& bytes) const {
    const bool filled = ::ftruncate(file_, 0) == 0 &&
                        ::pwrite(file_, bytes.data(), bytes.size(), 0) == std::ssize(bytes);
    Require(filled, path_ + " cannot be filled");
  }

 private:
  std::string path_;
  int file_ = -1;
};

void Try(const std::string& path, std::int64_t file_bytes) {
  const data::TokenLayout layout = data::InspectTokenFile(path);
  const auto words = std::ssize(layout.vocabulary.words);
  Require(words >= 1 && layout.vocabulary.eos >= 0 && layout.vocabulary.eos < words &&
              layout.vocabulary.unk >= -1 && layout.vocabulary.unk < words,
          "ids outside the vocabulary");
  for (const data::Split split : data::kSplits) {
    const data::StoredArray& tokens = layout.Of(split, data::Array::kTokens);
    Require((tokens.width == 2 || tokens.width == 4) && tokens.count >= 2,
            "too few tokens, or too wide");
    for (const data::Array array : data::kArrays) {
      const data::StoredArray& stored = layout.Of(split, array);
      if (!stored.There()) continue;
      Require(stored.offset >= 0 && stored.offset <= file_bytes &&
                  stored.count <= (file_bytes - stored.offset) / stored.width,
              "elements that the file does not hold");
      Require(stored.count <= tokens.count, "more elements than tokens");
    }
  }
}

}  // namespace
}  // namespace trireme::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  static const fuzz::ScratchFile file;
  const data::QuietHdf5 quiet;
  fuzz::Choices choices(data, size);
  const std::string bytes = fuzz::HostileTokenFile(choices);
  file.Fill(bytes);
  const bool accepted = fuzz::Accepted([&] { fuzz::Try(file.Path(), std::ssize(bytes)); });
  fuzz::Require(accepted || size > 0, "the good token file was refused");
  return 0;
}
