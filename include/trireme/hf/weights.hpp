// Weights of a model folder as a checkpoint's tensors, and of a checkpoint as a model folder's:
// read and written in parts, so that no rank holds more than a few MiB and one tensor.
#ifndef TRIREME_HF_WEIGHTS_HPP_
#define TRIREME_HF_WEIGHTS_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/hf/config.hpp"
#include "trireme/hf/listing.hpp"
#include "trireme/hf/options.hpp"
#include "trireme/model/options.hpp"
#include "trireme/tensor/state_block.hpp"

namespace trireme::hf {

// Weights that import reads.
class WeightSource {
 public:
  // Throws InputError naming the tensor unless the listing holds those of the model, in shapes and
  // types that can be read, and nothing else.
  WeightSource(const std::string& folder, Listing listing, Family family,
               const model::Options& options);
  ~WeightSource();
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;

  // Parts of all parameters that one of `ranks` ranks reads, cut evenly. Tensors that are stored
  // transposed stay whole. `data` is not to be read: Read gives the contents.
  std::vector<tensor::StateBlock> Blocks(int rank, int ranks) const;
  // Elements [first, last) of a block's parameter. Throws InputError naming file, tensor and
  // element for one that is not finite. As of checkpoint::ReadBlock.
  void Read(const tensor::StateBlock& block, std::int64_t first, std::int64_t last, void* to);
  // Throws InputError unless a head that the folder holds beside a tied embedding is the same.
  // Looks at this rank's share.
  void CheckTiedHead(int rank, int ranks) const;

  std::int64_t Bytes() const;          // of all tensors that are read
  std::int64_t LargestTensor() const;  // bytes of the largest one that a rank holds as a whole
  const Listing& Files() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Names, types and places of all tensors that export writes.
struct ExportPlan {
  Listing listing;
  std::vector<std::string> headers;  // of the listing's files
};
// As `source` lists them, in the types that `options` asks for.
ExportPlan PlanLike(const Listing& source, Family family, const model::Options& model,
                    const Options& options);
// As transformers writes a model.
ExportPlan PlanAfresh(Family family, const model::Options& model, const Options& options);

// Writes this rank's share of the tensors into the plan's files in `folder`, which have their sizes
// and headers, and syncs what it wrote. Throws InputError for a weight that is beyond the type's
// range, and what the reader throws; RunError for a full disk.
void WriteShare(const ExportPlan& plan, Family family, const model::Options& model,
                checkpoint::TensorReader& reader, const std::string& folder, int rank, int ranks);

}  // namespace trireme::hf

#endif  // TRIREME_HF_WEIGHTS_HPP_
