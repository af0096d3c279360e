// A run's records as TensorBoard shows them: which member becomes which tag.
#ifndef TRIREME_REPORT_TENSORBOARD_SINK_HPP_
#define TRIREME_REPORT_TENSORBOARD_SINK_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/report/sink.hpp"
#include "trireme/report/event_log.hpp"

namespace trireme::report {

// Facts of a session; the deck is that of the run's first one.
struct BoardFacts {
  std::string layout;                                     // as the screen's banner has it
  std::vector<std::pair<std::string, std::string>> deck;  // hyperparameters, by "section.key"
};

// Tags are listed in doc/monitor.md. Of a step its loss, rate, norm and speed; the rest once an
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

#endif  // TRIREME_REPORT_TENSORBOARD_SINK_HPP_
