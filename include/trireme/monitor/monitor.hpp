// What the user sees and keeps: banner, aligned lines, live line, log.txt, metrics.jsonl, the
// closing summary. Only world rank 0 prints or writes; on other ranks every call does nothing.
#ifndef TRIREME_MONITOR_MONITOR_HPP_
#define TRIREME_MONITOR_MONITOR_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme::monitor {

// The facts of the banner, one line each; see doc/design.md for the layout.
struct BannerFacts {
  std::string version;  // "0.1.0"
  std::string commit;   // "3f2a9c1"
  int ranks = 1;
  int hosts = 1;
  int threads = 1;                     // a rank
  bool pinned = false;                 // each thread has a core
  std::string device;                  // "cpu (AVX-512)"
  std::string precision;               // "fp32"
  std::string grid;                    // "pipeline 1 x data 2 x context 1 x tensor 1"
  std::vector<std::string> ranks_map;  // host and coordinates, an entry a rank; may be empty
  std::string model;                   // "jsc: 2 layers, dim 128, ...; 9.71 M parameters"
  std::string data;                    // "wikitext2.h5: 2,088,628 / ... tokens; ..."
  std::vector<std::pair<std::string, std::int64_t>>
      memory;                   // term, bytes a rank; the sum is printed
  bool memory_differs = false;  // between ranks: `memory` is the largest one's
  double roof_flops = 0;        // matrix-multiply speed a rank, FLOP/s, measured at start
};

// One record of metrics.jsonl (keys as fixed in doc/design.md) and one line on the screen. The
// times of a step are the step's own; Evaluation() takes its duration as step_seconds, and Done()
// the checkpoint time since the last step as seconds_checkpoint.
struct Record {
  enum class Kind { kStep, kValid, kTest, kDone };
  Kind kind = Kind::kStep;
  std::int64_t step = 0;    // steps completed
  double epoch = 0;         // epochs completed, a fraction
  std::int64_t tokens = 0;  // training targets seen so far
  double loss = 0;          // nats a token; perplexity = exp(loss) is derived
  double learning_rate = 0;
  double grad_norm = 0;  // before clipping
  double step_seconds = 0;
  double tokens_per_second = 0;
  double flops_per_second = 0;  // of all ranks
  double roof_fraction = 0;
  std::int64_t memory_bytes = 0;  // peak resident set of the largest rank
  double seconds_compute = 0;
  double seconds_exposed_communication = 0;
  double seconds_bubble = 0;
  double seconds_data = 0;
  double seconds_checkpoint = 0;
};

// One kind of transfer in one kind of group, over the steps of this session: a line of the closing
// summary's table.
struct TrafficRow {
  std::string group;          // "tensor"
  std::string transfer;       // "all-reduce"
  double ranks = 0;           // that took part
  double calls = 0;           // of all ranks
  double bytes = 0;           // that all ranks sent
  double seconds_waited = 0;  // mean over all ranks of the job, as in a step's times
  double longest_waited = 0;  // of the rank that waited longest
  double seconds_hidden = 0;  // mean over all ranks of the job
};

// Gathers of sharded parameters, over the steps of this session.
struct Gathers {
  double count = 0;  // of a rank, mean
  double ready = 0;  // those of them that were complete when the parameters were needed
};

// The facts of a session, from its start or resumption to its end.
struct Session {
  bool root = false;   // world rank 0
  std::string folder;  // the run folder; "" writes no files (evaluate, generate)
  std::int64_t every_steps =
      50;                        // a step line on the screen this often; metrics.jsonl has the same
  std::int64_t total_steps = 0;  // of the schedule, for "left"
  bool has_stages = false;       // of a pipeline: step lines show the bubble
  bool resumed = false;
  std::int64_t resume_step = 0;  // records of metrics.jsonl beyond this step are cut
};

class Monitor {
 public:
  // Opens log.txt (appended on resume) and metrics.jsonl (cut behind resume_step on resume). Throws
  // RunError when they cannot be written.
  explicit Monitor(const Session& session);
  ~Monitor();

  void Banner(const BannerFacts& facts);
  void Line(const std::string& text);  // a plain line: screen and log
  // Called for every step. Prints and records those on the every_steps grid, step 1 and the last of
  // the schedule; between them refreshes the live line (terminal only, at most every 0.2 s). Times
  // and speeds of a record and its line are means over the steps since the last one (checkpoint
  // time too: seconds a step); loss, rate and gradient norm are this step's.
  void Step(const Record& record);
  void Evaluation(const Record& record);  // kind valid or test: printed and recorded always
  // Prints the summary: totals, where the time went, best and last losses, a table of `traffic`,
  // a line about `gathers` (if any), then `files`, pairs of (what, path). At the schedule's last
  // step it is also recorded, as kind done, speeds and times filled in here; a run that stops
  // earlier says so and leaves no such record.
  void Done(const Record& record, const std::vector<std::pair<std::string, std::string>>& files,
            const std::vector<TrafficRow>& traffic = {}, const Gathers& gathers = {});
  void Warn(const std::string& text);  // "warning: ..." on the screen and in the log

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "1,234,567"; "9.71 M"; "2:35" or "1:02:03"; "309 MiB": how numbers look on every screen.
std::string WithThousands(std::int64_t value);
std::string WithSuffix(double value);
std::string AsClock(double seconds);
std::string AsBytes(std::int64_t bytes);

std::int64_t PeakResidentBytes();  // of this process

// Whether a run may write to the folder: InputError for a file, and, unless `resume`, for a folder
// that holds a run already (a checkpoint; one that died before its first is no run). Changes
// nothing.
void CheckRunFolder(const std::string& folder, bool resume);
// The same, and makes the folder (with checkpoints/ inside) and writes `deck` to deck.in. Serial:
// call on world rank 0, inside Communicator::Together.
void PrepareRunFolder(const std::string& folder, bool resume, const std::string& deck);

}  // namespace trireme::monitor

#endif  // TRIREME_MONITOR_MONITOR_HPP_
