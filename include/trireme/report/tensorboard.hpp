// A run's records as TensorBoard shows them: which member becomes which tag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/exact_sum.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/report/summary.hpp"

namespace trireme::report {

// Histograms of whole tensors, whose elements may be spread over any number of ranks.

// Counts of values between fixed limits, TensorFlow's: they grow by a tenth from 1e-12 to 1e20,
// on both sides of zero. Counts and exact sums have no order, so that parts may be added in any.
class Histogram {
 public:
  Histogram();

  // Adds one value. One that is not a number is left out of everything.
  void Add(double value);

  const std::vector<double>& Counts() const { return counts_; }  // [Limits()]
  // Right ends of the buckets, ascending: a value below a limit and not below the one before.
  static const std::vector<double>& Limits();
  double Min() const { return min_; }  // infinity if empty
  double Max() const { return max_; }  // -infinity if empty
  double Count() const;
  double Sum() const { return sum_.Value(); }          // rounded once
  double Squares() const { return squares_.Value(); }  // rounded once

  // As numbers that add up over ranks, and two whose maxima are to be taken.
  static std::size_t Addable();
  void Pack(std::span<double> addable, std::span<double, 2> maxima) const;
  static Histogram Unpack(std::span<const double> addable, std::span<const double, 2> maxima);

 private:
  std::vector<double> counts_;
  double min_ = std::numeric_limits<double>::infinity();
  double max_ = -std::numeric_limits<double>::infinity();
  ExactSum sum_, squares_;
};

struct NamedHistogram {
  std::string name;  // "weights/blocks.3.attention.query.weight"
  Histogram histogram;
};

// Copies elements [first, last) of a block to `to`, in the block's type; none: they lie at its
// data.
using ReadBlock = std::function<void(const kernels::StateBlock& block, std::int64_t first,
                                     std::int64_t last, void* to)>;

// Collective over `world` (host memory), whose ranks all name the same tensors in the same order.
// Histograms of the whole tensors, each element counted once and divided by `divisor`; on rank 0,
// empty on the others. Changes nothing. prefix: of the names.
std::vector<NamedHistogram> HistogramsOf(const comm::Collectives& world,
                                         std::span<const kernels::StateBlock> blocks,
                                         const ReadBlock& read, const std::string& prefix,
                                         double divisor = 1);

// The event files of a run, as TensorBoard reads them: scalars, texts, histograms, hyperparameters.
// Written in the background of a training: buffered, and never a reason to end it.

using Scalars = std::vector<std::pair<std::string, double>>;  // (tag, value)

class EventLog {
 public:
  struct Setup {
    std::string folder;      // of the event files; made if it is missing
    bool continues = false;  // events up to resume_step are kept; else the folder's are removed
    std::int64_t resume_step = 0;
    double flush_seconds = 2;  // events may wait so long in memory
  };
  // Nothing is thrown in here; what fails is told by the next call that may throw.
  explicit EventLog(Setup setup);
  ~EventLog();  // flushes, as well as that goes
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Whether the files hold the start of the run already.
  bool HasStart() const;

  // Values of a step, steps in order. These and all below, but for AddHistograms, throw a RunError
  // for the first thing that cannot be written, once.
  void Add(std::int64_t step, const Scalars& scalars);
  // Puts the text at the last step that had values, whatever step it is about: readers take a step
  // back for a restart.
  void AddText(const std::string& tag, const std::string& text);
  void AddHistograms(std::int64_t step, std::span<const NamedHistogram> histograms);
  // The session of the HParams plugin: its values, as a deck has them, and the end of a run that is
  // done, whose last scalars are the final metrics.
  void AddHParams(const std::vector<std::pair<std::string, std::string>>& values);
  void AddEnd();

  // Later events are cut, in the files and in TensorBoard, and a new file begins after `step`.
  void GoBack(std::int64_t step);
  // Begins a new file if someone has deleted, moved or replaced the one that is written, and
  // returns its path; else "".
  std::string Renew();
  void Flush();
  // Flushes to the disk. Any thread.
  void Sync();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Facts of a session; the deck is that of the run's first one.
struct BoardFacts {
  std::string layout;                                     // as the screen's banner has it
  std::vector<std::pair<std::string, std::string>> deck;  // hyperparameters, by "section.key"
};

// Tags are listed in doc/reference/records.md. Of a step its loss, rate, norm and speed; the rest once an
// interval.
class TensorBoardSink : public Sink {
 public:
  // The log is shared with whoever writes histograms.
  TensorBoardSink(std::shared_ptr<EventLog> log, BoardFacts facts);
  // Writes the facts. Throws as EventLog does.
  void Begin();

  void Step(const Record& record) override;
  void Interval(const report::Interval& interval) override;
  void Evaluation(const Record& record) override;
  void Sample(std::int64_t step, const std::string& text) override;
  void Happened(const Event& event) override;
  void GoBack(std::int64_t step) override;
  std::string Renew() override;
  void Sync() override;
  void Done(const Summary& summary) override;

 private:
  std::shared_ptr<EventLog> log_;
  const BoardFacts facts_;
};

}  // namespace trireme::report
