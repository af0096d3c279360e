// Checkpoints: folders of safetensors files, written and read collectively through MPI-IO. Tensors
// are global and canonical, so any layout reads what any layout wrote.
#ifndef TRIREME_CHECKPOINT_CHECKPOINT_HPP_
#define TRIREME_CHECKPOINT_CHECKPOINT_HPP_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/tensor/state_block.hpp"

namespace trireme::checkpoint {

// What a checkpoint folder holds: model.safetensors, optimizer.safetensors, run.json,
// checksums.json. Every rank lists every tensor, in the same order (tensor/state_block.hpp).
struct Contents {
  std::vector<tensor::StateBlock> model;
  std::vector<tensor::StateBlock> optimizer;
  nlohmann::json run;  // step, sampler position, seed, deck, versions; the same on every rank
};

// Collective. Writes `folder`/step_NNNNNNNN (8 digits) by way of a temporary name: space reserved
// and agreed first, tensors written (each byte by one rank, in collective rounds below 2 GiB), read
// back against checksums, synced, renamed, then the relative link `folder`/latest (and
// `folder`/best when `best`) moved. A step that exists complete already is replaced. Then all but
// the `keep` written last are removed (0 keeps all), never the target of `best` or `latest`. On
// failure (a full disk, say) every rank throws AgreedError, the temporary folder is removed and
// earlier checkpoints are untouched.
void Write(const comm::Communicator& world, const std::string& folder, std::int64_t step,
           const Contents& contents, bool best, std::int64_t keep);

// Collective. `path` is a run folder (the checkpoint that was written last is taken, as `latest`
// has it, else the complete one with the highest step), its checkpoints/ folder, or one checkpoint
// (or a link to one). Returns the checkpoint's folder; AgreedError (exit code 2) when there is
// none, saying what was looked for and what was found. Complete means: run.json, checksums.json and
// both tensor files are there with the sizes in checksums.json.
std::string Find(const comm::Communicator& world, const std::string& path);

// Collective. The parsed run.json of a checkpoint folder, checked against checksums.json;
// AgreedError (exit code 2) when it is missing or damaged.
nlohmann::json ReadRun(const comm::Communicator& world, const std::string& checkpoint);

// Collective. Fills this rank's blocks from one safetensors file of the checkpoint ("model" or
// "optimizer"). Names, shapes and dtypes must match the file's, except that fp32 and fp64 convert
// into each other; bytes are checked against checksums.json, each by one rank, before every rank
// fetches what it holds, in collective rounds. Throws AgreedError (exit code 2) that names file,
// tensor, what was expected and what was found.
void ReadTensors(const comm::Communicator& world, const std::string& checkpoint,
                 const std::string& file, const std::vector<tensor::StateBlock>& blocks);

}  // namespace trireme::checkpoint

#endif  // TRIREME_CHECKPOINT_CHECKPOINT_HPP_
