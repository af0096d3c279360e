// TokenFile: the opened file as the rest of the program sees it.
#include "trireme/data/token_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sha256.hpp"
#include "token_codec.hpp"
#include "token_file_read.hpp"
#include "token_layout.hpp"
#include "token_masks.hpp"
#include "token_memory.hpp"
#include "trireme/base/error.hpp"

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
  TokenMasks masks;
};

namespace {

std::string HashOf(const Vocabulary& vocabulary) {
  std::vector<std::string> lengths;
  for (const std::string& word : vocabulary.words) {
    lengths.push_back(fmt::format("{} ", word.size()));
  }
  std::vector<std::string_view> texts;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    texts.emplace_back(lengths[i]);
    texts.emplace_back(vocabulary.words[i]);
  }
  return Sha256(texts);
}

// Empty without files.
std::string HashOf(const tokenizer::Files& files) {
  if (files.empty()) return {};
  std::vector<std::string> headings;
  for (const auto& [name, contents] : files) {
    headings.push_back(fmt::format("{} {} ", name, contents.size()));
  }
  std::vector<std::string_view> texts;
  std::size_t i = 0;
  for (const auto& [name, contents] : files) {
    texts.emplace_back(headings[i++]);
    texts.emplace_back(contents);
  }
  return Sha256(texts);
}

}  // namespace

TokenCounts CountTokens(const std::string& path) {
  const TokenLayout layout = InspectTokenFile(path);
  TokenCounts counts{.vocabulary = std::ssize(layout.vocabulary.words),
                     .tokens = layout.counts,
                     .bytes = 0,
                     .tokenizer = layout.tokenizer,
                     .vocabulary_sha256 = HashOf(layout.vocabulary),
                     .source_sha256 = layout.source_sha256,
                     .tokenizer_sha256 = HashOf(layout.tokenizer_files)};
  for (std::size_t i = 0; i < layout.counts.size(); ++i) {
    counts.bytes += layout.counts[i] * layout.widths[i];
  }
  FindMasks(path, counts);
  return counts;
}

TokenFile::TokenFile(const comm::Communicator& world, const comm::Communicator& node,
                     const std::string& path, Staging staging,
                     const std::function<void()>& after_round) {
  TokenLayout layout;
  std::unique_ptr<const TokenCodec> codec;
  TokenMasks masks;
  // One rank finds faults of the file before a collective call could hang on them.
  world.Together([&] {
    if (!world.IsRoot()) return;
    layout = InspectTokenFile(path);
    masks = ReadMasks(path, layout);
  });
  Broadcast(world, layout);
  Broadcast(world, masks);
  world.Together([&] {
    codec = std::make_unique<TokenCodec>(layout.vocabulary, layout.tokenizer, path,
                                         layout.tokenizer_files);
  });
  contents_ = std::make_unique<Contents>(world, node, path, std::move(layout), staging);
  contents_->codec = std::move(codec);
  contents_->masks = std::move(masks);
  ReadTokens(world, path, contents_->layout, contents_->memory, after_round);
}

namespace {

void CheckTokens(const TokenData& data) {
  const auto words = std::ssize(data.vocabulary.words);
  for (const Split split : kSplits) {
    const auto& tokens = data.tokens.at(static_cast<std::size_t>(split));
    if (tokens.size() < 2) {
      throw InputError(
          fmt::format("tokens in memory: {} holds {}, fewer than 2", NameOf(split), tokens.size()));
    }
    const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                  [words](std::int32_t id) { return id < 0 || id >= words; });
    if (bad == tokens.end()) continue;
    throw InputError(fmt::format("tokens in memory: {}: id {} at offset {} is not below {}",
                                 NameOf(split), *bad, bad - tokens.begin(), words));
  }
}

}  // namespace

TokenFile::TokenFile(const comm::Communicator& world, const TokenData& data) {
  TokenLayout layout;
  layout.vocabulary = data.vocabulary;
  layout.tokenizer = data.tokenizer;
  layout.source_sha256 = data.source_sha256;
  layout.entropy_rate = data.entropy_rate;
  std::unique_ptr<const TokenCodec> codec;
  world.Together([&] {
    CheckTokens(data);
    codec = std::make_unique<TokenCodec>(layout.vocabulary, layout.tokenizer, "tokens in memory");
  });
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    layout.counts[i] = std::ssize(data.tokens[i]);
    layout.widths[i] = sizeof(std::uint32_t);
  }
  contents_ =
      std::make_unique<Contents>(world, world, std::string(), std::move(layout), Staging::kNone);
  contents_->codec = std::move(codec);
  contents_->masks = {data.documents, data.counted};
  for (const Split split : kSplits) {
    const auto& tokens = data.tokens.at(static_cast<std::size_t>(split));
    std::copy(tokens.begin(), tokens.end(),
              static_cast<std::uint32_t*>(contents_->memory.Tokens(split)));
  }
}

TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

std::int64_t TokenFile::Size(Split split) const {
  return contents_->layout.counts.at(static_cast<std::size_t>(split));
}

std::int32_t TokenFile::Token(Split split, std::int64_t index) const {
  return contents_->memory.Token(split, index);
}

bool TokenFile::HasDocuments(Split split) const {
  return !contents_->masks.documents.at(static_cast<std::size_t>(split)).empty();
}

bool TokenFile::HasMask(Split split) const {
  return !contents_->masks.counted.at(static_cast<std::size_t>(split)).empty();
}

void TokenFile::Read(Split split, std::int64_t begin, std::int64_t count, Window& window) const {
  const auto i = static_cast<std::size_t>(split);
  window.ids.resize(static_cast<std::size_t>(count));
  for (std::int64_t t = 0; t < count; ++t) {
    window.ids[static_cast<std::size_t>(t)] = contents_->memory.Token(split, begin + t);
  }
  window.documents.clear();
  window.counted.clear();
  const std::vector<std::int64_t>& documents = contents_->masks.documents[i];
  if (!documents.empty()) window.documents.reserve(static_cast<std::size_t>(count));
  for (auto at = std::lower_bound(documents.begin(), documents.end(), begin);
       at != documents.end() && *at < begin + count; ++at) {
    window.documents.push_back(*at - begin);
  }
  const std::vector<std::uint8_t>& counted = contents_->masks.counted[i];
  if (!counted.empty())
    window.counted.assign(counted.begin() + begin, counted.begin() + begin + count);
}

const Vocabulary& TokenFile::Words() const { return contents_->layout.vocabulary; }
const std::string& TokenFile::Tokenizer() const { return contents_->layout.tokenizer; }
const std::string& TokenFile::SourceSha256() const { return contents_->layout.source_sha256; }
std::string TokenFile::VocabularySha256() const { return HashOf(Words()); }

std::string TokenFile::TokenizerSha256() const { return HashOf(contents_->layout.tokenizer_files); }

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
