// Local checkpoints: the state of a run on storage of its nodes, with copies on partner nodes of
// what no other node holds. They are faster than the run folder, but two neighbouring nodes that
// fail take them along; the run folder has checkpoints for that case.
//
// Nodes are told apart by host name. On each host, one of the ranks that hold a piece of state
// stores it (src/checkpoint/local_file.hpp). What only one host holds is also sent, in pieces of 4
// MiB, to the partner rank on the next host. Files are not flushed to disk: a crashed node counts
// as lost, and hashes detect damage.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/hosts.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

// Ranks, and the hosts that they run on (the nodes).
struct LocalNodes {
  const comm::Communicator& world;
  comm::Hosts hosts;
};

// Names of the files; the paths are the same on every node.
struct LocalRun {
  std::string folder;   // checkpoint.local
  std::string id;       // of the run
  std::string session;  // of the job that writes the files
};

// Serial. A random name of 16 hexadecimal digits, for a run or a session.
std::string NewLocalName();

// The result of a write, the same on every rank.
struct LocalOutcome {
  std::string failure;      // why it is not complete on all nodes; empty: it is
  std::int64_t bytes = 0;   // stored by all ranks for their own hosts
  std::int64_t copied = 0;  // the part of it that was sent to partners
  double seconds = 0;       // of the slowest rank
};

class LocalWriter {
 public:
  // Collective. Plans which rank stores what, allocates the buffers, and removes from all nodes
  // this run's files of steps other than `keep`. The world and the state's memory must outlive it.
  // Throws AgreedError if memory is missing.
  LocalWriter(const LocalNodes& nodes, State state, LocalRun run, std::optional<std::int64_t> keep);
  ~LocalWriter();
  LocalWriter(const LocalWriter&) = delete;
  LocalWriter& operator=(const LocalWriter&) = delete;

  // A sentence that names a host with too little space at construction, and what is free and needed
  // there; empty: all hosts had enough. Two complete checkpoints stay while the next is written.
  const std::string& LackOfRoom() const;
  int Hosts() const;                 // 1: there are no partners
  std::int64_t Bytes() const;        // stored by all ranks for their own hosts
  std::int64_t CopiedBytes() const;  // the part of it that is sent to partners

  // Collective. Writes the state as it is now; afterwards the last two complete checkpoints remain.
  // sequence: number of the run folder's last checkpoint. run: run.json, the same on every rank. If
  // any rank fails, all remove their files of this step, and earlier ones stay.
  LocalOutcome Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run);
  // Collective. Removes checkpoints of later steps, because the run has gone back to this step.
  void Forget(std::int64_t step);
  // Collective. Removes all files of this run.
  void RemoveAll();

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

// The run folder's last checkpoint; a local one is used only if it is newer.
struct RunFolderCheckpoint {
  std::int64_t step = 0, sequence = 0;
  std::string session;  // the session that wrote it
};

// A complete local checkpoint that was found on the nodes of this job.
class LocalCheckpoint {
 public:
  struct Files;
  LocalCheckpoint(std::int64_t step, nlohmann::json run, std::unique_ptr<Files> files);
  ~LocalCheckpoint();
  LocalCheckpoint(const LocalCheckpoint&) = delete;
  LocalCheckpoint& operator=(const LocalCheckpoint&) = delete;

  std::int64_t Step() const { return step_; }
  const nlohmann::json& Run() const { return run_; }  // run.json

  // Collective over the world. Fills this rank's blocks of one file ("model" or "optimizer") from
  // the ranks whose hosts have them. Returns the bytes that came from other hosts, summed over all
  // ranks. Throws DamagedError if no node has a piece, for example if another layout wrote it.
  std::int64_t Read(const LocalNodes& nodes, const char* file,
                    const std::vector<kernels::StateBlock>& blocks) const;

 private:
  std::int64_t step_;
  nlohmann::json run_;
  std::unique_ptr<Files> files_;  // the files that this rank reads for all ranks
};

struct LocalSearch {
  std::shared_ptr<const LocalCheckpoint> found;  // null: none is newer and complete
  // Steps of newer ones and why they cannot be used; step 0: damaged files that were not needed.
  std::vector<std::pair<std::int64_t, std::string>> passed_over;
};
// Collective. The newest local checkpoint of the run for which every rank's part is on some node of
// this job with correct hashes, if it was written after `newest`. Parts are identified by run, step
// and world rank, on whichever node they are.
LocalSearch FindLocal(const LocalNodes& nodes, const LocalRun& run,
                      const RunFolderCheckpoint& newest);

}  // namespace trireme::checkpoint
