// A run's records as event files of TensorBoard: histograms, the event log and its sink.
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

// Histograms of whole tensors whose elements are spread over any number of ranks.

// Counts of values between TensorFlow's fixed limits, which grow by a tenth from 1e-12 to 1e20 on
// both sides of zero. Counts and exact sums do not depend on the order in which parts are added.
class Histogram {
 public:
  Histogram();

  // Adds one value; ignores NaN.
  void Add(double value);

  const std::vector<double>& Counts() const { return counts_; }  // [Limits()]
  // Right ends of the buckets, ascending. Bucket i holds values in [limit i - 1, limit i).
  static const std::vector<double>& Limits();
  double Min() const { return min_; }  // infinity if empty
  double Max() const { return max_; }  // -infinity if empty
  double Count() const;
  double Sum() const { return sum_.Value(); }          // exact, then rounded once
  double Squares() const { return squares_.Value(); }  // exact, then rounded once

  // Packs the histogram for reduction over ranks: numbers to be summed, and two to be maximised.
  // Addable: how many numbers are summed.
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

// Copies elements [first, last) of a block to `to`, in the block's type. Empty: block.data is read.
using ReadBlock = std::function<void(const kernels::StateBlock& block, std::int64_t first,
                                     std::int64_t last, void* to)>;

// Histograms of whole tensors, each element counted once and divided by `divisor`; on rank 0, empty
// on the others. Collective over `world` (host memory); all ranks name the same tensors in the same
// order. prefix: put before the tensors' names.
std::vector<NamedHistogram> HistogramsOf(const comm::Collectives& world,
                                         std::span<const kernels::StateBlock> blocks,
                                         const ReadBlock& read, const std::string& prefix,
                                         double divisor = 1);

// EventLog: the event files of a run, with scalars, texts, histograms and hyperparameters. Events
// are buffered; failures throw but need not end the run.

using Scalars = std::vector<std::pair<std::string, double>>;  // (tag, value)

class EventLog {
 public:
  struct Setup {
    std::string folder;      // folder of the event files; made if missing
    bool continues = false;  // keep events up to resume_step; else remove all
    std::int64_t resume_step = 0;
    double flush_seconds = 2;  // events wait at most so long in memory
  };
  // Does not throw: a failure here is thrown by the next call that may throw.
  explicit EventLog(Setup setup);
  ~EventLog();  // flushes and ignores failures
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // True if files of an earlier session, with the start of the run, are kept.
  bool HasStart() const;

  // Adds the values of a step; steps come in order. This and the functions below, except
  // AddHistograms, throw RunError once, for the first failure.
  void Add(std::int64_t step, const Scalars& scalars);
  // Adds the text at the last step that had values, whatever step it is about, because readers take
  // a smaller step for a restart.
  void AddText(const std::string& tag, const std::string& text);
  void AddHistograms(std::int64_t step, std::span<const NamedHistogram> histograms);
  // Adds the start of a session of the HParams plugin, with the values of a deck. AddEnd adds the
  // end of a completed run; its last scalars are the final metrics.
  void AddHParams(const std::vector<std::pair<std::string, std::string>>& values);
  void AddEnd();

  // Cuts events after `step` from the files and from TensorBoard, and begins a new file.
  void GoBack(std::int64_t step);
  // Begins a new file if the present one was deleted, moved or replaced; returns its path, or "".
  std::string Renew();
  void Flush();
  // Flushes to the disk. Any thread may call it.
  void Sync();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Facts that TensorBoardSink::Begin writes.
struct BoardFacts {
  std::string layout;                                     // as in the banner
  std::vector<std::pair<std::string, std::string>> deck;  // ("section.key", value)
};

// Writes records as scalars and texts; doc/reference/records.md lists the tags. Every step has its
// loss, rate, norm and speed; the other values are written once per interval.
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
