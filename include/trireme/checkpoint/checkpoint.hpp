// Checkpoints: folders of safetensors files, written and read collectively through MPI-IO. Tensors
// are global and canonical: any layout reads the files of any other.
#ifndef TRIREME_CHECKPOINT_CHECKPOINT_HPP_
#define TRIREME_CHECKPOINT_CHECKPOINT_HPP_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/tensor/state_block.hpp"

namespace trireme::checkpoint {

// Contents of a checkpoint folder: model.safetensors, optimizer.safetensors and run.json, to which
// checksums.json is added. Every rank lists every tensor, in the same order
// (tensor/state_block.hpp).
struct Contents {
  std::vector<tensor::StateBlock> model;
  std::vector<tensor::StateBlock> optimizer;
  nlohmann::json run;  // step, sampler position, seed, deck, versions; the same on every rank
};

// Collective. Writes `folder`/step_NNNNNNNN (8 digits) by way of a temporary name: reserves and
// agrees on the space, writes the tensors (each byte by one rank, in collective rounds below 2
// GiB), syncs them, reads them back against checksums, renames, then moves the relative link
// `folder`/latest, and `folder`/best if `best`. Replaces a complete checkpoint of the same step.
// Then removes all but the `keep` checkpoints written last (0 keeps all), never the target of a
// link. On failure, such as a full disk, throws AgreedError on every rank, removes the temporary
// folder and leaves earlier checkpoints as they are.
void Write(const comm::Communicator& world, const std::string& folder, std::int64_t step,
           const Contents& contents, bool best, std::int64_t keep);

// Collective. Returns the folder of the checkpoint that `path` means: one checkpoint or a link to
// it, or a run folder or its checkpoints/ folder, of which the checkpoint written last is taken
// (the target of `latest`, else the complete one with the highest step). Complete: run.json,
// checksums.json and both tensor files have the sizes in checksums.json. Throws AgreedError (exit
// code 2) if there is none, with what was looked for and what was found.
std::string Find(const comm::Communicator& world, const std::string& path);

// Collective. Returns the parsed run.json of a checkpoint folder, checked against checksums.json.
// Throws AgreedError (exit code 2) if it is missing or damaged.
nlohmann::json ReadRun(const comm::Communicator& world, const std::string& checkpoint);

// Collective. Fills this rank's blocks from one safetensors file of the checkpoint ("model" or
// "optimizer"). Names, shapes and dtypes must match the file's, except that fp32 and fp64 convert
// into each other. Bytes are checked against checksums.json, each by one rank, before every rank
// fetches its blocks, in collective rounds. Throws AgreedError (exit code 2) naming file, tensor,
// expected and found.
void ReadTensors(const comm::Communicator& world, const std::string& checkpoint,
                 const std::string& file, const std::vector<tensor::StateBlock>& blocks);

}  // namespace trireme::checkpoint

#endif  // TRIREME_CHECKPOINT_CHECKPOINT_HPP_
