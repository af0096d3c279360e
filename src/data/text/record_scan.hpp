// One record of JSON lines: the texts of some members, without a judgement of the others.
#ifndef TRIREME_SRC_DATA_TEXT_RECORD_SCAN_HPP_
#define TRIREME_SRC_DATA_TEXT_RECORD_SCAN_HPP_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::data {

// Reads a line once, from its first byte to its last. Values of members that are not wanted are
// passed over by their brackets and quotes: NaN, 1e999 and half surrogates in them are no errors.
class RecordScan {
 public:
  // `line` must live longer. where: for messages. replace: a lone surrogate (\ud83d without its
  // other half), which no UTF-8 stands for, becomes U+FFFD; else it is an error.
  RecordScan(std::string_view line, std::string where, bool replace)
      : line_(line), where_(std::move(where)), replace_(replace) {}

  // A member whose text is wanted: "text", or "data.text", the member `text` of the object `data`.
  struct Wanted {
    std::string_view key;
    std::optional<std::string> text = {};  // nothing: the record has no such member, or it is null
    bool is_null = false;
  };
  // Fills `first` and `second`, of which null is none. Throws InputError with the byte of the
  // record for what is not JSON, for what is no object, and for a wanted member that is no text or
  // is named twice.
  void Read(Wanted& first, Wanted* second);
  std::int64_t Replaced() const { return replaced_; }

 private:
  [[noreturn]] void Refuse(const std::string& what, const std::string& hint = {}) const;
  [[noreturn]] void Broken(const std::string& reason) const;
  [[noreturn]] void RefuseLone(unsigned half) const;
  void SkipBlanks();
  bool Take(char wanted);  // moves on if it is next
  void Expect(char wanted);
  void Object(Wanted& first, Wanted* second);
  void Member(Wanted& first, Wanted* second);
  std::string Text(bool judged);  // a string; judged: lone surrogates count
  void Escape(std::string& text, bool judged);
  unsigned Digits();
  void SkipText();
  void SkipValue();

  std::string_view line_;
  std::string where_;
  bool replace_;
  std::size_t at_ = 0;
  std::string within_;  // "data." in the object `data`
  std::int64_t replaced_ = 0;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_RECORD_SCAN_HPP_
