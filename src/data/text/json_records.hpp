// JSON lines: from records to the texts of their members.
#ifndef TRIREME_SRC_DATA_TEXT_JSON_RECORDS_HPP_
#define TRIREME_SRC_DATA_TEXT_JSON_RECORDS_HPP_

#include <cstdint>
#include <string>
#include <string_view>

#include "documents.hpp"

namespace trireme::data {

struct RecordKeys {
  std::string text = "text";
  std::string prompt;         // empty: records have none
  bool skip_missing = false;  // records that lack one of them, or have null, are left out
};

// Takes lines; a line of blanks is none. Throws InputError with the file's path and the offset of
// the record for what is not JSON, not an object, and for a member that is missing or no text.
// Other members are not judged.
class JsonRecords : public DocumentSink {
 public:
  // The references must live longer. replace: lone surrogates become U+FFFD.
  JsonRecords(RecordSink& next, const RecordKeys& keys, std::string path, bool replace);

  void Text(std::string_view piece, std::int64_t offset) override;
  void End() override;
  std::int64_t Replaced() const { return replaced_; }  // lone surrogates
  std::int64_t Empty() const { return empty_; }        // records that are left out: no text at all
  std::int64_t Missing() const { return missing_; }    // likewise: a member is missing, or null

 private:
  RecordSink& next_;
  const RecordKeys& keys_;
  std::string path_;
  std::string line_;
  bool replace_;
  std::int64_t offset_ = 0;  // of the line
  std::int64_t replaced_ = 0, empty_ = 0, missing_ = 0;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_JSON_RECORDS_HPP_
