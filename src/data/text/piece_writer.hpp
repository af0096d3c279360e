// Copies from a rank's temporary files to the token file.
#ifndef TRIREME_SRC_DATA_TEXT_PIECE_WRITER_HPP_
#define TRIREME_SRC_DATA_TEXT_PIECE_WRITER_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "encoder.hpp"
#include "trireme/base/descriptor.hpp"

namespace trireme::data {

// First bytes of the datasets in the file, by split.
struct Places {
  std::array<std::int64_t, 3> tokens{}, documents{}, mask{};
};

// The token file, as a writer sees it.
struct WrittenFile {
  std::string path;
  Places places;
  std::int64_t width = 0;  // bytes of an id
  bool masks = false;
};

// All throw RunError with the path.
class PieceWriter {
 public:
  // poll: called about every MiB.
  PieceWriter(const WrittenFile& file, Spills& spills, std::function<void()> poll);

  // Copies a unit's tokens of train, after `before` of earlier units, keeps its other tokens in
  // Spills::rest, and gives back the space of both. Units ascend.
  void CopyTrain(const UnitResult& unit, std::int64_t before);
  // Copies the whole unit, but for what CopyTrain has copied if Spills::copied. Units ascend.
  // before: what earlier units hold.
  void Write(const UnitResult& unit, const SplitSizes& before);
  void Sync() const;

 private:
  // From byte `begin` of a temporary file; put: void(const char*, std::size_t).
  template <typename Put>
  void Copy(Spill& from, std::int64_t begin, std::int64_t bytes, Put put);
  SpilledDocument DocumentAt(std::int64_t place);

  WrittenFile to_;
  Descriptor file_;
  Spills& spills_;
  std::function<void()> poll_;
  std::size_t since_poll_ = 0;  // bytes
  std::int64_t rest_ = 0;       // bytes of Spills::rest that Write has read
  std::vector<char> room_;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_PIECE_WRITER_HPP_
