// Gradients of sharded units: whole where they are added up, then scattered to their owners.
#ifndef TRIREME_SRC_PARALLEL_SHARDING_SCATTERS_HPP_
#define TRIREME_SRC_PARALLEL_SHARDING_SCATTERS_HPP_

#include <string>
#include <vector>

#include "sharding_buffers.hpp"
#include "trireme/parallel/sharding.hpp"

namespace trireme::parallel {

// Every End is one reduce-scatter. Results are added to the owned gradients in the order of the
// starts, so that sums do not depend on arrival.
class UnitScatters {
 public:
  UnitScatters(const comm::Collectives& shard, kernels::Registry& registry,
               const device::Stream& stream, const ShardSetup& setup, SharedGradients* shared);
  std::int64_t Bytes() const { return buffers_.Bytes(); }

  std::int64_t LibraryBytes() const;
  void BeginStep();
  void Begin(int unit);
  void End(int unit);
  void Progress();
  void Finish();

  const std::string& NotFinite() const { return not_finite_; }
  double SecondsWaited() const { return seconds_waited_; }  // since construction

 private:
  struct Scatter {
    int unit = 0;
    int buffer = UnitBuffers::kNone;
    comm::Request request;
  };
  void AddFront();  // the oldest one's part, when it has arrived

  comm::Collectives shard_;
  kernels::Registry* registry_;
  device::Stream stream_;
  SharedGradients* shared_;
  bool overlap_ = true;
  UnitBuffers buffers_;
  UnitPieces units_;
  std::vector<int> open_;         // [units]: buffer of a unit begun
  std::vector<Scatter> running_;  // the oldest first
  std::string not_finite_;
  double seconds_waited_ = 0;
};

}  // namespace trireme::parallel

#endif  // TRIREME_SRC_PARALLEL_SHARDING_SCATTERS_HPP_
