// ShareWriter: a rank's share of exported tensors, read from a checkpoint, converted and written by
// the rank's threads.
#ifndef TRIREME_SRC_HF_SHARE_WRITER_HPP_
#define TRIREME_SRC_HF_SHARE_WRITER_HPP_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "elements.hpp"
#include "tensor_map.hpp"
#include "trireme/base/positioned_file.hpp"
#include "trireme/checkpoint/tensor_file.hpp"

namespace trireme::hf {

// Bytes that a thread reads and converts at once: a whole segment of a checkpoint, mostly.
inline constexpr std::int64_t kExportPiece = std::int64_t{4} << 20;

class ShareWriter {
 public:
  // All must outlive it.
  ShareWriter(const checkpoint::TensorReader& reader, const std::string& folder, int threads);

  // The file that the tensors added from here on belong to.
  void Open(const std::string& file);
  // Elements [first, last) of a tensor that is stored as its parameters are.
  void Add(const MappedTensor& mapped, const checkpoint::StoredTensor& to, std::int64_t first,
           std::int64_t last);
  // A tensor that is rearranged.
  void AddWhole(const MappedTensor& mapped, const checkpoint::StoredTensor& to);
  // Writes what is left and syncs all files. What is thrown: as WriteShare says.
  void Finish();

 private:
  // Elements of a tensor to write, from a parameter; or, without a tensor, to load into whole_.
  struct Piece {
    const MappedPart* part = nullptr;
    const checkpoint::StoredTensor* to = nullptr;
    const PositionedFile* file = nullptr;
    std::int64_t at = 0;     // first element in `to`, or in whole_
    std::int64_t first = 0;  // first element of the parameter
    std::int64_t count = 0;
  };
  // Memory of one thread.
  struct Scratch {
    std::vector<char> piece;  // in the checkpoint's type
    std::vector<char> bytes;  // as written
    checkpoint::TensorReader::Kept kept;
  };

  const checkpoint::StoredTensor& Parameter(const MappedPart& part) const;
  const PositionedFile* File();
  void Cut(const MappedPart& part, std::int64_t first, std::int64_t last, Piece piece);
  void Run();
  void Work(const Piece& piece, Scratch& scratch);
  void Load(const Piece& piece, char* to, Scratch& scratch) const;
  static void Store(const Piece& piece, Dtype type, Scratch& scratch);
  void SplitFeatures(const MappedTensor& mapped);
  void WriteRows(const MappedTensor& mapped, const checkpoint::StoredTensor& to);
  void WriteColumns(const MappedTensor& mapped, const checkpoint::StoredTensor& to);

  const checkpoint::TensorReader& reader_;
  const std::string& folder_;
  std::map<std::string, const checkpoint::StoredTensor*> parameters_;
  std::string name_;                             // of the file
  std::map<std::string, PositionedFile> files_;  // with tensors of this rank
  std::vector<Piece> pieces_;                    // not yet written
  std::vector<Scratch> scratch_;                 // [threads]
  std::vector<char> whole_;                      // a tensor to rearrange, in the checkpoint's type
};

}  // namespace trireme::hf

#endif  // TRIREME_SRC_HF_SHARE_WRITER_HPP_
