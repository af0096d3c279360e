// GradientBuckets: where the gradients are cut, and when each piece starts on its way.
#include "trireme/parallel/gradient_buckets.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::parallel {

namespace {
constexpr double kDefaultBucketMib = 4;
}

void DeclareBuckets(input::Schema& schema) {
  schema.Real(
      "grid.bucket_mib", kDefaultBucketMib, {1.0 / 1024, 1024}, "MiB",
      "Gradients are summed over the data group in pieces of this size, each as soon as the "
      "backward pass has finished it.");
}

GradientBuckets::GradientBuckets(const comm::Collectives& data, const tensor::Registry& registry,
                                 const device::Stream& stream, std::int64_t bucket_bytes)
    : data_(data), registry_(&registry), stream_(stream) {
  const auto size = static_cast<std::int64_t>(SizeOf(registry.Type()));
  // An MPI count is an int: no bucket may pass it, and parameters larger than that are cut.
  constexpr std::int64_t kMostElements = std::int64_t{1} << 28;
  std::int64_t end = registry.Size();
  const auto& parameters = registry.Parameters();
  for (std::size_t i = parameters.size(); i-- > 0;) {
    // Nothing becomes ready at a parameter that other ranks hold: a bucket cut there would wait for
    // the next one before it.
    if (i > 0 && !parameters[i].Held()) continue;
    const std::int64_t begin = i == 0 ? 0 : parameters[i].offset;
    while (end - begin > kMostElements) {
      buckets_.push_back({end - kMostElements, end, {}, 0});
      end -= kMostElements;
    }
    if ((end - begin) * size >= bucket_bytes || i == 0) {
      if (end > begin) buckets_.push_back({begin, end, {}, 0});
      end = begin;
    }
  }
}

void GradientBuckets::Begin() {
  next_ = 0;
  not_finite_.clear();
  seconds_waited_ = 0;
  last_ready_ = 0;
  for (Bucket& bucket : buckets_) bucket.started = 0;
}

void GradientBuckets::CheckFinite(const Bucket& bucket) {
  const auto finite = [&](std::int64_t begin, std::int64_t end) {
    return std::isfinite(
        kernels::SquareSum(stream_, registry_->Type(), end - begin,
                           ElementAt(registry_->Gradients(), registry_->Type(), begin)));
  };
  if (!not_finite_.empty() || finite(bucket.begin, bucket.end)) return;
  for (const tensor::Parameter& parameter : registry_->Parameters()) {
    const std::int64_t begin = std::max(parameter.offset, bucket.begin);
    const std::int64_t end =
        std::min(parameter.offset + parameter.end - parameter.begin, bucket.end);
    if (begin < end && !finite(begin, end)) {
      not_finite_ = parameter.name;
      return;
    }
  }
}

void GradientBuckets::Start(Bucket& bucket) {
  CheckFinite(bucket);
  if (data_.Size() == 1) return;
  void* data = ElementAt(registry_->Gradients(), registry_->Type(), bucket.begin);
  bucket.request = data_.StartAllReduce(registry_->Type(), data, bucket.end - bucket.begin);
  bucket.started = bucket.request.Started();
}

void GradientBuckets::Ready(std::int64_t begin) {
  last_ready_ = MPI_Wtime();
  while (next_ < buckets_.size() && buckets_[next_].begin >= begin) Start(buckets_[next_++]);
  Progress();
}

void GradientBuckets::Progress() {
  for (std::size_t i = 0; i < next_; ++i) buckets_[i].request.Test();
}

void GradientBuckets::Wait() {
  if (next_ != buckets_.size()) throw RunError("gradient buckets: a bucket was never ready");
  const double start = MPI_Wtime();
  for (Bucket& bucket : buckets_) bucket.request.Wait(start);
  seconds_waited_ = MPI_Wtime() - start;
}

double GradientBuckets::FirstStart() const {
  return buckets_.empty() ? 0 : buckets_.front().started;
}

std::int64_t GradientBuckets::StartedBeforeEnd() const {
  return std::count_if(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) {
    return bucket.started > 0 && bucket.started < last_ready_;
  });
}

}  // namespace trireme::parallel
