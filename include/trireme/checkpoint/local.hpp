// Local checkpoints: the state of a run on storage of its nodes, with copies on partner nodes where
// no other node holds the same. Faster than the run folder, and lost with two neighbouring nodes:
// the run folder has a checkpoint for that.
//
// Nodes are told apart by the names of hosts. The rank of each host that stores a piece of state is
// one of its holders there (src/checkpoint/local_file.hpp); what one host alone holds is sent to
// the rank of the same place on the next host, in pieces of 4 MiB. Files are not flushed to disks:
// a node that has crashed is a lost one, and hashes tell.
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

// Ranks, and the names of the hosts that they run on: nodes.
struct LocalNodes {
  const comm::Communicator& world;
  comm::Hosts hosts;
};

// Names of the files: the same path on every node.
struct LocalRun {
  std::string folder;   // checkpoint.local
  std::string id;       // of the run
  std::string session;  // of the job that writes them
};

// A random name of 16 hexadecimal digits, for a run or a session. Serial.
std::string NewLocalName();

// Result of a write, the same on every rank.
struct LocalOutcome {
  std::string failure;      // why it is not complete on all nodes; empty: it is
  std::int64_t bytes = 0;   // stored by all ranks for their own hosts
  std::int64_t copied = 0;  // of these, sent to partners
  double seconds = 0;       // of the slowest rank
};

class LocalWriter {
 public:
  // Collective. Shares out the state, takes the buffers, and removes this run's files of other
  // steps than `keep` from all nodes. The world must outlive it, as must the state's memory.
  // AgreedError if memory is missing.
  LocalWriter(const LocalNodes& nodes, State state, LocalRun run, std::optional<std::int64_t> keep);
  ~LocalWriter();
  LocalWriter(const LocalWriter&) = delete;
  LocalWriter& operator=(const LocalWriter&) = delete;

  // Sentence on a host that had too little room at construction, with what is free and needed
  // there; empty: there was enough on all. Two complete ones stay while the next one is written.
  const std::string& LackOfRoom() const;
  int Hosts() const;                 // 1: there are no partners
  std::int64_t Bytes() const;        // stored by all ranks for their own hosts
  std::int64_t CopiedBytes() const;  // of these, sent to partners

  // Collective. Writes the state as it is now; afterwards the last two complete ones remain.
  // sequence: of the run folder's last checkpoint. run: run.json, the same on every rank. A failure
  // on any rank is one of all: their files of this step are removed, earlier ones stay.
  LocalOutcome Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run);
  // Collective. Removes those of later steps: the run has gone back to this one.
  void Forget(std::int64_t step);
  // Collective. Removes all files of this run.
  void RemoveAll();

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

// The checkpoint of the run folder that a local one must be newer than.
struct RunFolderCheckpoint {
  std::int64_t step = 0, sequence = 0;
  std::string session;  // writer's
};

// A complete local checkpoint, found on the nodes of this job.
class LocalCheckpoint {
 public:
  struct Files;
  LocalCheckpoint(std::int64_t step, nlohmann::json run, std::unique_ptr<Files> files);
  ~LocalCheckpoint();
  LocalCheckpoint(const LocalCheckpoint&) = delete;
  LocalCheckpoint& operator=(const LocalCheckpoint&) = delete;

  std::int64_t Step() const { return step_; }
  const nlohmann::json& Run() const { return run_; }  // run.json

  // Collective over the world. Fills this rank's blocks of one file, "model" or "optimizer", from
  // whatever rank has them on its node. Returns the bytes that came from other hosts, of all ranks.
  // DamagedError if a piece is there on no node: it was written by another layout, say.
  std::int64_t Read(const LocalNodes& nodes, const char* file,
                    const std::vector<kernels::StateBlock>& blocks) const;

 private:
  std::int64_t step_;
  nlohmann::json run_;
  std::unique_ptr<Files> files_;  // read by this rank
};

struct LocalSearch {
  std::shared_ptr<const LocalCheckpoint> found;  // null: none is newer and complete
  // Newer ones by their steps, and why they cannot be used; 0: of files that are not needed.
  std::vector<std::pair<std::int64_t, std::string>> passed_over;
};
// Collective. The newest local checkpoint of the run of which every rank's part is on some node of
// this job with right hashes, if it was written after `newest`. Parts are found by run, step and
// world rank, whatever node they are on.
LocalSearch FindLocal(const LocalNodes& nodes, const LocalRun& run,
                      const RunFolderCheckpoint& newest);

}  // namespace trireme::checkpoint
