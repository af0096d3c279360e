// Encoding in pieces of about a MiB, cut where the tokenizer allows it.
#include "encoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.hpp"

namespace trireme::data {

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
