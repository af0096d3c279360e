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
  std::int64_t validate_windows = 0;        // sampled from each validation set; 0: all
  std::int64_t sample_tokens = 40;          // length of the text sampled at the end; 0: none
  bool tensorboard = true;                  // write event files
  std::int64_t histogram_every_steps = 0;   // steps between histograms; 0: never
  StepWindow trace_steps;                   // steps of the timeline; none by default
  bool trace_kernels = true;                // the timeline shows GPU kernels
  bool report = true;                       // make report.html at the end
};

void Declare(deck::Schema& schema);  // [monitor]

Options Read(const deck::Deck& deck);

// The page of a run: made by vis/report.py, which the program starts after MPI_Finalize.

// Which page to make, and how long that may take.
struct PageOrder {
  std::string folder;  // run folder
  double seconds = 0;  // time limit; 0: no time left, only print the command
};

// The command that makes the page of a folder: Python, the script, the folder.
struct PageCommand {
  std::string python, script, folder;
  bool Complete() const { return !python.empty() && !script.empty(); }
  std::string Text() const;  // command line for a shell; missing parts get their usual names
};

// Finds Python and the script; parts not found stay empty. Python: TRIREME_PYTHON, else a virtual
// environment `venv` beside the program, else PATH. Script: in share/trireme of the prefix whose
// bin holds the program, else in the source tree that holds the build folder, else in `source`.
PageCommand FindPageCommand(const std::string& folder, const std::string& program,
                            const std::string& source);

// The command for this program, as a command line for a shell.
std::string PageCommandText(const std::string& folder);

// Makes the page and prints one line: its path, or why there is none and the command for it. Never
// throws; waits no longer than the order's limit; kills the script as soon as stop() is true. The
// script is out of reach of the terminal's signals and starts with no signal blocked.
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
  std::vector<std::string> ranks_map;  // host and coordinates, one entry per rank; may be empty
  std::string model;                   // "jsc: 2 layers, dim 128, ...; 9.71 M parameters"
  std::string data;                    // "wikitext2.h5: 2,088,628 / ... tokens; ..."
  std::string kernels;                 // "attention: our own (run.attention = own)"; may be empty
  std::string links;                   // "NCCL 2.26.2; data group P2P/CUMEM"; may be empty
  std::vector<std::pair<std::string, std::int64_t>>
      memory;                   // (term, bytes per rank); their sum is printed, too
  bool memory_differs = false;  // ranks differ: `memory` is the largest rank's
  double roof_flops = 0;        // measured speed of matrix products, FLOP/s per rank
};

std::string BannerText(const BannerFacts& facts);  // several lines, without the last newline

// The facts of a session, from its start or resumption to its end.
struct Session {
  bool root = false;              // this is world rank 0
  std::string host = {};          // host of world rank 0
  std::string folder;             // the run folder; empty: no files are written
  std::int64_t every_steps = 50;  // steps between lines and interval records
  std::int64_t total_steps = 0;   // length of the schedule, for the time left
  // Targets of the schedule, if its batches grow: the time left goes by them. 0: by steps.
  std::int64_t total_tokens = 0;
  bool has_stages = false;       // there is a pipeline: step lines show the bubble
  bool resumed = false;          // the run goes on in its own folder
  std::int64_t resume_step = 0;  // last step whose records are kept
  std::int64_t best_after = 0;   // only validations after this step can be the best
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
  void Line(const std::string& text);  // prints a line on the screen and in the log
  void Warn(const std::string& text);  // prints "warning: ..." in the same way
  void Happened(const Event& event);   // records the event without printing it
  // Prints a text that the model wrote after `step` as "sample  ...", and records it.
  void Sample(std::int64_t step, const std::string& text);
  // Writes out buffered records; called before something that takes longer than a step.
  void FlushRecords();
  // Flushes all records to the disk: a checkpoint must not outlive the records of the steps before
  // it, since nobody computes those steps again. Another thread may call it.
  void SyncRecords();
  // The run goes back to `step`: later records are cut, as when a run is resumed there.
  void GoBack(std::int64_t step, std::int64_t best_after = 0);
  // Records every step. Prints a line and records an interval for multiples of every_steps, step 1
  // and the last step of the schedule; in between refreshes the live line (on a terminal, at most
  // every 0.2 s). Times and speeds in an interval and its line are means over its steps,
  // checkpoints included (seconds per step); the line's loss, rate and gradient norm are this
  // step's.
  void Step(const Record& record);
  // Prints and records an evaluation: kValid, kValidOther or kTest.
  void Evaluation(const Record& record);
  // Times and speeds of a step, as means over the steps of this session, and the number of these
  // steps. Only world rank 0 has them.
  std::pair<Record, std::int64_t> Means() const;
  // Completes `summary`, gives it to the sinks and prints the closing lines: totals, a breakdown of
  // the time, best and last losses, traffic, gathers (if any), then the files. Only a run that
  // reached its end also gets a record of kind kDone, with mean times and speeds.
  void Done(const Record& record, Summary summary = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Numbers as screens and logs show them.
std::string WithThousands(std::int64_t value);  // "1,234,567"
// "1 batch", "1,234 batches": `ending` makes the plural.
std::string Counted(std::int64_t count, const std::string& noun, const char* ending = "s");
std::string WithSuffix(double value);                         // "9.71 M"
std::string WithUnit(double value, const std::string& unit);  // "350 W", "5.00 kW"
std::string AsClock(double seconds);                          // "2:35", "1:02:03"
std::string AsBytes(std::int64_t bytes);                      // "309 MiB"

// The comparison as lines for the screen; if there is none, one line that says why.
std::string ComparisonText(const Comparison& comparison);

std::string UtcNow();  // "2026-03-01T12:00:00Z"

// Peak resident set of this process, bytes.
std::int64_t PeakResidentBytes();
// Shared memory in the resident set of this process, bytes; 0 where /proc is missing.
std::int64_t SharedResidentBytes();

// Checks, without changing anything, that a run may write to the folder. Throws InputError if it is
// a file and, unless `resume`, if it holds a run's checkpoint, complete or damaged. What is left of
// a run that was killed before its first checkpoint is no obstacle.
void CheckRunFolder(const std::string& folder, bool resume);
// Makes the folder and checkpoints/ in it if they are missing. Throws InputError.
void MakeRunFolder(const std::string& folder);
// Makes the job.output of a task other than training if it is missing. Throws RunError.
void MakeOutputFolder(const std::string& folder);
// Content of a deck.in: the deck between two comment lines, so that a cut-off file is recognised.
std::string MarkEnds(const std::string& deck);
enum class DeckEnd {
  kThere,
  kMissing,   // the file was cut off: empty, within its first line, or before its last
  kUnmarked,  // no first line: written by an older version, or by the user
};
DeckEnd EndOf(const std::string& deck);
// Does CheckRunFolder and MakeRunFolder, and writes `deck` to deck.in with MarkEnds. Serial: for
// world rank 0, inside Communicator::Together.
void PrepareRunFolder(const std::string& folder, bool resume, const std::string& deck);
// Appends an event to the folder's metrics.jsonl and ignores failures. Serial; for the end of a job
// that has no other way to record it.
void RecordEvent(const std::string& folder, const Event& event) noexcept;
// True if the run's records say that it is done, test evaluation included; false without records.
// Throws RunError if they cannot be read. Serial.
bool HasEnded(const std::string& folder);
// Step of the last checkpoint in the run's records; nullopt if there is none. event: its name,
// "local checkpoint" for local ones. Throws RunError if unreadable. Serial.
std::optional<std::int64_t> LastCheckpoint(const std::string& folder,
                                           const std::string& event = "checkpoint");

}  // namespace trireme::report
