// The output of a run to its user: banner, aligned lines, live line, log.txt, the closing summary,
// and sinks of its records. World rank 0 prints and writes; calls on other ranks do nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/deck/deck.hpp"
#include "trireme/report/records.hpp"
#include "trireme/report/summary.hpp"

namespace trireme::report {

// The [monitor] section.

// Steps from first to last, counted from 1, both included.
struct StepWindow {
  std::int64_t first = 0, last = 0;
  bool None() const { return last == 0; }
};

struct Options {
  std::int64_t every_steps = 50;            // steps between lines on the screen
  std::int64_t validate_every_steps = 500;  // steps between validations; 0: never
  std::int64_t validate_windows = 0;        // of each set, a sample; 0: all
  std::int64_t sample_tokens = 40;          // tokens of the text at the end; 0: none
  bool tensorboard = true;                  // write event files
  std::int64_t histogram_every_steps = 0;   // steps between histograms; 0: never
  StepWindow trace_steps;                   // of the timeline
  bool trace_kernels = true;                // kernels of GPUs in it
  bool report = true;                       // report.html is made at the end
};

void Declare(deck::Schema& schema);  // [monitor]

Options Read(const deck::Deck& deck);

// The page of a run: vis/report.py, started by the program after its last word to MPI.

// A page to make, and how long that may take.
struct PageOrder {
  std::string folder;  // of the run
  double seconds = 0;  // bound; 0: no time is left, the user is told how to make it
};

// The command that makes the page of a folder: Python, the script, the folder.
struct PageCommand {
  std::string python, script, folder;
  bool Complete() const { return !python.empty() && !script.empty(); }
  std::string Text() const;  // for a shell; of what is missing, the usual names
};

// Finds Python in TRIREME_PYTHON, in a virtual environment `venv` beside the program, or on the
// path; the script in share/trireme of the prefix that holds the program in bin, in the source tree
// that holds the program's build folder, or in `source`. Missing ones are empty.
PageCommand FindPageCommand(const std::string& folder, const std::string& program,
                            const std::string& source);

// The same for this program, for a shell.
std::string PageCommandText(const std::string& folder);

// Makes the page and prints one line: its path, or why there is none and the command for it. Never
// throws, waits no longer than the order's bound, and ends the script at once when `stop` says so.
// The script gets no signal of the terminal and none of this program's blocked ones.
void MakePage(const PageOrder& order, const std::function<bool()>& stop) noexcept;

// Facts of the banner, one line each; README.md shows the layout.
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
  std::string kernels;                 // "attention: our own (run.attention = own)"; may be empty
  std::string links;                   // "NCCL 2.26.2; data group P2P/CUMEM"; may be empty
  std::vector<std::pair<std::string, std::int64_t>>
      memory;                   // (term, bytes per rank); the sum is printed
  bool memory_differs = false;  // between ranks; `memory` is that of the largest
  double roof_flops = 0;        // speed of matrix products per rank, FLOP/s, measured at the start
};

std::string BannerText(const BannerFacts& facts);  // several lines, without the last newline

// The facts of a session, from its start or resumption to its end.
struct Session {
  bool root = false;              // set on world rank 0
  std::string host = {};          // of that rank
  std::string folder;             // the run folder; empty: no files are written
  std::int64_t every_steps = 50;  // steps between lines on the screen and records
  std::int64_t total_steps = 0;   // of the schedule, for the time left
  bool has_stages = false;        // of a pipeline: step lines show the bubble
  bool resumed = false;           // in its own run folder
  std::int64_t resume_step = 0;   // last step of metrics.jsonl that is kept
  std::int64_t best_after = 0;    // validations after this step alone can be the best
};

class Monitor {
 public:
  // Opens log.txt and metrics.jsonl; a resumed session appends to both and cuts records after
  // resume_step. Throws RunError if they cannot be written.
  explicit Monitor(const Session& session);
  ~Monitor();

  // Adds a sink of records, after those of metrics.jsonl and summary.json. On other ranks than
  // world rank 0 it is destroyed at once.
  void Attach(std::unique_ptr<Sink> sink);

  void Banner(const BannerFacts& facts);
  void Line(const std::string& text);  // a plain line, on the screen and in the log
  void Warn(const std::string& text);  // likewise, "warning: ..."
  void Happened(const Event& event);   // recorded; not printed
  // Text by the model after `step`: a line "sample  ...", and recorded.
  void Sample(std::int64_t step, const std::string& text);
  // Passes on what waits in memory, before something that takes longer than a step.
  void FlushRecords();
  // Flushes all records to the disk: a checkpoint must not outlive the records of the steps before
  // it, which nobody computes again. May be called by another thread.
  void SyncRecords();
  // The run goes back to `step`: later records are cut, as when a run is resumed there.
  void GoBack(std::int64_t step, std::int64_t best_after = 0);
  // Takes and records every step. Prints multiples of every_steps, step 1 and the last step of the
  // schedule, each with an interval record; between them refreshes the live line (terminal only, at
  // most every 0.2 s). Times and speeds in an interval and its line are means over the steps since
  // the one before, the time of checkpoints included (seconds per step); loss, rate and gradient
  // norm in the line are those of this step.
  void Step(const Record& record);
  // Prints and records an evaluation, of kind valid, valid_other or test.
  void Evaluation(const Record& record);
  // Times and speeds of a step, means over the steps of this session as Done has them, and the
  // number of these. On world rank 0.
  std::pair<Record, std::int64_t> Means() const;
  // Prints the summary: totals, a breakdown of the time, best and last losses, a table of traffic,
  // a line about gathers (if any), then the files. At the end of the run also records it, as kind
  // done, with speeds and times filled in here; a run that stops earlier says so and leaves no such
  // record. Either way sinks get `summary`, completed here: see there.
  void Done(const Record& record, Summary summary = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Numbers as every screen and log shows them.
std::string WithThousands(std::int64_t value);  // "1,234,567"
// "1 batch", "1,234 batches": `ending` makes the plural.
std::string Counted(std::int64_t count, const std::string& noun, const char* ending = "s");
std::string WithSuffix(double value);                         // "9.71 M"
std::string WithUnit(double value, const std::string& unit);  // "350 W", "5.00 kW"
std::string AsClock(double seconds);                          // "2:35", "1:02:03"
std::string AsBytes(std::int64_t bytes);                      // "309 MiB"

// The comparison as lines for the screen; one line that says why where there is none.
std::string ComparisonText(const Comparison& comparison);

std::string UtcNow();  // "2026-03-01T12:00:00Z"

// Peak resident set of this process, bytes.
std::int64_t PeakResidentBytes();
// Shared memory in the resident set of this process, bytes; 0 where /proc is missing.
std::int64_t SharedResidentBytes();

// Checks that a run may write to the folder. Throws InputError for a file, and, unless `resume`,
// for a folder that holds a run already, that is a complete or damaged checkpoint; what a run that
// was killed before its first one has left does not count. Changes nothing.
void CheckRunFolder(const std::string& folder, bool resume);
// Makes the folder with checkpoints/ inside, if they are not there. Throws InputError.
void MakeRunFolder(const std::string& folder);
// Makes the job.output of a task that is no run, if it is not there. Throws RunError.
void MakeOutputFolder(const std::string& folder);
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
// Step of the last checkpoint in the run's records; none if there is no record of one. event: that
// tells of it; "local checkpoint" of a local one. Throws RunError if they cannot be read. Serial.
std::optional<std::int64_t> LastCheckpoint(const std::string& folder,
                                           const std::string& event = "checkpoint");

}  // namespace trireme::report
