// Folder of each node that takes the copies of a job's token files (data.staging = node).
#ifndef TRIREME_DATA_STAGING_PLACE_HPP_
#define TRIREME_DATA_STAGING_PLACE_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::data {

// Copies of token files on nodes; none unless they were staged.
struct StagedCopies {
  std::int64_t files = 0;
  std::int64_t bytes = 0;  // of one node's copies
  std::int64_t nodes = 0;
  double seconds = 0;  // of making them
};

class StagingPlace {
 public:
  // Folders to try in this order: data.staging_path alone or, if that is empty, /dev/shm and the
  // environment's TMPDIR.
  static std::vector<std::string> Candidates(const std::string& staging_path);

  // Collective over `world`; `node`: ranks of a node, whose first one looks. Takes the first folder
  // that is there, may be written to and has room for `bytes` on every node. Writes nothing. Throws
  // AgreedError (exit code 2) naming the host, each folder and what it lacks.
  void Choose(const comm::Communicator& world, const comm::Communicator& node,
              const std::vector<std::string>& candidates, std::int64_t bytes);

  const std::string& Folder() const { return folder_; }  // of this node; empty: none was chosen
  bool InMemory() const { return in_memory_; }           // files take memory, on any of the nodes

  void Add(const StagedCopies& copies);                 // of a file
  const StagedCopies& Total() const { return total_; }  // since the choice

 private:
  std::string folder_;
  bool in_memory_ = false;
  StagedCopies total_;
};

// Whether files in the folder take memory: tmpfs or ramfs.
bool TakesMemory(const std::string& folder);

}  // namespace trireme::data

#endif  // TRIREME_DATA_STAGING_PLACE_HPP_
