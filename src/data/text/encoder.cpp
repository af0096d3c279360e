// Encoder, and the temporary files that receive its ids.
#include "encoder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "token_file_draft.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

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
  std::array<std::int64_t, 3>& tokens = sizes.tokens[0];
  for (const Split to : {Split::kValid, Split::kTest, Split::kTrain}) {
    const auto t = static_cast<std::size_t>(to);
    while (wanted.at(t) && tokens.at(t) < kLeastTokens) {
      const auto found =
          std::find_if(documents.begin(), documents.end(), [&](const HashedDocument& document) {
            const auto from = static_cast<std::size_t>(document.split);
            const std::int64_t left = tokens.at(from) - static_cast<std::int64_t>(document.tokens);
            return document.split != to && left >= kLeastTokens;
          });
      if (found == documents.end()) break;
      const auto from = static_cast<std::size_t>(found->split);
      moves.push_back({*found, to});
      tokens.at(from) -= static_cast<std::int64_t>(found->tokens);
      tokens.at(t) += static_cast<std::int64_t>(found->tokens);
      --sizes.documents.at(from);
      ++sizes.documents.at(t);
      documents.erase(found);
    }
  }
  return moves;
}

namespace {

constexpr std::size_t kSpillBuffer = std::size_t{1} << 20;  // bytes
constexpr std::int64_t kBlock = 4096;  // bytes; block size of most file systems

// Opens a file with O_TMPFILE or, where the file system lacks that, one that loses its name at
// once.
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

// Bytes of a long document that are encoded at a time, and the limit where no cut is found.
constexpr std::size_t kEncodedBytes = std::size_t{1} << 20;
constexpr std::size_t kLongestPiece = std::size_t{16} << 20;

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
  const auto wanted = static_cast<std::int64_t>(count);
  if (WriteAt(file_.Get(), bytes, wanted, begin) < wanted) {
    throw RunError(fmt::format("{}: a temporary file of tokens cannot be written: {}", folder_,
                               ErrorText(errno)),
                   "Tokens may be kept there twice for a while: free some space, or let data.file "
                   "name another disk.");
  }
}

void Spill::Overwrite(std::int64_t begin, const void* bytes, std::size_t count) {
  if (!buffer_.empty()) Flush();
  Put(begin, bytes, count);
}

void Spill::Release(std::int64_t begin, std::int64_t end) {
  // Only whole blocks are freed: a part of a block would only be overwritten by zeros.
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
    // Reads ahead to the file's end, but at least `count` bytes: a range beyond the file must fail.
    const std::int64_t most = std::min(size_ - begin, static_cast<std::int64_t>(kSpillBuffer));
    ahead_.resize(std::max(static_cast<std::size_t>(std::max<std::int64_t>(most, 0)), count));
    ahead_begin_ = begin;
    Get(begin, ahead_.data(), ahead_.size());
  }
  std::copy_n(ahead_.begin() + (begin - ahead_begin_), count, static_cast<char*>(to));
}

void Spill::Get(std::int64_t begin, char* to, std::size_t count) {
  const auto wanted = static_cast<std::int64_t>(count);
  if (ReadAt(file_.Get(), to, wanted, begin) == wanted) return;
  throw RunError(fmt::format("{}: a temporary file of tokens cannot be read: {}", folder_,
                             errno == 0 ? "it is cut off" : ErrorText(errno)));
}

Spills::Spills(const std::string& folder, std::size_t texts)
    : mask(folder),
      rest(folder),
      documents_(folder),
      document_bytes_(static_cast<std::int64_t>((1 + texts) * sizeof(std::uint64_t))) {
  for (std::size_t t = 0; t < texts; ++t) tokens.emplace_back(folder);
}

void Spills::Append(const SpilledDocument& document) {
  documents_.Append(&document, static_cast<std::size_t>(document_bytes_));
}

SpilledDocument Spills::Document(std::int64_t place) {
  SpilledDocument document;
  documents_.Read(place * document_bytes_, &document, static_cast<std::size_t>(document_bytes_));
  return document;
}

void Spills::Overwrite(std::int64_t place, const SpilledDocument& document) {
  documents_.Overwrite(place * document_bytes_, &document,
                       static_cast<std::size_t>(document_bytes_));
}

void SplitSizes::Add(const UnitResult& unit) {
  for (std::size_t s = 0; s < kSplits.size(); ++s) {
    for (std::size_t t = 0; t < tokens.size(); ++t) tokens.at(t).at(s) += unit.tokens.at(t).at(s);
    documents.at(s) += unit.documents.at(s);
  }
}

SplitSizes SumOf(std::span<const UnitResult> results) {
  SplitSizes sizes;
  for (const UnitResult& result : results) sizes.Add(result);
  return sizes;
}

Split EncodeSettings::SplitOf(std::uint64_t hash, Split file) const {
  if (file != Split::kTrain) return file;
  constexpr int kDigits = 53;  // bits that a double holds
  const double place = static_cast<double>(hash >> (64 - kDigits)) * 0x1p-53;
  if (place < valid_fraction) return Split::kValid;
  return place < valid_fraction + test_fraction ? Split::kTest : Split::kTrain;
}

Encoder::Encoder(const TextTokenizers& tokenizers, const EncodeSettings& settings, Spills& spills)
    : tokenizers_(tokenizers), settings_(settings), spills_(spills) {
  for (std::size_t t = 0; t < tokenizers.size(); ++t) {
    width_.at(t) = IdWidthOf(tokenizers[t]->VocabularySize());
    std::vector<std::int32_t>& suffix = suffix_.at(t);
    tokenizers[t]->Template(prefix_.at(t), suffix);
    const auto eos = static_cast<std::int32_t>(settings.eos.at(t));
    if (suffix.empty() || suffix.back() != eos) suffix.push_back(eos);
  }
}

void Encoder::Begin(std::size_t unit, Split split, std::function<std::string()> where) {
  result_ = {.unit = unit, .documents_at = spills_.Documents()};
  for (std::size_t t = 0; t < tokenizers_.size(); ++t) {
    result_.tokens_at.at(t) = spills_.tokens[t].Size() / width_.at(t);
  }
  split_ = split;
  where_ = std::move(where);
  XXH3_128bits_reset(&unit_hash_);
  XXH3_64bits_reset(&document_hash_);
}

UnitResult Encoder::Finish() {
  if (!HasPairs()) {
    const XXH128_hash_t digest = XXH3_128bits_digest(&unit_hash_);
    result_.digest = {digest.low64, digest.high64};
  }
  return result_;
}

void Encoder::Add(std::string_view text, Piece piece) {
  ids_.clear();
  if (!open_) ids_ = prefix_.at(text_);
  open_ = true;
  XXH3_64bits_update(&document_hash_, text.data(), text.size());
  Tokenizer& tokenizer = *tokenizers_[text_];
  try {
    piece == Piece::kRest ? tokenizer.EncodeRest(text, ids_) : tokenizer.Encode(text, ids_);
  } catch (const Error& error) {
    if (!where_) throw;
    throw Error(error.Code(), fmt::format("{}: {}", where_(), error.what()));
  }
  Emit(piece != Piece::kPrompt);
}

void Encoder::Emit(bool counted) {
  const std::int64_t most = tokenizers_[text_]->VocabularySize();
  const auto bad =
      std::find_if(ids_.begin(), ids_.end(), [&](auto id) { return id < 0 || id >= most; });
  if (bad != ids_.end()) {
    throw RunError(fmt::format("the tokenizer gave id {} of {} types", *bad, most));
  }
  Spill& spill = spills_.tokens[text_];
  if (width_.at(text_) == 2) {
    narrow_.assign(ids_.begin(), ids_.end());
    spill.Append(narrow_.data(), narrow_.size() * sizeof(std::uint16_t));
  } else {
    spill.Append(ids_.data(), ids_.size() * sizeof(std::int32_t));
  }
  if (settings_.masks) {
    const std::string mask(ids_.size(), static_cast<char>(counted));
    spills_.mask.Append(mask.data(), mask.size());
  }
  tokens_.at(text_) += ids_.size();
}

void Encoder::EndText() {
  ids_ = suffix_.at(text_);
  Emit(true);
  open_ = false;
}

void Encoder::NextText() {
  EndText();
  XXH3_64bits_update(&document_hash_, "\n", 1);  // no text of a pair contains a line end
  ++text_;
}

void Encoder::End() {
  EndText();
  const std::uint64_t hash = XXH3_64bits_digest(&document_hash_);
  const Split split = settings_.SplitOf(hash, split_);
  const auto s = static_cast<std::size_t>(split);
  spills_.Append({s, tokens_});
  const bool by_hash = split_ == Split::kTrain;
  if (by_hash && settings_.valid_fraction + settings_.test_fraction > 0) {
    const std::int64_t place = result_.documents[0] + result_.documents[1] + result_.documents[2];
    smallest_.Add({hash, result_.unit, static_cast<std::uint64_t>(place), tokens_[0], split});
  }
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    result_.tokens.at(t).at(s) += static_cast<std::int64_t>(tokens_.at(t));
  }
  ++result_.documents.at(s);
  // The digest is part of the file. Pairs chain their hashes; with single texts, one hash covers
  // all.
  if (HasPairs()) {
    const std::array<std::uint64_t, 4> chain = {result_.digest[0], result_.digest[1], hash, s};
    const XXH128_hash_t digest = XXH3_128bits(chain.data(), sizeof chain);
    result_.digest = {digest.low64, digest.high64};
  } else {
    const std::array<std::uint64_t, 2> record = {hash, s};
    XXH3_128bits_update(&unit_hash_, record.data(), sizeof record);
  }
  XXH3_64bits_reset(&document_hash_);
  tokens_ = {};
  text_ = 0;
}

DocumentEncoder::DocumentEncoder(Encoder& to, const Tokenizer& tokenizer, const TextFile& file)
    : to_(to), tokenizer_(tokenizer), file_(file), enough_(kEncodedBytes) {}

std::string DocumentEncoder::Where() const {
  return fmt::format("{}: {} at byte {}", file_.path, file_.json_lines ? "record" : "document",
                     offset_);
}

void DocumentEncoder::Prompt(std::string_view text, std::int64_t offset) {
  offset_ = offset;
  open_ = true;
  to_.Add(text, Encoder::Piece::kPrompt);
}

void DocumentEncoder::Text(std::string_view piece, std::int64_t offset) {
  if (piece.empty()) return;
  if (!open_) offset_ = offset;
  open_ = true;
  text_ += piece;
  if (text_.size() >= enough_) EncodeHeld(false);
}

void DocumentEncoder::EncodeHeld(bool ended) {
  const std::size_t cut = ended ? text_.size() : tokenizer_.SafeCut(text_);
  if (cut == 0 && text_.size() >= kLongestPiece) RefuseLong();
  if (cut == 0) {
    enough_ = 2 * text_.size();  // no cut was found: try again when the text is twice as long
    return;
  }
  to_.Add(std::string_view(text_).substr(0, cut),
          cut_ ? Encoder::Piece::kRest : Encoder::Piece::kText);
  cut_ = true;
  text_.erase(0, cut);
  enough_ = std::max(kEncodedBytes, 2 * text_.size());
}

void DocumentEncoder::RefuseLong() const {
  throw InputError(
      fmt::format("{}: the {} at byte {} has {} MiB without a place at which its text may be cut "
                  "for this tokenizer",
                  file_.path, file_.json_lines ? "record" : "document", offset_,
                  kLongestPiece >> 20),
      file_.json_lines
          ? "Make several records of it."
          : "tokenize.document = line or blank_line makes shorter documents of plain text.");
}

void DocumentEncoder::End() {
  if (!open_) return;
  if (!text_.empty()) EncodeHeld(true);
  to_.End();
  enough_ = kEncodedBytes;
  cut_ = false;
  open_ = false;
}

}  // namespace trireme::data
