// The event files of a run, as TensorBoard reads them: scalars, texts, histograms, hyperparameters.
// Written in the background of a training: buffered, and never a reason to end it.
#ifndef TRIREME_REPORT_EVENT_LOG_HPP_
#define TRIREME_REPORT_EVENT_LOG_HPP_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/report/histogram.hpp"

namespace trireme::report {

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
  // Of the last step that had values, whatever step the text is about: readers take a step back
  // for a restart.
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

}  // namespace trireme::report

#endif  // TRIREME_REPORT_EVENT_LOG_HPP_
