// GradientBuckets: when each bucket's sums start, and in which order.
#include "trireme/parallel/gradient_buckets.hpp"

#include <array>
#include <cmath>
#include <cstddef>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::parallel {

namespace {

// A bucket's second sum starts once this many later buckets have started. Its first sum is complete
// by then unless the network is slower than the backward pass. (Test would tell, but the order of
// starts must be the same on all ranks, whatever has arrived.)
constexpr std::size_t kAcrossLag = 2;

// Limit on the bytes of first sums under way at once on CPUs: above it, the oldest are awaited
// before the next one starts. It is enough to keep a network busy.
constexpr std::int64_t kUnderWayBytes = std::int64_t{16} << 20;

// Like ScatterCopies, for Open MPI 4's non-blocking all-reduce: with fewer than four ranks it sums
// along the same tree and sends the result back; with more it uses a ring.
int ReduceCopies(int ranks) {
  constexpr int kRing = 4;
  return ranks < kRing ? ScatterCopies(ranks) : 1;
}

using kernels::GradientSum;

// Sums of up to this many terms have the same bits in any order.
constexpr int kCommute = 2;

// The order in which every rank enters the groups of SharedGradients. With different orders, two
// ranks could wait for each other.
constexpr std::array kOrder = {GradientSum::kTensor, GradientSum::kKeyValue, GradientSum::kTied};

// Whether GradientBuckets itself scatters. (ShardedUnits scatters sharded gradients.)
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
  // Elements of the largest operands. An all-reduce may go in pieces: one bucket's size suffices.
  std::int64_t reduced = 0, scattered = 0;
  for (const kernels::Piece& piece : pieces) {
    reduced = std::max(reduced, piece.own.Size());
    const std::int64_t part = OwnCounts(piece).Largest(setup.ranks);
    scattered = std::max({scattered, piece.range.Size(), part * setup.ranks});
  }
  const Dtype type = registry.SumType();
  reduced = std::min(reduced, CeilDivide(setup.bucket_bytes, trireme::BytesOf(type, 1)));
  if (sharding_ == comm::Sharding::kNone) scattered = 0;
  data_tree_ = TreeCollectives(data_, stream, type, reduced);
  shard_tree_ = TreeCollectives(shard_, stream, type, scattered);
}

void GradientBuckets::Begin() {
  next_ = across_ = awaited_ = 0;
  under_way_ = 0;
  not_finite_.clear();
  seconds_waited_ = last_ready_ = 0;
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

// since: the time since which this rank has computed nothing.
void GradientBuckets::Await(comm::Request& request, double since) {
  const double start = Seconds();
  request.Wait(since);
  seconds_waited_ += Seconds() - start;
}

// Does nothing for sharded gradients and canonical sums, which are left to Wait.
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
  return trireme::BytesOf(registry_->SumType(), bucket.cut.range.Size());
}

// Bounds the copies that MPI holds for sums under way: a backward pass that is faster than the
// network waits here rather than at its end. When it waits depends on the buckets' sizes alone.
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

// CopiedGradients: which parameters share a message, packing, and the broadcast.

CopiedGradients::CopiedGradients(kernels::Registry& registry, const CopyGroups& groups,
                                 bool sharded, bool canonical, const device::Stream& stream)
    : registry_(&registry),
      stream_(stream),
      shard_(groups.shard.Carrying(comm::Payload::kGradients)) {
  const int data = groups.data.Size();
  const bool last_over_data = !canonical && std::max(data, groups.shard.Size()) > kCommute;
  for (const bool heads : {false, true}) {
    const comm::Collectives& copies = heads ? groups.key_value : groups.tensor;
    if (copies.Size() == 1) continue;
    if (last_over_data) AddMessage({copies, sharded, {}, 0}, heads, false);
    if (sharded && last_over_data) AddMessage({copies, true, {}, 0}, heads, true);
    if (sharded || copies.Size() <= kCommute || data == 1) continue;
    AddMessage({groups.data, false, {}, 0}, heads, true);
  }
  std::int64_t most = 0;
  for (const Message& message : messages_) most = std::max(most, message.elements);
  const std::int64_t bytes = BytesOf(registry.SumType(), most);
  if (bytes > 0) buffer_ = device::AllocateZeroed(bytes, stream.Where());
}

// Adds `message` with the parameters of one kind, unless there are none. shared_heads: those of
// shared key/value heads; false: those that every tensor rank holds whole. summed: those whose
// gradients are summed over their copies; false: those whose gradients are complete on each copy.
void CopiedGradients::AddMessage(Message message, bool shared_heads, bool summed) {
  const auto& parameters = registry_->Parameters();
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    const kernels::Parameter& parameter = parameters[id];
    if (!parameter.Held() || parameter.copies == 1 || parameter.sum == GradientSum::kTied) continue;
    if ((parameter.sum == GradientSum::kKeyValue) != shared_heads) continue;
    if ((parameter.sum != GradientSum::kNone) != summed) continue;
    message.parameters.push_back(static_cast<kernels::ParameterId>(id));
    message.elements += parameter.LocalSize();
  }
  if (message.elements == 0) return;
  message.group = message.group.Carrying(comm::Payload::kGradients);
  messages_.push_back(std::move(message));
}

void CopiedGradients::Share() {
  const Dtype type = registry_->SumType();
  for (const Message& message : messages_) {
    const bool put_together = message.parts && shard_.Size() > 1;
    if (put_together) device::SetZero(stream_, buffer_.get(), BytesOf(type, message.elements));
    Copy(message, true);
    if (put_together) shard_.AllReduce(type, buffer_.get(), message.elements);
    message.group.Broadcast(type, buffer_.get(), message.elements, 0);
    Copy(message, false);
  }
}

// Copies owned elements to their places in the buffer (pack), or back.
void CopiedGradients::Copy(const Message& message, bool pack) {
  const Dtype type = registry_->SumType();
  std::int64_t at = 0;
  for (const kernels::ParameterId id : message.parameters) {
    const kernels::Parameter& parameter = registry_->Parameters()[static_cast<std::size_t>(id)];
    const kernels::Owned owned = registry_->OwnedOf(id);
    if (owned.flat.Size() > 0) {
      void* const packed = ElementAt(buffer_.get(), type, at + owned.flat.begin - parameter.offset);
      void* const gradient = ElementAt(registry_->Gradients(), type, owned.gradient);
      device::CopyWithin(stream_, pack ? gradient : packed, pack ? packed : gradient,
                         BytesOf(type, owned.flat.Size()));
    }
    at += parameter.LocalSize();
  }
}

// SharedGradients: which parameters share a message, packing, one all-reduce per message.

SharedGradients::SharedGradients(kernels::Registry& registry,
                                 const std::map<GradientSum, comm::Collectives>& groups,
                                 bool sharded, const device::Stream& stream)
    : registry_(&registry), stream_(stream) {
  const auto& parameters = registry.Parameters();
  for (const GradientSum sum : kOrder) {
    const auto group = groups.find(sum);
    if (group == groups.end() || group->second.Size() == 1) continue;
    const bool owned = sharded && sum == GradientSum::kTied;
    const bool by_piece = sharded && !owned;
    const comm::Collectives carrying = group->second.Carrying(comm::Payload::kGradients);
    const std::size_t first = messages_.size();  // first message of this group
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].sum != sum || !parameters[i].Held()) continue;
      const auto id = static_cast<kernels::ParameterId>(i);
      const std::int64_t elements =
          owned ? registry.OwnedOf(id).flat.Size() : parameters[i].LocalSize();
      if (elements == 0) continue;  // owned elsewhere, for every rank of the group
      const int piece = by_piece ? PieceOf(parameters[i]) : kAll;
      if (messages_.size() == first || messages_.back().piece != piece) {
        messages_.push_back({carrying, piece, {}, owned, 0});
      }
      messages_.back().parameters.push_back(id);
      messages_.back().elements += elements;
    }
  }
  std::int64_t most = 0;
  for (const Message& message : messages_) {
    if (message.parameters.size() > 1) most = std::max(most, message.elements);
  }
  const std::int64_t bytes = BytesOf(registry.SumType(), most);
  if (bytes > 0) buffer_ = device::AllocateZeroed(bytes, stream.Where());
}

int SharedGradients::PieceOf(const kernels::Parameter& parameter) const {
  const auto& pieces = registry_->Owns().pieces;
  const auto at = std::find_if(pieces.begin(), pieces.end(), [&](const kernels::Piece& piece) {
    return parameter.offset < piece.range.end;
  });
  return static_cast<int>(at - pieces.begin());
}

void SharedGradients::SumPiece(int piece) {
  for (const Message& message : messages_) {
    if (message.piece == piece) Sum(message);
  }
}

SharedGradients::Span SharedGradients::SpanOf(const Message& message,
                                              kernels::ParameterId id) const {
  if (message.owned) {
    const kernels::Owned owned = registry_->OwnedOf(id);
    return {ElementAt(registry_->Gradients(), registry_->SumType(), owned.gradient),
            owned.flat.Size()};
  }
  const kernels::Matrix gradient = registry_->Gradient(id);
  return {gradient.data, gradient.Size()};
}

void SharedGradients::Sum(const Message& message) {
  if (message.parameters.size() == 1) {
    // One parameter needs no packing, and an embedding would be large to copy.
    const Span span = SpanOf(message, message.parameters.front());
    return message.group.AllReduce(registry_->SumType(), span.data, span.elements);
  }
  Copy(message, true);
  message.group.AllReduce(registry_->SumType(), buffer_.get(), message.elements);
  Copy(message, false);
}

void SharedGradients::Copy(const Message& message, bool pack) {
  auto* packed = static_cast<char*>(buffer_.get());
  for (const kernels::ParameterId id : message.parameters) {
    const Span span = SpanOf(message, id);
    const std::int64_t bytes = BytesOf(registry_->SumType(), span.elements);
    device::CopyWithin(stream_, pack ? span.data : packed, pack ? packed : span.data, bytes);
    packed += bytes;
  }
}

// FirstNotFinite: tests the sum of squares of the whole range, then that of each parameter.

std::string FirstNotFinite(const device::Stream& stream, const kernels::Registry& registry,
                           Part flat, void* gradients) {
  // On a GPU the host would have to wait here; the norm of the summed gradients is checked instead.
  if (stream.OnGpu()) return {};
  const Dtype dtype = registry.SumType();
  const auto finite = [&](std::int64_t begin, std::int64_t end) {
    return std::isfinite(kernels::SquareSumOf(stream, dtype, end - begin,
                                              ElementAt(gradients, dtype, begin - flat.begin)));
  };
  if (finite(flat.begin, flat.end)) return {};
  for (const kernels::Parameter& parameter : registry.Parameters()) {
    const std::int64_t begin = std::max(parameter.offset, flat.begin);
    const std::int64_t end = std::min(parameter.offset + parameter.LocalSize(), flat.end);
    if (begin < end && !finite(begin, end)) return parameter.name;
  }
  if (registry.SecondOf() == kernels::kNoParameter) return {};  // only padding is not finite
  return registry.Parameters()[static_cast<std::size_t>(registry.SecondOf())].name;
}

}  // namespace trireme::parallel
