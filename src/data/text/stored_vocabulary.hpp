// A tokenizer as a token file keeps it: attributes, /vocabulary, /tokenizer.
#ifndef TRIREME_SRC_DATA_TEXT_STORED_VOCABULARY_HPP_
#define TRIREME_SRC_DATA_TEXT_STORED_VOCABULARY_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hdf5_writer.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Must live until the file is written, as the tokenizer must.
class StoredVocabulary {
 public:
  explicit StoredVocabulary(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (std::int64_t id = 0; id < tokenizer.VocabularySize(); ++id) {
      bytes_ += tokenizer.Piece(static_cast<std::int32_t>(id));
      offsets_.push_back(bytes_.size());
    }
  }

  // Of its datasets.
  std::size_t Bytes() const {
    std::size_t bytes = bytes_.size() + offsets_.size() * sizeof offsets_.front();
    for (const auto& [name, text] : tokenizer_.Source()) bytes += text.size();
    return bytes;
  }
  // prefix: of all names, "" or "source_".
  void Describe(Hdf5Writer& file, std::int64_t eos, const std::string& prefix) const {
    file.Attribute((prefix + "tokenizer").c_str(), std::string(tokenizer_.Kind()));
    file.Attribute((prefix + "eos").c_str(), eos);
    file.Attribute((prefix + "unk").c_str(), std::int64_t{tokenizer_.Unk().value_or(-1)});
  }
  void Plan(Hdf5Writer& file, const std::string& prefix) const {
    const std::string folder = "/" + prefix + "vocabulary";
    file.Plan(folder + "/bytes", H5T_STD_U8LE, H5T_NATIVE_UINT8, bytes_.size(), bytes_.data());
    file.Plan(folder + "/offsets", H5T_STD_U64LE, H5T_NATIVE_UINT64, offsets_.size(),
              offsets_.data());
    for (const auto& [name, text] : tokenizer_.Source()) {
      file.Plan("/" + prefix + "tokenizer/" + name, H5T_STD_U8LE, H5T_NATIVE_UINT8, text.size(),
                text.data());
    }
  }

 private:
  const Tokenizer& tokenizer_;
  std::string bytes_;
  std::vector<std::uint64_t> offsets_ = {0};
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_STORED_VOCABULARY_HPP_
