// Values of sharded units: gathered ahead of their use, in the order that was announced.
#ifndef TRIREME_SRC_PARALLEL_SHARDING_GATHERS_HPP_
#define TRIREME_SRC_PARALLEL_SHARDING_GATHERS_HPP_

#include <string>
#include <vector>

#include "sharding_buffers.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {

// Every announced use is one gather. Gathers start in the announced order, only in Announce, Use
// and Done, and never depend on what has arrived: so all ranks start them in the same order.
class UnitGathers {
 public:
  UnitGathers(const comm::Collectives& shard, kernels::Registry& registry,
              const device::Stream& stream, const ShardSetup& setup);
  std::int64_t Bytes() const { return buffers_.Bytes(); }

  void Announce(const std::vector<int>& uses);
  void Use(int unit);
  void Done(int unit);
  void Progress();

  std::int64_t Count() const { return count_; }
  std::int64_t Ready() const { return ready_; }
  double SecondsWaited() const { return seconds_waited_; }  // since construction

 private:
  struct Gather {
    int unit = 0;
    int buffer = UnitBuffers::kNone;  // none: not started
    comm::Request request;
  };
  void Start(Gather& gather);
  void Wait(Gather& gather);
  void StartAhead();
  // A buffer for the next use, which nobody started ahead.
  int BufferNow(int unit);
  void CheckNext(int unit) const;

  comm::Collectives shard_;
  kernels::Registry* registry_;
  device::Stream stream_;
  int prefetch_ = 0;
  UnitBuffers buffers_;
  UnitPieces units_;
  std::vector<Gather> announced_;  // in order
  std::size_t next_ = 0;           // first one not used
  std::size_t started_ = 0;        // from there on
  std::vector<Gather> in_use_;     // the innermost last
  std::int64_t count_ = 0, ready_ = 0;
  double seconds_waited_ = 0;
};

}  // namespace trireme::parallel

#endif  // TRIREME_SRC_PARALLEL_SHARDING_GATHERS_HPP_
