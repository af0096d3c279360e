// Safetensors files of others: any type of elements, and metadata; and the tensors of a checkpoint,
// read in parts by one process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/writer.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

// The hash of a block of training state, wherever it lies.

// XXH3 (64 bits) of elements [first, last) of a block, counted in the flattened tensor, as bytes of
// the block's dtype. read: as of State; with one, memory for a piece of 4 MiB.
std::uint64_t BlockHash(const kernels::StateBlock& block, std::int64_t first, std::int64_t last,
                        const ReadBlock& read = {});

struct StoredTensor {
  std::string name;
  std::string dtype;  // as the format names it: "F32", "BF16", "BOOL"
  kernels::Shape shape;
  std::int64_t offset = 0;  // of its first byte, from the start of the file
  std::int64_t bytes = 0;
};

struct TensorFile {
  std::map<std::string, std::string> metadata;
  std::vector<StoredTensor> tensors;  // in the order of their offsets
  std::int64_t bytes = 0;             // of the whole file
};

std::int64_t ElementBytes(const std::string& dtype);  // 0: no dtype of the format
std::string ShapeText(const kernels::Shape& shape);   // "[128, 64]"
// The first problems below `title`, a line each, and how many more there are.
std::string ListProblems(const std::string& title, const std::vector<std::string>& problems);

// Serial. The header of a safetensors file, checked: every byte after it belongs to one tensor.
// Throws InputError naming path, tensor, expected and found.
TensorFile InspectTensorFile(const std::string& path);

// Places the tensors one after the other: sets their offsets and bytes, and those of the file.
// Returns the file's first bytes up to the data, the same as Python's safetensors writes.
std::string PlaceTensors(TensorFile& file);

// One tensor file of a checkpoint. Bytes are checked against checksums.json, segment by segment.
class TensorReader {
 public:
  // A segment that was read in part: kept for the next reading of the same caller.
  struct Kept {
    std::vector<char> bytes;
    std::int64_t offset = -1;  // of its first byte; -1: none yet
  };

  // Serial. file: "model" or "optimizer". Throws InputError for what is missing or damaged.
  TensorReader(const std::string& checkpoint, const std::string& file);
  ~TensorReader();
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  const std::vector<StoredTensor>& Tensors() const;
  // Bytes of the file. Throws InputError if they are damaged. Several threads may read, each with
  // its own `kept`.
  void Read(std::int64_t offset, std::int64_t bytes, void* to, Kept& kept) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::checkpoint
