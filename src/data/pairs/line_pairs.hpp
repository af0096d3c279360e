// Line-aligned texts: line k of a source file and line k of its target file form a pair.
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

// What to read: the i-th source file belongs to the i-th target file.
struct LinePlan {
  PerText<std::vector<TextFile>> files;
  bool replace = false;     // replace invalid UTF-8 by U+FFFD
  EncodeSettings settings;  // eos, and fractions of valid and test
  std::int64_t unit_bytes = kUnitBytes;
};

// A unit of work: a range of lines of a source file, and where their targets are.
struct LineUnit {
  std::size_t file = 0;
  std::int64_t lines = 0;
  std::int64_t first = 0;         // number of lines in the file before it
  std::int64_t source_begin = 0;  // reading starts at the first line from this byte on
  std::int64_t target_begin = 0;  // the same in the target file, where `skip` lines are skipped
  std::int64_t skip = 0;
};

// Counts the lines of all files, each rank its share, and cuts the files into units. stop: asked
// now and then; true ends all with an error. Collective. Throws AgreedError (exit code 2) for
// paired files with unequal numbers of lines, naming both numbers and the first line without a
// partner.
std::vector<LineUnit> AlignLines(const comm::Communicator& world, const LinePlan& plan,
                                 const std::function<bool()>& stop);

// Reads units of lines. Pairs with a blank text (only ASCII white space) are dropped.
class LinePairs : public DocumentMaker {
 public:
  // The plan must outlive the object.
  LinePairs(const LinePlan& plan, std::vector<LineUnit> units);

  std::size_t Units() const override { return units_.size(); }
  std::int64_t WorkIn(std::size_t unit) const override { return units_.at(unit).lines; }
  std::int64_t Bytes() const override;
  // Throws InputError with file and line for a text that is not UTF-8 or is longer than 16 MiB.
  UnitResult Make(std::size_t unit, Encoder& to, const UnitProgress& tell) override;

  // Visits the pairs of a unit that belong to the train split. Serial.
  using Visit = std::function<void(const PerText<std::string>& texts)>;
  void VisitTrain(std::size_t unit, const Visit& visit) const;

 private:
  struct Read {
    PerText<std::string> texts;
    std::int64_t replaced = 0;
    bool blank = false;
    std::int64_t line = 0;  // number in the files, from 1
  };
  void ForEach(std::size_t unit, const std::function<void(const Read&)>& visit) const;

  const LinePlan& plan_;
  std::vector<LineUnit> units_;
};

}  // namespace trireme::data
