// Collectives on MPI: counts and places as MPI wants them, and a record of every transfer.
#include "trireme/comm/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::comm {

namespace {

// MPI counts are ints: longer operands of a blocking call travel in pieces of this many elements.
constexpr std::int64_t kPiece = std::int64_t{1} << 30;

std::int64_t Bytes(Dtype dtype, std::int64_t count) {
  return count * static_cast<std::int64_t>(SizeOf(dtype));
}

int CheckedCount(Transfer transfer, std::int64_t count) {
  if (count < 0 || count > std::numeric_limits<int>::max()) {
    throw RunError(fmt::format("{} of {} elements in one call: an MPI count ends at {}",
                               NameOf(transfer), count, std::numeric_limits<int>::max()),
                   "Make the operand smaller: a smaller data.micro_batch, more ranks along "
                   "grid.tensor, or a smaller grid.bucket_mib.");
  }
  return static_cast<int>(count);
}

// The counts of all ranks, then where each one's part starts, as MPI takes them.
std::vector<int> CountsAndStarts(Transfer transfer, std::span<const std::int64_t> counts,
                                 int group_size) {
  if (counts.size() != static_cast<std::size_t>(group_size)) {
    throw RunError(fmt::format("{} with {} counts in a group of {}", NameOf(transfer),
                               counts.size(), group_size));
  }
  std::vector<int> result;
  result.reserve(2 * counts.size());
  for (const std::int64_t count : counts) result.push_back(CheckedCount(transfer, count));
  std::int64_t start = 0;
  for (const std::int64_t count : counts) {
    result.push_back(CheckedCount(transfer, start));
    start += count;
  }
  CheckedCount(transfer, start);
  return result;
}

// All ranks' elements together, of CountsAndStarts.
std::int64_t TotalOf(const std::vector<int>& places) {
  const auto starts = places.begin() + std::ssize(places) / 2;
  return std::accumulate(places.begin(), starts, std::int64_t{0});
}

void CopyAlone(const void* from, void* to, std::int64_t bytes) {
  if (from != to && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void RequireOther(Transfer transfer, int size) {
  if (size == 1) throw RunError(fmt::format("{} in a group of one rank", NameOf(transfer)));
}

}  // namespace

Collectives::Collectives(const Communicator& group, Group name, Ledger& ledger)
    : group_(&group), name_(name), ledger_(&ledger) {}

void Collectives::Record(Transfer transfer, std::int64_t payload, double waited) const {
  ledger_->Record(name_, transfer, Size(), payload, waited, 0);
}

Request Collectives::Start(Transfer transfer, std::int64_t payload) const {
  Request request;
  request.ledger_ = ledger_;
  request.group_ = name_;
  request.transfer_ = transfer;
  request.group_size_ = Size();
  request.payload_ = payload;
  request.started_ = MPI_Wtime();
  return request;
}

Request Collectives::StartPlaced(Transfer transfer, Dtype dtype, std::vector<int> places) const {
  Request request = Start(transfer, Bytes(dtype, TotalOf(places)));
  request.counts_ = std::move(places);
  return request;
}

void Collectives::AllReduce(Dtype dtype, void* data, std::int64_t count,
                            Reduction reduction) const {
  if (Size() == 1) return;
  const MPI_Op operation = reduction == Reduction::kMax ? MPI_MAX : MPI_SUM;
  const double start = MPI_Wtime();
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const int piece = static_cast<int>(std::min(kPiece, count - begin));
    MPI_Allreduce(MPI_IN_PLACE, ElementAt(data, dtype, begin), piece, MpiType(dtype), operation,
                  group_->Handle());
  }
  Record(Transfer::kAllReduce, Bytes(dtype, count), MPI_Wtime() - start);
}

Request Collectives::StartAllReduce(Dtype dtype, void* data, std::int64_t count) const {
  if (Size() == 1) return {};
  const int elements = CheckedCount(Transfer::kAllReduce, count);
  Request request = Start(Transfer::kAllReduce, Bytes(dtype, count));
  MPI_Iallreduce(MPI_IN_PLACE, data, elements, MpiType(dtype), MPI_SUM, group_->Handle(),
                 &request.handle_);
  return request;
}

void Collectives::ReduceScatter(Dtype dtype, const void* from, void* to,
                                std::span<const std::int64_t> counts) const {
  const std::vector<int> places = CountsAndStarts(Transfer::kReduceScatter, counts, Size());
  if (Size() == 1) return CopyAlone(from, to, Bytes(dtype, counts[0]));
  const double start = MPI_Wtime();
  MPI_Reduce_scatter(from, to, places.data(), MpiType(dtype), MPI_SUM, group_->Handle());
  Record(Transfer::kReduceScatter, Bytes(dtype, TotalOf(places)), MPI_Wtime() - start);
}

Request Collectives::StartReduceScatter(Dtype dtype, const void* from, void* to,
                                        std::span<const std::int64_t> counts) const {
  std::vector<int> places = CountsAndStarts(Transfer::kReduceScatter, counts, Size());
  if (Size() == 1) {
    CopyAlone(from, to, Bytes(dtype, counts[0]));
    return {};
  }
  Request request = StartPlaced(Transfer::kReduceScatter, dtype, std::move(places));
  MPI_Ireduce_scatter(from, to, request.counts_.data(), MpiType(dtype), MPI_SUM, group_->Handle(),
                      &request.handle_);
  return request;
}

Request Collectives::StartReduceScatterInPlace(Dtype dtype, void* data,
                                               std::span<const std::int64_t> counts) const {
  std::vector<int> places = CountsAndStarts(Transfer::kReduceScatter, counts, Size());
  if (Size() == 1) return {};
  Request request = StartPlaced(Transfer::kReduceScatter, dtype, std::move(places));
  MPI_Ireduce_scatter(MPI_IN_PLACE, data, request.counts_.data(), MpiType(dtype), MPI_SUM,
                      group_->Handle(), &request.handle_);
  return request;
}

void Collectives::AllGather(Dtype dtype, const void* from, void* to,
                            std::span<const std::int64_t> counts) const {
  const std::vector<int> places = CountsAndStarts(Transfer::kAllGather, counts, Size());
  if (Size() == 1) return CopyAlone(from, to, Bytes(dtype, counts[0]));
  GatherParts(dtype, from, to, places);
}

void Collectives::AllGatherInPlace(Dtype dtype, void* data,
                                   std::span<const std::int64_t> counts) const {
  const std::vector<int> places = CountsAndStarts(Transfer::kAllGather, counts, Size());
  if (Size() > 1) GatherParts(dtype, MPI_IN_PLACE, data, places);
}

Request Collectives::StartAllGather(Dtype dtype, const void* from, void* to,
                                    std::span<const std::int64_t> counts) const {
  std::vector<int> places = CountsAndStarts(Transfer::kAllGather, counts, Size());
  if (Size() > 1) return StartGatherParts(dtype, from, to, std::move(places));
  CopyAlone(from, to, Bytes(dtype, counts[0]));
  return {};
}

Request Collectives::StartAllGatherInPlace(Dtype dtype, void* data,
                                           std::span<const std::int64_t> counts) const {
  std::vector<int> places = CountsAndStarts(Transfer::kAllGather, counts, Size());
  if (Size() == 1) return {};
  return StartGatherParts(dtype, MPI_IN_PLACE, data, std::move(places));
}

void Collectives::GatherParts(Dtype dtype, const void* from, void* to,
                              const std::vector<int>& places) const {
  const double start = MPI_Wtime();
  const auto rank = static_cast<std::size_t>(Rank());
  MPI_Allgatherv(from, places[rank], MpiType(dtype), to, places.data(), places.data() + Size(),
                 MpiType(dtype), group_->Handle());
  Record(Transfer::kAllGather, Bytes(dtype, TotalOf(places)), MPI_Wtime() - start);
}

Request Collectives::StartGatherParts(Dtype dtype, const void* from, void* to,
                                      std::vector<int> places) const {
  Request request = StartPlaced(Transfer::kAllGather, dtype, std::move(places));
  const int* counts = request.counts_.data();
  MPI_Iallgatherv(from, counts[Rank()], MpiType(dtype), to, counts, counts + Size(), MpiType(dtype),
                  group_->Handle(), &request.handle_);
  return request;
}

void Collectives::AllToAll(Dtype dtype, const void* from, void* to,
                           std::span<const std::int64_t> counts) const {
  const std::vector<int> sent = CountsAndStarts(Transfer::kAllToAll, counts, Size());
  // The largest rank's, so that all ranks refuse where one must.
  CheckedCount(Transfer::kAllToAll, *std::max_element(counts.begin(), counts.end()) * Size());
  if (Size() == 1) return CopyAlone(from, to, Bytes(dtype, counts[0]));
  const std::vector<std::int64_t> own(counts.size(), counts[static_cast<std::size_t>(Rank())]);
  const std::vector<int> taken = CountsAndStarts(Transfer::kAllToAll, own, Size());
  const double start = MPI_Wtime();
  MPI_Alltoallv(from, sent.data(), sent.data() + Size(), MpiType(dtype), to, taken.data(),
                taken.data() + Size(), MpiType(dtype), group_->Handle());
  Record(Transfer::kAllToAll, Bytes(dtype, TotalOf(sent)), MPI_Wtime() - start);
}

void Collectives::Broadcast(Dtype dtype, void* data, std::int64_t count, int root) const {
  if (Size() == 1) return;
  const double start = MPI_Wtime();
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const int piece = static_cast<int>(std::min(kPiece, count - begin));
    MPI_Bcast(ElementAt(data, dtype, begin), piece, MpiType(dtype), root, group_->Handle());
  }
  Record(Transfer::kBroadcast, Bytes(dtype, count), MPI_Wtime() - start);
}

Request Collectives::StartSend(Dtype dtype, const void* data, std::int64_t count, int to,
                               int tag) const {
  RequireOther(Transfer::kSend, Size());
  const int elements = CheckedCount(Transfer::kSend, count);
  Request request = Start(Transfer::kSend, Bytes(dtype, count));
  MPI_Isend(data, elements, MpiType(dtype), to, tag, group_->Handle(), &request.handle_);
  return request;
}

Request Collectives::StartReceive(Dtype dtype, void* data, std::int64_t count, int from,
                                  int tag) const {
  RequireOther(Transfer::kReceive, Size());
  const int elements = CheckedCount(Transfer::kReceive, count);
  Request request = Start(Transfer::kReceive, Bytes(dtype, count));
  MPI_Irecv(data, elements, MpiType(dtype), from, tag, group_->Handle(), &request.handle_);
  return request;
}

}  // namespace trireme::comm
