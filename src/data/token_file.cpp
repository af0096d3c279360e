// TokenFile: the opened file as the rest of the program sees it.
#include "trireme/data/token_file.hpp"

#include <utility>

#include "token_codec.hpp"
#include "token_file_read.hpp"
#include "token_layout.hpp"
#include "token_memory.hpp"

namespace trireme::data {

struct TokenFile::Contents {
  Contents(const comm::Communicator& world, const comm::Communicator& node, std::string file,
           TokenLayout found, Staging staging)
      : path(std::move(file)),
        layout(std::move(found)),
        memory(world, node, layout, staging),
        bytes_here(staging == Staging::kNone ? memory.Bytes() : memory.Bytes() / node.Size()) {}

  std::string path;
  TokenLayout layout;
  TokenMemory memory;
  std::int64_t bytes_here;
  std::unique_ptr<const TokenCodec> codec;
};

const char* NameOf(Split split) {
  switch (split) {
    case Split::kTrain:
      return "train";
    case Split::kValid:
      return "valid";
    case Split::kTest:
      return "test";
  }
  return "?";
}

TokenFile::TokenFile(const comm::Communicator& world, const comm::Communicator& node,
                     const std::string& path, Staging staging) {
  TokenLayout layout;
  std::unique_ptr<const TokenCodec> codec;
  // What is wrong with the file is found by one rank, before any collective call could hang on it.
  world.Together([&] {
    if (world.IsRoot()) layout = InspectTokenFile(path);
  });
  Broadcast(world, layout);
  world.Together(
      [&] { codec = std::make_unique<TokenCodec>(layout.vocabulary, layout.tokenizer, path); });
  contents_ = std::make_unique<Contents>(world, node, path, std::move(layout), staging);
  contents_->codec = std::move(codec);
  ReadTokens(world, path, contents_->layout, contents_->memory);
}

TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

std::int64_t TokenFile::Size(Split split) const {
  return contents_->layout.counts.at(static_cast<std::size_t>(split));
}

std::int32_t TokenFile::Token(Split split, std::int64_t index) const {
  return contents_->memory.Token(split, index);
}

const Vocabulary& TokenFile::Words() const { return contents_->layout.vocabulary; }
const std::string& TokenFile::Tokenizer() const { return contents_->layout.tokenizer; }
const std::string& TokenFile::SourceSha256() const { return contents_->layout.source_sha256; }
std::optional<double> TokenFile::EntropyRate() const { return contents_->layout.entropy_rate; }
std::int64_t TokenFile::MemoryBytes() const { return contents_->bytes_here; }
const std::string& TokenFile::Path() const { return contents_->path; }

std::vector<std::int32_t> TokenFile::Encode(std::string_view text) const {
  return contents_->codec->Encode(text);
}

std::string TokenFile::Decode(const std::vector<std::int32_t>& ids) const {
  return contents_->codec->Decode(ids);
}

}  // namespace trireme::data
