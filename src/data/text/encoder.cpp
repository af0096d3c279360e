// Encoding in pieces of about a MiB, cut where the tokenizer allows it.
#include "encoder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>

#include "positioned_file.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

// SmallestHashes, MovesToEmptySplits.

void SmallestHashes::Add(const HashedDocument& document) {
  std::vector<HashedDocument>& kept = smallest_.at(static_cast<std::size_t>(document.split));
  if (kept.size() == kKept && document > kept.back()) return;
  kept.insert(std::upper_bound(kept.begin(), kept.end(), document), document);
  if (kept.size() > kKept) kept.pop_back();
}

std::vector<HashedDocument> SmallestHashes::All() const {
  std::vector<HashedDocument> all;
  for (const auto& kept : smallest_) all.insert(all.end(), kept.begin(), kept.end());
  return all;
}

std::vector<DocumentMove> MovesToEmptySplits(std::vector<HashedDocument> documents,
                                             const std::array<bool, 3>& wanted, SplitSizes& sizes) {
  std::sort(documents.begin(), documents.end());
  std::vector<DocumentMove> moves;
  for (const Split to : {Split::kValid, Split::kTest, Split::kTrain}) {
    const auto t = static_cast<std::size_t>(to);
    while (wanted.at(t) && sizes.tokens.at(t) < kLeastTokens) {
      const auto found =
          std::find_if(documents.begin(), documents.end(), [&](const HashedDocument& document) {
            const auto from = static_cast<std::size_t>(document.split);
            const std::int64_t left =
                sizes.tokens.at(from) - static_cast<std::int64_t>(document.tokens);
            return document.split != to && left >= kLeastTokens;
          });
      if (found == documents.end()) break;
      const auto from = static_cast<std::size_t>(found->split);
      const auto tokens = static_cast<std::int64_t>(found->tokens);
      moves.push_back({*found, to});
      sizes.tokens.at(from) -= tokens;
      sizes.tokens.at(t) += tokens;
      --sizes.documents.at(from);
      ++sizes.documents.at(t);
      documents.erase(found);
    }
  }
  return moves;
}

// O_TMPFILE, or a file that loses its name at once where the file system has no such thing.

namespace {

constexpr std::size_t kSpillBuffer = std::size_t{1} << 20;  // bytes
constexpr std::int64_t kBlock = 4096;                       // bytes; of most file systems

int OpenNameless(const std::string& folder) {
  constexpr mode_t kOwner = 0600;
  const int file =
      Retry([&] { return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwner); });
  if (file >= 0) return file;
  std::string name = folder + "/.trireme_tokens_XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

Spill::Spill(const std::string& folder) : folder_(folder), file_(OpenNameless(folder)) {
  if (!file_.Valid()) {
    throw RunError(
        fmt::format("{}: no temporary file can be made there: {}", folder, ErrorText(errno)));
  }
  buffer_.reserve(kSpillBuffer);
}

void Spill::Flush() {
  Put(size_ - static_cast<std::int64_t>(buffer_.size()), buffer_.data(), buffer_.size());
  buffer_.clear();
}

void Spill::Put(std::int64_t begin, const void* bytes, std::size_t count) {
  ahead_.clear();
  const int error = WriteAt(file_.Get(), bytes, count, begin);
  if (error != 0) {
    throw RunError(fmt::format("{}: a temporary file of tokens cannot be written: {}", folder_,
                               ErrorText(error)),
                   "Tokens may be kept there twice for a while: free some space, or let data.file "
                   "name another disk.");
  }
}

void Spill::Overwrite(std::int64_t begin, const void* bytes, std::size_t count) {
  if (!buffer_.empty()) Flush();
  Put(begin, bytes, count);
}

void Spill::Release(std::int64_t begin, std::int64_t end) {
  // Whole blocks alone: a part of one would be filled with zeros.
  begin = (begin + kBlock - 1) / kBlock * kBlock;
  end = end / kBlock * kBlock;
  if (begin >= end) return;
  ::fallocate(file_.Get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin);
}

void Spill::Append(const void* bytes, std::size_t count) {
  const char* const begin = static_cast<const char*>(bytes);
  buffer_.insert(buffer_.end(), begin, begin + count);
  size_ += static_cast<std::int64_t>(count);
  if (buffer_.size() >= kSpillBuffer) Flush();
}

void Spill::Read(std::int64_t begin, void* to, std::size_t count) {
  if (!buffer_.empty()) Flush();
  if (count >= kSpillBuffer) return Get(begin, static_cast<char*>(to), count);
  const std::int64_t end = begin + static_cast<std::int64_t>(count);
  if (begin < ahead_begin_ || end > ahead_begin_ + std::ssize(ahead_)) {
    // As far as the file goes, but for a range that it does not hold, whose reading fails.
    const std::int64_t most = std::min(size_ - begin, static_cast<std::int64_t>(kSpillBuffer));
    ahead_.resize(std::max(static_cast<std::size_t>(std::max<std::int64_t>(most, 0)), count));
    ahead_begin_ = begin;
    Get(begin, ahead_.data(), ahead_.size());
  }
  std::copy_n(ahead_.begin() + (begin - ahead_begin_), count, static_cast<char*>(to));
}

void Spill::Get(std::int64_t begin, char* at, std::size_t count) {
  while (count > 0) {
    const auto got = Retry([&] { return ::pread(file_.Get(), at, count, begin); });
    if (got <= 0) {
      throw RunError(fmt::format("{}: a temporary file of tokens cannot be read: {}", folder_,
                                 got == 0 ? "it is cut off" : ErrorText(errno)));
    }
    at += got;
    begin += got;
    count -= static_cast<std::size_t>(got);
  }
}

namespace {

constexpr std::size_t kEncodedBytes = std::size_t{1} << 20;  // at once, of a long document

constexpr std::size_t kLongestPiece = std::size_t{16} << 20;  // bytes encoded at once, at most

}  // namespace

std::int64_t WidthOf(const Tokenizer& tokenizer) {
  constexpr std::int64_t kNarrowIds = std::numeric_limits<std::uint16_t>::max() + std::int64_t{1};
  return tokenizer.VocabularySize() <= kNarrowIds ? 2 : 4;
}

SplitSizes SumOf(std::span<const UnitResult> results) {
  SplitSizes sizes;
  for (const UnitResult& result : results) {
    for (std::size_t s = 0; s < kSplits.size(); ++s) {
      sizes.tokens.at(s) += result.tokens.at(s);
      sizes.documents.at(s) += result.documents.at(s);
    }
  }
  return sizes;
}

struct Encoder::Hash {
  Hash() : document(XXH3_createState()), unit(XXH3_createState()) {
    if (document == nullptr || unit == nullptr) throw RunError("no memory for a hash");
  }
  ~Hash() {
    XXH3_freeState(document);
    XXH3_freeState(unit);
  }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  XXH3_state_t* document;
  XXH3_state_t* unit;
};

Encoder::Encoder(Tokenizer& tokenizer, const EncodeSettings& settings, Spills& spills)
    : tokenizer_(tokenizer),
      settings_(settings),
      spills_(spills),
      width_(WidthOf(tokenizer)),
      hash_(std::make_unique<Hash>()),
      enough_(kEncodedBytes) {
  tokenizer.Template(prefix_, suffix_);
  const auto eos = static_cast<std::int32_t>(settings.eos);
  if (suffix_.empty() || suffix_.back() != eos) suffix_.push_back(eos);
}

Encoder::~Encoder() = default;

void Encoder::Begin(std::size_t unit, const TextFile& file) {
  result_ = {.unit = unit,
             .tokens_at = spills_.tokens.Size() / width_,
             .documents_at =
                 spills_.documents.Size() / static_cast<std::int64_t>(sizeof(SpilledDocument))};
  split_ = file.split;
  path_ = file.path;
  records_ = file.json_lines;
  XXH3_128bits_reset(hash_->unit);
}

UnitResult Encoder::Finish() {
  const XXH128_hash_t digest = XXH3_128bits_digest(hash_->unit);
  result_.digest = {digest.low64, digest.high64};
  return result_;
}

void Encoder::Open(bool counted) {
  if (open_) return;
  open_ = true;
  tokens_ = 0;
  XXH3_64bits_reset(hash_->document);
  ids_ = prefix_;
  Emit(counted);
}

void Encoder::Prompt(std::string_view text, std::int64_t offset) {
  offset_ = offset;
  Open(false);
  XXH3_64bits_update(hash_->document, text.data(), text.size());
  EncodeText(text, false);
  Emit(false);
}

void Encoder::Text(std::string_view piece, std::int64_t offset) {
  if (piece.empty()) return;
  if (!open_) offset_ = offset;
  Open(true);
  XXH3_64bits_update(hash_->document, piece.data(), piece.size());
  text_ += piece;
  if (text_.size() >= enough_) EncodeHeld(false);
}

void Encoder::EncodeHeld(bool ended) {
  const std::size_t cut = ended ? text_.size() : tokenizer_.SafeCut(text_);
  if (cut == 0 && text_.size() >= kLongestPiece) RefuseLong();
  if (cut == 0) {
    enough_ = 2 * text_.size();  // no place for a cut: look again in a text twice as long
    return;
  }
  EncodeText(std::string_view(text_).substr(0, cut), cut_);
  cut_ = !ended;
  Emit(true);
  text_.erase(0, cut);
  enough_ = std::max(kEncodedBytes, 2 * text_.size());
}

void Encoder::EncodeText(std::string_view text, bool rest) {
  ids_.clear();
  try {
    if (rest) {
      tokenizer_.EncodeRest(text, ids_);
    } else {
      tokenizer_.Encode(text, ids_);
    }
  } catch (const Error& error) {
    throw Error(error.Code(), fmt::format("{}: {} at byte {}: {}", path_,
                                          records_ ? "record" : "document", offset_, error.what()));
  }
}

void Encoder::RefuseLong() const {
  throw InputError(
      fmt::format("{}: the {} at byte {} has {} MiB without a place at which its text may be cut "
                  "for this tokenizer",
                  path_, records_ ? "record" : "document", offset_, kLongestPiece >> 20),
      records_ ? "Make several records of it."
               : "tokenize.document = line or blank_line makes shorter documents of plain text.");
}

void Encoder::Emit(bool counted) {
  const std::int64_t most = tokenizer_.VocabularySize();
  const auto bad =
      std::find_if(ids_.begin(), ids_.end(), [&](auto id) { return id < 0 || id >= most; });
  if (bad != ids_.end()) {
    throw RunError(fmt::format("the tokenizer gave id {} of {} types", *bad, most));
  }
  if (width_ == 2) {
    narrow_.assign(ids_.begin(), ids_.end());
    spills_.tokens.Append(narrow_.data(), narrow_.size() * sizeof(std::uint16_t));
  } else {
    spills_.tokens.Append(ids_.data(), ids_.size() * sizeof(std::int32_t));
  }
  if (settings_.masks) {
    const std::string mask(ids_.size(), static_cast<char>(counted));
    spills_.mask.Append(mask.data(), mask.size());
  }
  tokens_ += ids_.size();
}

Split EncodeSettings::SplitOf(std::uint64_t hash, Split file) const {
  if (file != Split::kTrain) return file;
  constexpr int kDigits = 53;  // of a double
  const double place = static_cast<double>(hash >> (64 - kDigits)) * 0x1p-53;
  if (place < valid_fraction) return Split::kValid;
  return place < valid_fraction + test_fraction ? Split::kTest : Split::kTrain;
}

void Encoder::End() {
  if (!open_) return;
  if (!text_.empty()) EncodeHeld(true);
  enough_ = kEncodedBytes;
  ids_ = suffix_;
  Emit(true);
  const std::uint64_t hash = XXH3_64bits_digest(hash_->document);
  const Split split = settings_.SplitOf(hash, split_);
  const SpilledDocument document{tokens_, static_cast<std::uint64_t>(split)};
  spills_.documents.Append(&document, sizeof document);
  const auto s = static_cast<std::size_t>(split);
  const bool by_hash = split_ == Split::kTrain;
  if (by_hash && settings_.valid_fraction + settings_.test_fraction > 0) {
    const std::int64_t place = result_.documents[0] + result_.documents[1] + result_.documents[2];
    smallest_.Add({hash, result_.unit, static_cast<std::uint64_t>(place), tokens_, split});
  }
  result_.tokens.at(s) += static_cast<std::int64_t>(tokens_);
  ++result_.documents.at(s);
  const std::array<std::uint64_t, 2> record = {hash, document.split};
  XXH3_128bits_update(hash_->unit, record.data(), sizeof record);
  open_ = false;
}

}  // namespace trireme::data
