// Tape: what one rank does in a step, in the order of its program, with the seconds of each thing
// alone.
#ifndef TRIREME_SRC_PREDICT_TAPE_HPP_
#define TRIREME_SRC_PREDICT_TAPE_HPP_

#include <cstdint>
#include <vector>

#include "network.hpp"
#include "trireme/device/work_log.hpp"
#include "trireme/predict/machine.hpp"

namespace trireme::predict {

struct TapeTask {
  int kind = 0, micro_batch = 0, chunk = 0;  // parallel::TaskKind
};

struct TapeTransfer {
  device::LoggedTransfer what;
  Cost cost;
};

struct TapeEvent {
  enum class Kind : std::uint8_t { kCompute, kStart, kWait, kBeginTask, kEndTask };
  Kind kind = Kind::kCompute;
  std::int32_t index = 0;  // of the transfer or the task
  double seconds = 0;      // of kCompute
};

struct Tape {
  std::vector<TapeEvent> events;
  std::vector<TapeTransfer> transfers;
  std::vector<TapeTask> tasks;
  double product_seconds = 0, attention_seconds = 0, pass_seconds = 0;  // sums
};

// Writes the tape of a planned rank. All must outlive it.
class TapeWriter final : public device::WorkLog {
 public:
  TapeWriter(const Machine& machine, const Network& network, Tape& tape)
      : machine_(machine), network_(network), tape_(tape) {}

  void Product(std::int64_t m, std::int64_t n, std::int64_t k, Dtype type, bool fp8) override;
  void Attention(double flops, double bytes, Dtype type) override;
  void Pass(double bytes) override;
  int Start(const device::LoggedTransfer& transfer) override;
  void Wait(int number) override;
  void BeginTask(int kind, int micro_batch, int chunk) override;
  void EndTask() override;

 private:
  void Compute(double seconds);
  void Put(TapeEvent::Kind kind, int index) { tape_.events.push_back({kind, index, 0}); }
  const Machine& machine_;
  const Network& network_;
  Tape& tape_;
};

// Seconds of a kernel alone.
double ProductSeconds(const Machine& machine, std::int64_t m, std::int64_t n, std::int64_t k,
                      Dtype type, bool fp8);
double AttentionSeconds(const Machine& machine, double flops, double bytes, Dtype type);
double PassSeconds(const Machine& machine, double bytes);

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_TAPE_HPP_
