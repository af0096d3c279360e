// Line-aligned texts: line k of a source file and line k of its target file are a pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "text/documents.hpp"
#include "text/encoder.hpp"
#include "text/inputs.hpp"
#include "text/tokenize_texts.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Files in order, the i-th source with the i-th target.
struct LinePlan {
  PerText<std::vector<TextFile>> files;
  bool replace = false;     // invalid UTF-8 by U+FFFD
  EncodeSettings settings;  // fractions of valid and test
  std::int64_t unit_bytes = kUnitBytes;
};

// A range of lines of a source file, and where their targets are.
struct LineUnit {
  std::size_t file = 0;
  std::int64_t lines = 0;
  std::int64_t first = 0;         // lines of the file before it
  std::int64_t source_begin = 0;  // byte before or at the first line
  std::int64_t target_begin = 0;  // likewise, of the line that is `skip` lines before
  std::int64_t skip = 0;
};

// Collective. Counts the lines of all files, each rank those of its share, and cuts them into
// units. Throws AgreedError (exit code 2) for files of unequal numbers of lines, with both numbers
// and the first line without a partner. ask: called now and then; may throw.
std::vector<LineUnit> AlignLines(const comm::Communicator& world, const LinePlan& plan,
                                 const std::function<bool()>& stop);

// Reads line units; pairs with a blank text (white space of ASCII alone) are left out.
class LinePairs : public DocumentMaker {
 public:
  // The plan must live longer.
  LinePairs(const LinePlan& plan, std::vector<LineUnit> units);

  std::size_t Units() const override { return units_.size(); }
  std::int64_t WorkIn(std::size_t unit) const override { return units_.at(unit).lines; }
  std::int64_t Bytes() const override;
  // Throws InputError with file and line for a text that is not UTF-8, or longer than 16 MiB.
  UnitResult Make(std::size_t unit, Encoder& to, const UnitProgress& tell) override;

  // Texts of the train split's pairs of one unit. Serial.
  using Visit = std::function<void(const PerText<std::string>& texts)>;
  void VisitTrain(std::size_t unit, const Visit& visit) const;

 private:
  struct Read {
    PerText<std::string> texts;
    std::int64_t replaced = 0;
    bool blank = false;
    std::int64_t line = 0;  // of the files, from 1
  };
  void ForEach(std::size_t unit, const std::function<void(const Read&)>& visit) const;

  const LinePlan& plan_;
  std::vector<LineUnit> units_;
};

}  // namespace trireme::data
