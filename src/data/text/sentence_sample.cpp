// SampleSentences: the documents of a few units, as lines.
#include "sentence_sample.hpp"

#include <xxhash.h>

#include <algorithm>
#include <string_view>

#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/data/train.hpp"
#include "utf8_filter.hpp"

namespace trireme::data {

namespace {

constexpr std::int64_t kLeastOfUnit = std::int64_t{256} << 10;  // bytes

// Ends the reading of a unit that has given enough.
struct Enough {};

// Offset of the first byte of the last character that does not fit `most` bytes, or after the last
// blank before it.
std::size_t CutBefore(std::string_view line, std::size_t most) {
  const std::size_t blank = line.rfind(' ', most - 1);
  if (blank != std::string_view::npos && blank > 0) return blank;
  std::size_t at = most;
  const auto continues = [&] { return (static_cast<unsigned char>(line[at]) & 0xC0U) == 0x80U; };
  while (at > 0 && continues()) --at;
  return at;
}

// Takes documents of one unit, and keeps the lines of those that belong to the train split.
class Lines : public RecordSink {
 public:
  Lines(const EncodeSettings& settings, std::vector<std::string>& lines)
      : settings_(settings), lines_(lines) {}

  // At most so many bytes of documents.
  void Begin(std::int64_t bytes) { left_ = bytes; }

  void Prompt(std::string_view text, std::int64_t /*offset*/) override { document_ = text; }
  void Text(std::string_view piece, std::int64_t /*offset*/) override {
    document_ += piece;
    if (std::ssize(document_) >= left_) Finish();  // a long document: its beginning will do
  }
  void End() override {
    const std::uint64_t hash = XXH3_64bits(document_.data(), document_.size());
    if (settings_.SplitOf(hash, Split::kTrain) == Split::kTrain) Keep();
    document_.clear();
    if (left_ <= 0) throw Enough();
  }
  // The part of a document that was cut off by the end of what is read.
  void Finish() {
    Keep();
    document_.clear();
    throw Enough();
  }

 private:
  void Keep() {
    std::string_view rest = document_;
    rest = rest.substr(0, static_cast<std::size_t>(std::max<std::int64_t>(left_, 0)));
    // No half of a character at the end.
    while (rest.size() < document_.size() && !rest.empty() &&
           (static_cast<unsigned char>(document_[rest.size()]) & 0xC0U) == 0x80U) {
      rest.remove_suffix(1);
    }
    left_ -= std::ssize(rest);
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      while (line.size() > kLongestSentence) {
        const std::size_t cut = CutBefore(line, kLongestSentence);
        lines_.emplace_back(line.substr(0, cut));
        line.remove_prefix(cut);
      }
      if (!line.empty()) lines_.emplace_back(line);
    }
  }

  const EncodeSettings& settings_;
  std::vector<std::string>& lines_;
  std::string document_;
  std::int64_t left_ = 0;
};

void ReadUnit(const TextPlan& plan, const TextUnit& unit, Lines& lines,
              const std::function<bool()>& stop) {
  const TextFile& file = plan.files.at(unit.file);
  JsonRecords records(lines, plan.keys, file.path, plan.replace);
  DocumentSink& sink = file.json_lines ? static_cast<DocumentSink&>(records) : lines;
  Utf8Filter filter(sink, file.path, plan.replace);
  try {
    ForEachDocument(file, unit, plan.document, filter, [&](std::int64_t) {
      if (stop && stop()) throw RunError("stopped by a signal: no token file was written");
    });
  } catch (const Enough&) {
    return;
  }
}

}  // namespace

std::vector<std::string> SampleSentences(const TextPlan& plan, const std::function<bool()>& stop,
                                         std::int64_t most) {
  std::vector<TextUnit> units = CutIntoUnits(plan.files, plan.document, plan.unit_bytes);
  std::erase_if(
      units, [&](const TextUnit& unit) { return plan.files.at(unit.file).split != Split::kTrain; });
  std::vector<std::string> sentences;
  if (units.empty()) return sentences;
  const std::int64_t count = std::ssize(units);
  std::int64_t all = 0;
  for (const TextUnit& unit : units) all += unit.end - unit.begin;
  const std::int64_t read =
      all <= most ? count : std::clamp<std::int64_t>(most / kLeastOfUnit, 1, count);
  Lines lines(plan.encode, sentences);
  std::int64_t left = most;
  for (std::int64_t i = 0; i < read; ++i) {
    const std::int64_t share = CeilDivide(left, read - i);
    lines.Begin(share);
    const std::size_t before = sentences.size();
    ReadUnit(plan, units.at(static_cast<std::size_t>(i * count / read)), lines, stop);
    for (std::size_t s = before; s < sentences.size(); ++s) left -= std::ssize(sentences[s]);
  }
  return sentences;
}

}  // namespace trireme::data
