// TraceFile: timelines of ranks in one gzip'ed JSON file in the Trace Event Format, which Perfetto
// and Chrome's tracing page open: one process per rank, one thread per queue.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "trireme/device/recorder.hpp"

namespace trireme::device {

// The name of a rank's process, and what the numbers in its slices mean.
struct RankFacts {
  int rank = 0;  // in the world
  std::string host;
  std::function<std::string(int group)> group;        // "tensor"
  std::function<std::string(int transfer)> transfer;  // "all-reduce"
  std::function<int(const Slice& message)> peer;      // world rank of the other end of a message
  std::function<double(double seconds)> aligned;      // converts the rank's clock to the file's
};

class TraceFile {
 public:
  // Writes under a temporary name until Place.
  explicit TraceFile(const std::string& path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Adds one rank's slices, in any order.
  void Add(const RankFacts& facts, std::vector<Slice> slices);
  // Adds the same rank's kernels, in any order, as a thread for each queue of its card. names:
  // kernel names, indexed by Kernel::name.
  void Add(const RankFacts& facts, std::vector<Kernel> kernels,
           const std::vector<std::string>& names);
  // Ends the file with `other` as its otherData and moves it to its path, replacing what is there.
  // Returns the first error of any call.
  std::error_code Place(const nlohmann::json& other);

 private:
  class Gzip;
  void Write(const nlohmann::json& event);
  void WriteThread(int rank, int thread, const std::string& name, int place);
  std::unique_ptr<Gzip> gzip_;
  bool first_ = true;
};

// Distributes slices that may overlap over lanes: [i] is the lane of slices[i], from 0; slices of a
// lane do not overlap. Slices must be sorted by their begin. Uses as few lanes as possible.
std::vector<int> Lanes(const std::vector<Slice>& slices);

}  // namespace trireme::device
