// TokenFile: an open token file as the rest of the program sees it.
#include "trireme/data/token_file.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "stage.hpp"
#include "token_arrays.hpp"
#include "token_codec.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

struct TokenFile::Contents {
  void Allocate(const comm::Communicator& world, const comm::Communicator& node) {
    memory.emplace(world, node, layout, keeping);
    const bool shared = keeping.staging == Staging::kSharedMemory;
    bytes_here = memory->Bytes() / (shared ? node.Size() : 1);
  }
  void RequireInMemory(Split split) const {
    if (memory->Keeps(split)) return;
    throw std::logic_error(fmt::format("{}: the {} split is not in memory", path, NameOf(split)));
  }

  std::string path = {};
  Keeping keeping = {};
  TokenLayout layout = {};
  std::optional<TokenMemory> memory = {};
  std::int64_t bytes_here = 0;
  std::unique_ptr<TokenCodec> codec = {};
  // The stream's file or the node's copy; on ranks that read it, otherwise null.
  std::unique_ptr<const TokenArrays> opened = {};
  StagedCopies staged = {};
};

namespace {

// SHA-256 of all texts, each preceded by its heading.
std::string HashOf(const std::vector<std::pair<std::string, std::string_view>>& texts) {
  std::vector<std::string_view> all;
  for (const auto& [heading, text] : texts) all.insert(all.end(), {heading, text});
  return Sha256(all);
}

std::string HashOf(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string, std::string_view>> texts;
  for (const std::string& word : vocabulary.words) {
    texts.emplace_back(fmt::format("{} ", word.size()), word);
  }
  return HashOf(texts);
}

// The file's layout, from `known` if possible. That entry is used up, since the file may have
// changed by the next opening.
TokenLayout Describe(const std::string& path, Side side, KnownFiles* known) {
  if (known == nullptr || side != Side::kText || !known->contains(path)) {
    return InspectTokenFile(path, side);
  }
  TokenLayout layout = std::move(*known->at(path));
  known->erase(path);
  return layout;
}

}  // namespace

std::string TokenizerSha256Of(const std::map<std::string, std::string>& files) {
  std::vector<std::pair<std::string, std::string_view>> texts;
  for (const auto& [name, contents] : files) {
    texts.emplace_back(fmt::format("{} {} ", name, contents.size()), contents);
  }
  return files.empty() ? "" : HashOf(texts);
}

TokenCounts CountTokens(const std::string& path, KnownFiles* known) {
  const auto found = std::make_shared<TokenLayout>(InspectTokenFile(path));
  const TokenLayout& layout = *found;
  TokenCounts counts{.vocabulary = std::ssize(layout.vocabulary.words),
                     .eos = layout.vocabulary.eos,
                     .unk = layout.vocabulary.unk,
                     .tokenizer = layout.tokenizer,
                     .vocabulary_sha256 = HashOf(layout.vocabulary),
                     .source_sha256 = layout.source_sha256,
                     .tokenizer_sha256 = TokenizerSha256Of(layout.tokenizer_files)};
  for (const Split split : kSplits) {
    const auto i = static_cast<std::size_t>(split);
    counts.tokens[i] = layout.Tokens(split);
    counts.bytes[i] = BytesInMemory(layout, split);
    counts.documents[i] = layout.Of(split, Array::kDocuments).There();
    counts.masks[i] = layout.Of(split, Array::kMask).There();
  }
  if (known != nullptr) (*known)[path] = found;
  return counts;
}

std::int64_t BytesOf(const TokenCounts& counts, const Keeping& keeping) {
  if (IsStream(keeping.staging)) return 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < counts.bytes.size(); ++i) {
    if (keeping.splits[i]) bytes += counts.bytes[i];
  }
  return bytes;
}

std::int64_t StagedBytesOf(const TokenCounts& counts, const Keeping& keeping) {
  if (keeping.staging != Staging::kNode) return 0;
  constexpr std::int64_t kBlock = 4096;  // each array may share a block at both ends
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < counts.bytes.size(); ++i) {
    if (keeping.splits[i]) bytes += counts.bytes[i] + 2 * kBlock * std::ssize(kArrays);
  }
  return bytes;
}

TokenFile::TokenFile(const comm::Communicator& world, const comm::Communicator& node,
                     const std::string& path, const Keeping& keeping,
                     const std::function<void()>& after_round)
    : contents_(new Contents{.path = path, .keeping = keeping}) {
  TokenLayout& layout = contents_->layout;
  const bool any = std::ranges::find(keeping.splits, true) != keeping.splits.end();
  const bool reads = keeping.staging == Staging::kStream && keeping.reads && any;
  // Rank 0 inspects the file alone: faults show before a collective call could hang on them.
  world.Together([&] {
    if (world.IsRoot()) layout = Describe(path, keeping.side, keeping.known);
  });
  Broadcast(world, layout);
  world.Together([&] {
    contents_->codec = std::make_unique<TokenCodec>(layout.vocabulary, layout.tokenizer, path,
                                                    layout.tokenizer_files);
    if (reads) contents_->opened = std::make_unique<TokenArrays>(path, layout);
  });
  if (keeping.staging == Staging::kNode && any) {
    contents_->opened =
        StageOnNodes({path, keeping, world, node}, layout, contents_->staged, after_round);
  }
  contents_->Allocate(world, node);
  if (contents_->memory->Bytes() == 0) return;
  ReadArrays(world, path, layout, *contents_->memory, after_round);
}

TokenFile::TokenFile(const comm::Communicator& world, const TokenData& data)
    : contents_(new Contents{}) {
  TokenLayout& layout = contents_->layout;
  layout.vocabulary = data.vocabulary;
  layout.tokenizer = data.tokenizer;
  layout.source_sha256 = data.source_sha256;
  layout.entropy_rate = data.entropy_rate;
  world.Together([&] {
    CheckTokens(data, "tokens in memory: ");
    contents_->codec =
        std::make_unique<TokenCodec>(layout.vocabulary, layout.tokenizer, "tokens in memory");
  });
  VisitArrays(data, [&](Split split, Array array, const auto& values) {
    if (values.empty()) return;
    layout.arrays.at(static_cast<std::size_t>(split)).at(static_cast<std::size_t>(array)) = {
        .count = std::ssize(values), .width = sizeof values.front()};
  });
  contents_->Allocate(world, world);
  VisitArrays(data, [&]<typename T>(Split split, Array array, const std::vector<T>& values) {
    std::ranges::copy(values, static_cast<T*>(contents_->memory->At(split, array)));
  });
}

TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&&) noexcept = default;

std::int64_t TokenFile::Size(Split split) const { return contents_->layout.Tokens(split); }

bool TokenFile::Keeps(Split split) const { return contents_->memory->Keeps(split); }

bool TokenFile::HasDocuments(Split split) const {
  return contents_->layout.Of(split, Array::kDocuments).There();
}

bool TokenFile::HasMask(Split split) const {
  return contents_->layout.Of(split, Array::kMask).There();
}

WindowView TokenFile::View(Split split, std::int64_t begin, std::int64_t count,
                           bool documents) const {
  contents_->RequireInMemory(split);
  const TokenMemory& memory = *contents_->memory;
  const TokenLayout& layout = contents_->layout;
  WindowView view;
  view.size = count;
  view.origin = begin;
  const void* const ids = memory.At(split, Array::kTokens);
  if (layout.Of(split, Array::kTokens).width == sizeof(std::uint16_t)) {
    view.narrow = static_cast<const std::uint16_t*>(ids) + begin;
  } else {
    view.wide = static_cast<const std::int32_t*>(ids) + begin;
  }
  if (documents) {
    const std::span<const std::int64_t> all = Beginnings(split);
    const auto first = std::ranges::lower_bound(all, begin);
    view.documents = {first, std::lower_bound(first, all.end(), begin + count)};
  }
  if (HasMask(split)) {
    view.counted = {static_cast<const std::uint8_t*>(memory.At(split, Array::kMask)) + begin,
                    static_cast<std::size_t>(count)};
  }
  return view;
}

std::int64_t TokenFile::Documents(Split split) const {
  return contents_->layout.Of(split, Array::kDocuments).count;
}

std::span<const std::int64_t> TokenFile::Beginnings(Split split) const {
  contents_->RequireInMemory(split);
  return {static_cast<const std::int64_t*>(contents_->memory->At(split, Array::kDocuments)),
          static_cast<std::size_t>(Documents(split))};
}

bool TokenFile::Streams() const { return IsStream(contents_->keeping.staging); }
std::int64_t TokenFile::ReadAhead() const { return contents_->keeping.read_ahead; }
const TokenLayout& TokenFile::Layout() const { return contents_->layout; }

const TokenArrays& TokenFile::Opened() const {
  if (contents_->opened) return *contents_->opened;
  throw std::logic_error(fmt::format("{}: no stream of it is read on this rank", Path()));
}

bool TokenFile::OpenedHolds(Split split) const {
  const Keeping& keeping = contents_->keeping;
  return keeping.staging == Staging::kStream ||
         (keeping.staging == Staging::kNode && keeping.splits.at(static_cast<std::size_t>(split)));
}

const StagedCopies& TokenFile::Staged() const { return contents_->staged; }

const Vocabulary& TokenFile::Words() const { return contents_->layout.vocabulary; }
const std::string& TokenFile::Tokenizer() const { return contents_->layout.tokenizer; }
const std::map<std::string, std::string>& TokenFile::TokenizerFiles() const {
  return contents_->layout.tokenizer_files;
}
const std::string& TokenFile::SourceSha256() const { return contents_->layout.source_sha256; }
std::string TokenFile::VocabularySha256() const { return HashOf(Words()); }

std::string TokenFile::TokenizerSha256() const { return TokenizerSha256Of(TokenizerFiles()); }

std::optional<double> TokenFile::EntropyRate() const { return contents_->layout.entropy_rate; }
std::int64_t TokenFile::MemoryBytes() const { return contents_->bytes_here; }
const std::string& TokenFile::Path() const { return contents_->path; }

std::vector<std::int32_t> TokenFile::Encode(std::string_view text, bool whole) const {
  std::vector<std::int32_t> ids, suffix;
  contents_->codec->Template(ids, suffix);
  contents_->codec->Encode(text, ids);
  if (whole) ids.insert(ids.end(), suffix.begin(), suffix.end());
  return ids;
}

std::string TokenFile::Decode(const std::vector<std::int32_t>& ids) const {
  return contents_->codec->Decode(ids);
}

}  // namespace trireme::data
