// GradientBuckets: the start of each piece's sums, and their order.
#include "trireme/parallel/gradient_buckets.hpp"

#include <algorithm>

#include "library_memory.hpp"
#include "not_finite.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/parallel/sharding_cut.hpp"

namespace trireme::parallel {

namespace {

// A bucket's second sum starts when that many later buckets are on their way: the first is
// complete by then unless the network is slower than the backward pass. (Test could tell, but what
// starts when must not depend on what has arrived.)
constexpr std::size_t kAcrossLag = 2;

// Elements of the largest operands of canonical sums over the data and the shard group: of an
// all-reduce a bucket at a time is enough.
struct Largest {
  Largest(const kernels::Registry& registry, const ShardSetup& setup) {
    for (const kernels::Piece& piece : registry.Owns().pieces) {
      reduced = std::max(reduced, piece.own.Size());
      const std::int64_t part = OwnCounts(piece).Largest(setup.ranks);
      scattered = std::max({scattered, piece.range.Size(), part * setup.ranks});
    }
    const auto size = static_cast<std::int64_t>(SizeOf(registry.SumType()));
    reduced = std::min(reduced, CeilDivide(setup.bucket_bytes, size));
    if (setup.sharding == comm::Sharding::kNone) scattered = 0;
  }
  std::int64_t reduced = 0, scattered = 0;
};

// Sums of sharded gradients are ShardedUnits' business.
bool Scatters(comm::Sharding sharding) { return sharding == comm::Sharding::kOptimizer; }

}  // namespace

GradientBuckets::GradientBuckets(const comm::Collectives& data, const comm::Collectives& shard,
                                 kernels::Registry& registry, const device::Stream& stream,
                                 const ShardSetup& setup, SharedGradients* shared)
    : data_(data.Carrying(comm::Payload::kGradients)),
      shard_(shard.Carrying(comm::Payload::kGradients)),
      registry_(&registry),
      stream_(stream),
      shared_(shared),
      sharding_(setup.sharding),
      overlap_(setup.overlap),
      canonical_(setup.canonical) {
  const auto& pieces = registry.Owns().pieces;
  for (std::size_t i = pieces.size(); i-- > 0;) {
    buckets_.push_back({static_cast<int>(i), pieces[i], {}, {}, 0});
  }
  if (!canonical_) return;
  const Largest largest(registry, setup);
  data_tree_ = TreeCollectives(data_, stream, registry.SumType(), largest.reduced);
  shard_tree_ = TreeCollectives(shard_, stream, registry.SumType(), largest.scattered);
}

void GradientBuckets::Begin() {
  next_ = 0;
  across_ = 0;
  awaited_ = 0;
  under_way_ = 0;
  not_finite_.clear();
  seconds_waited_ = 0;
  last_ready_ = 0;
  for (Bucket& bucket : buckets_) bucket.started = 0;
}

void* GradientBuckets::Gradient(std::int64_t place) const {
  return ElementAt(registry_->Gradients(), registry_->SumType(), place);
}

void GradientBuckets::CheckFinite(const Bucket& bucket) {
  if (!not_finite_.empty()) return;
  const Part range = bucket.cut.range;
  not_finite_ = FirstNotFinite(stream_, *registry_, range, Gradient(range.begin));
}

// since: from when on nothing is computed.
void GradientBuckets::Await(comm::Request& request, double since) {
  const double start = Seconds();
  request.Wait(since);
  seconds_waited_ += Seconds() - start;
}

// Nothing where Wait does everything: sharded gradients, canonical sums.
void GradientBuckets::Start(Bucket& bucket) {
  if (canonical_ || registry_->Owns().gradients_sharded) return;
  CheckFinite(bucket);
  const Part range = bucket.cut.range;
  if (Scatters(sharding_)) {
    if (shared_ != nullptr) shared_->SumPiece(bucket.piece);
    bucket.request = shard_.StartReduceScatterInPlace(registry_->SumType(), Gradient(range.begin),
                                                      OwnCounts(bucket.cut));
  } else {
    bucket.request =
        data_.StartAllReduce(registry_->SumType(), Gradient(range.begin), range.Size());
  }
  bucket.started = bucket.request.Started();
  if (!overlap_) Await(bucket.request, Seconds());
}

void GradientBuckets::StartAcross(Bucket& bucket, double since) {
  Await(bucket.request, since);
  if (sharding_ == comm::Sharding::kNone || bucket.cut.own.Size() == 0) return;
  bucket.across = data_.StartAllReduce(registry_->SumType(), Gradient(bucket.cut.gradient),
                                       bucket.cut.own.Size());
  if (bucket.started == 0) bucket.started = bucket.across.Started();
  if (!overlap_) Await(bucket.across, Seconds());
}

std::int64_t GradientBuckets::BytesOf(const Bucket& bucket) const {
  return bucket.cut.range.Size() * static_cast<std::int64_t>(SizeOf(registry_->SumType()));
}

// MPI holds copies of its own for sums under way. A backward pass that is faster than the network
// waits here rather than at its end; the order is that of the buckets' sizes alone.
void GradientBuckets::MakeRoom() {
  if (stream_.OnGpu()) return;
  for (; under_way_ > kUnderWayBytes; ++awaited_) {
    Await(buckets_[awaited_].request, Seconds());
    under_way_ -= BytesOf(buckets_[awaited_]);
  }
  under_way_ += BytesOf(buckets_[next_]);
}

std::int64_t GradientBuckets::LibraryBytes() const {
  if (stream_.OnGpu() || canonical_ || registry_->Owns().gradients_sharded) return 0;
  std::int64_t most = 0, held = 0;
  for (std::size_t first = 0, next = 0; next < buckets_.size(); ++next) {
    for (; held > kUnderWayBytes; ++first) held -= BytesOf(buckets_[first]);
    held += BytesOf(buckets_[next]);
    most = std::max(most, held);
  }
  return most * (Scatters(sharding_) ? ScatterCopies(shard_.Size()) : ReduceCopies(data_.Size()));
}

void GradientBuckets::Ready(std::int64_t begin) {
  last_ready_ = Seconds();
  const bool across = !canonical_ && Scatters(sharding_) && data_.Size() > 1;
  const std::size_t lag = overlap_ && shard_.Size() > 1 ? kAcrossLag : 0;
  while (next_ < buckets_.size() && buckets_[next_].cut.range.begin >= begin) {
    MakeRoom();
    Start(buckets_[next_++]);
    if (across && across_ + lag < next_) StartAcross(buckets_[across_++], Seconds());
  }
  Progress();
}

void GradientBuckets::Progress() {
  for (std::size_t i = 0; i < next_; ++i) {
    buckets_[i].request.Test();
    buckets_[i].across.Test();
  }
}

void GradientBuckets::SumInTree(const Bucket& bucket) {
  const Dtype dtype = registry_->SumType();
  const kernels::Piece& cut = bucket.cut;
  if (sharding_ != comm::Sharding::kNone) {
    shard_tree_.ReduceScatterInPlace(dtype, Gradient(cut.range.begin), OwnCounts(cut));
  }
  data_tree_.AllReduce(dtype, Gradient(cut.gradient), cut.own.Size());
}

void GradientBuckets::Wait() {
  if (next_ != buckets_.size()) throw RunError("gradient buckets: a bucket was never ready");
  if (canonical_) {
    for (const Bucket& bucket : buckets_) CheckFinite(bucket);
  }
  const double start = Seconds(), before = seconds_waited_;
  if (canonical_) {
    for (const Bucket& bucket : buckets_) SumInTree(bucket);
  } else {
    while (across_ < buckets_.size()) StartAcross(buckets_[across_++], start);
    for (Bucket& bucket : buckets_) bucket.across.Wait(start);
  }
  seconds_waited_ = before + Seconds() - start;
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
