// Data parallelism: gradients are summed over the data group in buckets, whose non-blocking
// all-reduces start while the backward pass still works on earlier layers (Li et al. 2020, "PyTorch
// Distributed").
#ifndef TRIREME_PARALLEL_GRADIENT_BUCKETS_HPP_
#define TRIREME_PARALLEL_GRADIENT_BUCKETS_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/input/schema.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::parallel {

void DeclareBuckets(input::Schema& schema);  // grid.bucket_mib

class GradientBuckets {
 public:
  // Cuts the flat gradient storage, from its end, at parameter boundaries into buckets of at least
  // `bucket_bytes` (the first parameters' bucket may be smaller; a parameter beyond MPI's count is
  // cut inside). `registry` and the group of
  // `data` must outlive it.
  GradientBuckets(const comm::Collectives& data, const tensor::Registry& registry,
                  const device::Stream& stream, std::int64_t bucket_bytes);

  void Begin();  // a new step: nothing is ready
  // The gradients at flat offsets >= begin are final on this rank: starts the all-reduces of the
  // buckets that are now whole, and gives running ones a chance to progress.
  void Ready(std::int64_t begin);
  void Progress();  // gives running all-reduces a chance to progress
  // Returns when every bucket is summed. All must have been ready.
  void Wait();

  // Name of the first parameter whose local gradient was not finite in this step; empty when all
  // were.
  const std::string& NotFinite() const { return not_finite_; }
  double SecondsWaited() const { return seconds_waited_; }  // in Wait(), this step: exposed
  std::size_t Count() const { return buckets_.size(); }
  // MPI_Wtime when this step's first all-reduce started; 0 when none did.
  double FirstStart() const;
  // MPI_Wtime when the last call of Ready began: the end of the backward pass; 0 before the first.
  double LastReady() const { return last_ready_; }
  // All-reduces of this step that had started by then: in flight while the backward pass went on.
  std::int64_t StartedBeforeEnd() const;

 private:
  struct Bucket {
    std::int64_t begin = 0, end = 0;  // flat offsets
    comm::Request request;
    double started = 0;  // MPI_Wtime of this step's all-reduce; 0: none yet
  };
  void Start(Bucket& bucket);
  void CheckFinite(const Bucket& bucket);

  comm::Collectives data_;
  const tensor::Registry* registry_;
  device::Stream stream_;
  std::vector<Bucket> buckets_;  // in the order in which they become ready
  std::size_t next_ = 0;         // first bucket not started
  std::string not_finite_;
  double seconds_waited_ = 0;
  double last_ready_ = 0;
};

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_GRADIENT_BUCKETS_HPP_
