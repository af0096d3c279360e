// Safetensors files from other programs, with any element type and metadata, and the tensors of a
// checkpoint, read in parts by one process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/writer.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

// The hash of a block of training state, wherever its memory is.

// XXH3 (64 bits) of the bytes of elements [first, last) of a block, counted in the flattened
// tensor, in the block's dtype. read: as in State; if given, up to 4 MiB are allocated for a piece.
std::uint64_t BlockHash(const kernels::StateBlock& block, std::int64_t first, std::int64_t last,
                        const ReadBlock& read = {});

struct StoredTensor {
  std::string name;
  std::string dtype;  // the format's name of it: "F32", "BF16", "BOOL"
  kernels::Shape shape;
  std::int64_t offset = 0;  // of its first byte, from the start of the file
  std::int64_t bytes = 0;
};

struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::vector<StoredTensor> tensors;  // by offset
  std::int64_t bytes = 0;             // of the whole file
};

std::int64_t ElementBytes(const std::string& dtype);  // 0: not a dtype of the format
std::string ShapeText(const kernels::Shape& shape);   // "[128, 64]"
// `title`, the first problems below it, one per line, and how many more there are.
std::string ListProblems(const std::string& title, const std::vector<std::string>& problems);

// Serial. The checked header of a safetensors file: every byte after it belongs to one tensor.
// Throws an InputError that names path, tensor, expected and found.
TensorFile InspectTensorFile(const std::string& path);

// Places the tensors one after another: sets their offsets and sizes, and the file's size. Returns
// the file's first bytes up to the data, identical to what Python's safetensors writes.
std::string PlaceTensors(TensorFile& file);

// One tensor file of a checkpoint; bytes are checked against checksums.json by segment.
class TensorReader {
 public:
  // A segment that was read only in part, kept for the same caller's next Read.
  struct Kept {
    std::vector<char> bytes;
    std::int64_t offset = -1;  // of its first byte; -1: none yet
  };

  // Serial. file: as in ReadTensors; no tensors if there are no averages. Throws InputError if
  // something is missing or damaged.
  TensorReader(const std::string& checkpoint, const std::string& file);
  ~TensorReader();
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  const std::vector<StoredTensor>& Tensors() const;
  // Reads bytes of the file into `to`. Throws InputError if they are damaged. Several threads may
  // read at the same time, each with its own `kept`.
  void Read(std::int64_t offset, std::int64_t bytes, void* to, Kept& kept) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::checkpoint
