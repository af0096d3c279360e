// TraceFile: timelines of ranks as one gzip'ed JSON file in the Trace Event Format, which Perfetto
// and Chrome's tracing page open: a process for each rank, a thread for each queue.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "trireme/device/recorder.hpp"

namespace trireme::device {

// Names of a process and of what its slices refer to.
struct RankFacts {
  int rank = 0;  // of the world
  std::string host;
  std::function<std::string(int group)> group;        // "tensor"
  std::function<std::string(int transfer)> transfer;  // "all-reduce"
  std::function<int(const Slice& message)> peer;      // world rank of a message's other end
  std::function<double(double seconds)> aligned;      // the rank's clock to the file's; ascending
};

class TraceFile {
 public:
  // Writes under a temporary name until Place.
  explicit TraceFile(const std::string& path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // One rank's slices, in any order.
  void Add(const RankFacts& facts, std::vector<Slice> slices);
  // The same rank's kernels, in any order, a thread for each queue of its card. names: theirs.
  void Add(const RankFacts& facts, std::vector<Kernel> kernels,
           const std::vector<std::string>& names);
  // Ends the file with these members of otherData and moves it to its path, over what lies there.
  // The first failure of all.
  std::error_code Place(const nlohmann::json& other);

 private:
  class Gzip;
  void Write(const nlohmann::json& event);
  void WriteThread(int rank, int thread, const std::string& name, int place);
  std::unique_ptr<Gzip> gzip_;
  bool first_ = true;
};

// Threads for slices that may overlap: [i] is the lane of slices[i], from 0; those of one lane
// follow each other. Slices are in the order of their beginnings; as few lanes as there can be.
std::vector<int> Lanes(const std::vector<Slice>& slices);

}  // namespace trireme::device
