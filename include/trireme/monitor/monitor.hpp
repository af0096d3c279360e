// The output of a run to its user: banner, aligned lines, live line, log.txt, metrics.jsonl and the
// closing summary. World rank 0 prints and writes; calls on other ranks do nothing.
#ifndef TRIREME_MONITOR_MONITOR_HPP_
#define TRIREME_MONITOR_MONITOR_HPP_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::monitor {

// Facts of the banner, one line each; doc/design.md shows the layout.
struct BannerFacts {
  std::string version;  // "0.1.0"
  std::string commit;   // "3f2a9c1"
  int ranks = 1;
  int hosts = 1;
  int threads = 1;                     // per rank
  bool pinned = false;                 // one core per thread
  std::string device;                  // "cpu (AVX-512)"
  std::string precision;               // "fp32"
  std::string grid;                    // "pipeline 1 x data 2 x context 1 x tensor 1"
  std::vector<std::string> ranks_map;  // host and coordinates, an entry per rank; may be empty
  std::string model;                   // "jsc: 2 layers, dim 128, ...; 9.71 M parameters"
  std::string data;                    // "wikitext2.h5: 2,088,628 / ... tokens; ..."
  std::vector<std::pair<std::string, std::int64_t>>
      memory;                   // (term, bytes per rank); the sum is printed
  bool memory_differs = false;  // between ranks; `memory` is that of the largest
  double roof_flops = 0;        // speed of matrix products per rank, FLOP/s, measured at the start
};

// One record of metrics.jsonl (keys as fixed in doc/design.md) and one line on the screen. Times
// are those of one step; Evaluation() takes its duration as step_seconds, and Done() the time of
// checkpoints since the last step as seconds_checkpoint.
struct Record {
  enum class Kind { kStep, kValid, kValidOther, kTest, kDone };
  Kind kind = Kind::kStep;  // kValid: the loss that decides on the best; kValidOther: of more sets
  std::string set = {};     // of kValid and kValidOther, by data.validation; empty: it has no name
  // Of kValid and kValidOther: windows that were evaluated, a sample of all; 0: all were.
  std::int64_t windows = 0, all_windows = 0;
  bool ended = true;        // kDone: nothing of the run is left to do
  std::int64_t step = 0;    // steps completed
  double epoch = 0;         // epochs completed, a fraction
  std::int64_t tokens = 0;  // training targets seen so far
  double loss = 0;          // nats per token; perplexity = exp(loss) is derived
  double learning_rate = 0;
  double grad_norm = 0;  // before clipping
  double step_seconds = 0;
  double tokens_per_second = 0;
  double flops_per_second = 0;  // of all ranks
  double roof_fraction = 0;
  // Of the largest rank: peak resident set; on a GPU, bytes of the card in use.
  std::int64_t memory_bytes = 0;
  double seconds_compute = 0;
  double seconds_exposed_communication = 0;
  double seconds_bubble = 0;
  double seconds_data = 0;
  double seconds_checkpoint = 0;
  // The rank that computes longest, over the steps since the last record; -1: not known.
  int slowest_rank = -1;
  double seconds_slowest = 0;  // of its computation, a step
  std::int64_t bad_steps = 0;  // of the run so far: steps whose update was left out
  // Training targets seen so far of each file of a mixture, by name; empty: one file.
  std::vector<std::pair<std::string, std::int64_t>> sources = {};
};

// One kind of transfer in one kind of group, over the steps of this session: a row of the table in
// the closing summary.
struct TrafficRow {
  std::string group;          // "tensor"
  std::string transfer;       // "all-reduce"
  double ranks = 0;           // ranks that took part
  double calls = 0;           // sum over ranks
  double bytes = 0;           // sent, sum over ranks
  double seconds_waited = 0;  // mean over all ranks of the job, as in the times of a step
  double longest_waited = 0;  // seconds of the rank that waited longest
  double seconds_hidden = 0;  // mean over all ranks of the job
};

// Gathers of sharded parameters, over the steps of this session.
struct Gathers {
  double count = 0;  // per rank, mean
  double ready = 0;  // of these, complete before the parameters were needed
};

// Something that happened in a run, for metrics.jsonl: {"kind": "event", "event": name, ...}.
struct Event {
  std::string
      name;  // "restart", "checkpoint", "checkpoint failed", "clean-up failed", "signal", ...
  std::int64_t step = 0;
  int rank = 0;      // of the event
  std::string host;  // of that rank
  std::string text;
  std::vector<std::pair<std::string, double>> numbers = {};  // more members
};

// The facts of a session, from its start or resumption to its end.
struct Session {
  bool root = false;              // set on world rank 0
  std::string folder;             // the run folder; empty: no files are written
  std::int64_t every_steps = 50;  // steps between lines on the screen and records
  std::int64_t total_steps = 0;   // of the schedule, for the time left
  bool has_stages = false;        // of a pipeline: step lines show the bubble
  bool resumed = false;           // in its own run folder
  std::int64_t resume_step = 0;   // last step of metrics.jsonl that is kept
};

class Monitor {
 public:
  // Opens log.txt and metrics.jsonl; a resumed session appends to both and cuts records after
  // resume_step. Throws RunError if they cannot be written.
  explicit Monitor(const Session& session);
  ~Monitor();

  void Banner(const BannerFacts& facts);
  void Line(const std::string& text);  // a plain line, on the screen and in the log
  void Warn(const std::string& text);  // likewise, "warning: ..."
  void Happened(const Event& event);   // recorded; not printed
  // Flushes metrics.jsonl to the disk: a checkpoint must not outlive the records of the steps
  // before it, which nobody computes again. May be called by another thread.
  void SyncRecords() const;
  // The run goes back to `step`: later records are cut, as when a run is resumed there.
  void GoBack(std::int64_t step);
  // Takes every step. Prints and records multiples of every_steps, step 1 and the last step of the
  // schedule; between them refreshes the live line (terminal only, at most every 0.2 s). Times and
  // speeds in a record and its line are means over the steps since the one before, the time of
  // checkpoints included (seconds per step); loss, rate and gradient norm are those of this step.
  void Step(const Record& record);
  // Prints and records an evaluation, of kind valid or test.
  void Evaluation(const Record& record);
  // Prints the summary: totals, a breakdown of the time, best and last losses, a table of
  // `traffic`, a line about `gathers` (if any), then `files`, pairs of (name, path). At the end
  // of the run also records it, as kind done, with speeds and times filled in here; a run
  // that stops earlier says so and leaves no such record.
  void Done(const Record& record, const std::vector<std::pair<std::string, std::string>>& files,
            const std::vector<TrafficRow>& traffic = {}, const Gathers& gathers = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Numbers as every screen and log shows them.
std::string WithThousands(std::int64_t value);  // "1,234,567"
// "1 batch", "1,234 batches": `ending` makes the plural.
std::string Counted(std::int64_t count, const std::string& noun, const char* ending = "s");
std::string WithSuffix(double value);     // "9.71 M"
std::string AsClock(double seconds);      // "2:35", "1:02:03"
std::string AsBytes(std::int64_t bytes);  // "309 MiB"

// Peak resident set of this process, bytes.
std::int64_t PeakResidentBytes();

// Checks that a run may write to the folder. Throws InputError for a file, and, unless `resume`,
// for a folder that holds a run already, that is a complete or damaged checkpoint; what a run that
// was killed before its first one has left does not count. Changes nothing.
void CheckRunFolder(const std::string& folder, bool resume);
// Makes the folder with checkpoints/ inside, if they are not there. Throws InputError.
void MakeRunFolder(const std::string& folder);
// Content of a deck.in: the deck between two comments, the first of which tells of the last.
std::string MarkEnds(const std::string& deck);
enum class DeckEnd {
  kThere,
  kMissing,   // the file was cut off: it is empty, ends in its first line, or lacks its last one
  kUnmarked,  // no first line: written by an older version, or by the user
};
DeckEnd EndOf(const std::string& deck);
// Checks and makes likewise, and writes `deck` to deck.in with its ends marked. Serial: for world
// rank 0, inside Communicator::Together.
void PrepareRunFolder(const std::string& folder, bool resume, const std::string& deck);
// Appends an event to the folder's metrics.jsonl, as well as that goes. Serial; for the end of a
// job that has no other way.
void RecordEvent(const std::string& folder, const Event& event) noexcept;
// Whether the run's records say that it is done, test evaluation included; false without records.
// Throws RunError if they cannot be read. Serial.
bool HasEnded(const std::string& folder);
// Step of the last checkpoint in the run's records; none if there is no record of one. Throws
// RunError if they cannot be read. Serial.
std::optional<std::int64_t> LastCheckpoint(const std::string& folder);

}  // namespace trireme::monitor

#endif  // TRIREME_MONITOR_MONITOR_HPP_
