// Checks of channels.
#include "channel_checks.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

namespace trireme::test {

namespace {

using comm::Collectives;
using comm::Reduction;
using comm::Request;
using Numbers = std::vector<double>;
using Sizes = std::vector<std::int64_t>;

std::uint16_t RoundedToBf16(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void Encode(Dtype dtype, double value, void* to) {
  const auto single = static_cast<float>(value);
  const std::uint16_t bits = RoundedToBf16(value);
  const void* from = dtype == Dtype::kFloat64   ? static_cast<const void*>(&value)
                     : dtype == Dtype::kFloat32 ? static_cast<const void*>(&single)
                                                : &bits;
  std::memcpy(to, from, SizeOf(dtype));
}

double Decoded(Dtype dtype, const void* from) {
  if (dtype == Dtype::kFloat64) return *static_cast<const double*>(from);
  if (dtype == Dtype::kFloat32) return static_cast<double>(*static_cast<const float*>(from));
  const auto bits = static_cast<std::uint32_t>(*static_cast<const std::uint16_t*>(from));
  return static_cast<double>(std::bit_cast<float>(bits << 16));
}

// Value of `rank` at `element`: small, and another at the next element.
double Value(int rank, std::int64_t element) {
  return static_cast<double>((rank + 1) * (element % 5 + 1));
}
double SumOf(int ranks, std::int64_t element) {
  return static_cast<double>(ranks * (ranks + 1) / 2) * Value(0, element);
}
Numbers ValuesOf(int rank, std::int64_t count, std::int64_t begin = 0) {
  Numbers values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(Value(rank, begin + i));
  return values;
}

std::int64_t TotalOf(const Sizes& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}
std::int64_t StartOf(const Sizes& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

Numbers Front(Numbers values, std::int64_t count) {
  values.resize(static_cast<std::size_t>(count));
  return values;
}

// Equal parts; uneven ones, some empty, the first short; all in one rank.
std::vector<Sizes> Cuts(int ranks, std::int64_t scale) {
  Sizes equal, uneven, one;
  for (int rank = 0; rank < ranks; ++rank) {
    equal.push_back(scale);
    uneven.push_back(scale * ((3 * rank + 1) % 4) + (scale > 0 ? rank % 2 : 0));
    one.push_back(rank == ranks - 1 ? scale : 0);
  }
  return {equal, uneven, one};
}

}  // namespace

Operand::Operand(const device::Stream& stream, Dtype dtype, const Numbers& values)
    : stream_(&stream),
      dtype_(dtype),
      count_(std::ssize(values)),
      bytes_(count_ * static_cast<std::int64_t>(SizeOf(dtype))),
      memory_(device::AllocateZeroed(bytes_, stream.Where())),
      host_(device::AllocatePinned(bytes_, stream.Where())) {
  for (std::int64_t i = 0; i < count_; ++i) {
    Encode(dtype, values[static_cast<std::size_t>(i)], ElementAt(host_.get(), dtype, i));
  }
  device::StartCopyIn(stream, host_.get(), memory_.get(), bytes_);
}

Numbers Operand::Values() const {
  const device::PinnedBuffer host = device::AllocatePinned(bytes_, stream_->Where());
  device::StartCopyOut(*stream_, memory_.get(), host.get(), bytes_);
  device::Synchronise(*stream_);
  Numbers values;
  for (std::int64_t i = 0; i < count_; ++i) {
    values.push_back(Decoded(dtype_, ElementAt(host.get(), dtype_, i)));
  }
  return values;
}

void ChannelChecks::EveryTransfer(Dtype dtype, std::int64_t scale) const {
  SCOPED_TRACE(testing::Message() << NameOf(dtype) << ", " << scale);
  Sums(dtype, scale);
  for (const Sizes& counts : Cuts(group.Size(), scale)) {
    SCOPED_TRACE(testing::PrintToString(counts));
    Scatters(dtype, counts);
    Gathers(dtype, counts);
    Exchanges(dtype, counts);
  }
}

void ChannelChecks::Sums(Dtype dtype, std::int64_t count) const {
  const int rank = group.Rank(), ranks = group.Size();
  Numbers sums;
  for (std::int64_t i = 0; i < count; ++i) sums.push_back(SumOf(ranks, i));
  const Operand sum(stream, dtype, ValuesOf(rank, count)),
      most(stream, dtype, ValuesOf(rank, count)), started(stream, dtype, ValuesOf(rank, count)),
      sent(stream, dtype, ValuesOf(rank, count));
  Request request = group.StartAllReduce(dtype, started.At(), count);
  group.AllReduce(dtype, sum.At(), count);
  group.AllReduce(dtype, most.At(), count, Reduction::kMax);
  group.Broadcast(dtype, sent.At(), count, ranks - 1);
  EXPECT_FALSE(request.Complete());
  request.Wait();
  EXPECT_TRUE(request.Complete());
  EXPECT_EQ(sum.Values(), sums);
  EXPECT_EQ(started.Values(), sums);
  EXPECT_EQ(most.Values(), ValuesOf(ranks - 1, count));
  EXPECT_EQ(sent.Values(), ValuesOf(ranks - 1, count));
}

void ChannelChecks::Scatters(Dtype dtype, const Sizes& counts) const {
  const int rank = group.Rank();
  const std::int64_t own = counts[static_cast<std::size_t>(rank)], begin = StartOf(counts, rank);
  Numbers wanted;
  for (std::int64_t i = 0; i < own; ++i) wanted.push_back(SumOf(group.Size(), begin + i));
  const Numbers mine = ValuesOf(rank, TotalOf(counts)), none(static_cast<std::size_t>(own), -1);
  const Operand from(stream, dtype, mine), in_place(stream, dtype, mine), one(stream, dtype, none),
      other(stream, dtype, none);
  group.ReduceScatter(dtype, from.At(), one.At(), counts);
  group.StartReduceScatter(dtype, from.At(), other.At(), counts).Wait();
  group.StartReduceScatterInPlace(dtype, in_place.At(), counts).Wait();
  EXPECT_EQ(one.Values(), wanted);
  EXPECT_EQ(other.Values(), wanted);
  EXPECT_EQ(from.Values(), mine);
  EXPECT_EQ(Front(in_place.Values(), own), wanted);
}

void ChannelChecks::Gathers(Dtype dtype, const Sizes& counts) const {
  const int rank = group.Rank();
  const std::int64_t own = counts[static_cast<std::size_t>(rank)], total = TotalOf(counts);
  Numbers wanted, placed(static_cast<std::size_t>(total), -1);
  for (int other = 0; other < group.Size(); ++other) {
    for (const double v : ValuesOf(other, counts[static_cast<std::size_t>(other)])) {
      if (other == rank) placed[wanted.size()] = v;
      wanted.push_back(v);
    }
  }
  const Operand from(stream, dtype, ValuesOf(rank, own)), one(stream, dtype, placed),
      other(stream, dtype, placed);
  const Operand in_place(stream, dtype, placed), started(stream, dtype, placed);
  group.AllGather(dtype, from.At(), one.At(), counts);
  group.StartAllGather(dtype, from.At(), other.At(), counts).Wait();
  group.AllGatherInPlace(dtype, in_place.At(), counts);
  group.StartAllGatherInPlace(dtype, started.At(), counts).Wait();
  for (const Operand* to : {&one, &other, &in_place, &started}) EXPECT_EQ(to->Values(), wanted);
}

void ChannelChecks::Exchanges(Dtype dtype, const Sizes& counts) const {
  const int rank = group.Rank();
  const std::int64_t own = counts[static_cast<std::size_t>(rank)];
  // Names the sender and the receiver: whole numbers up to 256.
  const auto value = [](int from, int to, std::int64_t i) {
    return static_cast<double>(from * 60 + to * 10 + i % 7);
  };
  Numbers mine, wanted;
  for (int other = 0; other < group.Size(); ++other) {
    for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(other)]; ++i) {
      mine.push_back(value(rank, other, i));
    }
    for (std::int64_t i = 0; i < own; ++i) wanted.push_back(value(other, rank, i));
  }
  const Operand from(stream, dtype, mine), to(stream, dtype, Numbers(wanted.size(), -1));
  group.AllToAll(dtype, from.At(), to.At(), counts);
  EXPECT_EQ(to.Values(), wanted);
}

void ChannelChecks::ManyInFlight(Dtype dtype) const {
  constexpr int kAtOnce = 6;
  constexpr std::int64_t kEach = 301;
  const Sizes counts(static_cast<std::size_t>(group.Size()), kEach);
  const std::int64_t total = TotalOf(counts), begin = StartOf(counts, group.Rank());
  std::vector<Operand> sums, parts;
  std::vector<Request> requests;
  for (int k = 0; k < kAtOnce; ++k) {
    sums.emplace_back(stream, dtype, ValuesOf(group.Rank(), total, k));
    parts.emplace_back(stream, dtype, ValuesOf(group.Rank(), total, k));
    requests.push_back(group.StartReduceScatterInPlace(dtype, sums.back().At(), counts));
    requests.push_back(group.StartAllGatherInPlace(dtype, parts.back().At(), counts));
  }
  for (auto request = requests.rbegin(); request != requests.rend(); ++request) request->Wait();
  for (int k = 0; k < kAtOnce; ++k) {
    const Numbers sum = sums[static_cast<std::size_t>(k)].Values();
    const Numbers part = parts[static_cast<std::size_t>(k)].Values();
    for (std::int64_t i = 0; i < kEach; ++i) {
      ASSERT_EQ(sum[static_cast<std::size_t>(i)], SumOf(group.Size(), begin + i + k)) << k;
    }
    for (std::int64_t i = 0; i < total; ++i) {
      ASSERT_EQ(part[static_cast<std::size_t>(i)], Value(static_cast<int>(i / kEach), i + k)) << k;
    }
  }
}

// Two of one tag, one of another that is posted first and sent last, one the other way round, and
// an empty one; everyone is complete when another order than that of the starts awaits them.
void ChannelChecks::Messages(Dtype dtype, std::int64_t count) const {
  const int size = group.Size(), rank = group.Rank();
  const int next = (rank + 1) % size, last = (rank + size - 1) % size;
  const auto sent = [&](int from, int message) { return ValuesOf(from, count, message); };
  std::vector<Operand> out, in;
  for (int message = 0; message < 4; ++message) {
    out.emplace_back(stream, dtype, sent(rank, message));
    in.emplace_back(stream, dtype, Numbers(static_cast<std::size_t>(count), -1));
  }
  const auto receive = [&](int message, int from, int tag) {
    return group.StartReceive(dtype, in[static_cast<std::size_t>(message)].At(), count, from, tag);
  };
  const auto send = [&](int message, int to, int tag) {
    return group.StartSend(dtype, out[static_cast<std::size_t>(message)].At(), count, to, tag);
  };
  const int first = kToNext[0], second = kToNext[1], back = kToPrevious[0];
  std::vector<Request> requests;
  requests.push_back(receive(2, last, second));
  requests.push_back(receive(0, last, first));
  requests.push_back(receive(3, next, back));
  requests.push_back(send(3, last, back));
  requests.push_back(send(0, next, first));
  // After the send: begins behind the receive of its tag, and holds up what is started later.
  requests.push_back(receive(1, last, first));
  requests.push_back(group.StartReceive(dtype, nullptr, 0, last, first));
  requests.push_back(send(1, next, first));
  requests.push_back(group.StartSend(dtype, nullptr, 0, next, first));
  requests.push_back(send(2, next, second));
  for (const std::size_t i : {1, 6, 3, 0, 9, 5, 2, 7, 4, 8}) {
    requests[i].Test();  // a chance to progress, as the layers give one
    requests[i].Wait();
    EXPECT_TRUE(requests[i].Complete());
  }
  for (int message = 0; message < 4; ++message) {
    const int from = message == 3 ? next : last;
    EXPECT_EQ(in[static_cast<std::size_t>(message)].Values(), sent(from, message)) << message;
  }
}

void ChannelChecks::Shifts(Dtype dtype, std::int64_t count) const {
  constexpr int kAtOnce = 2, kTimes = 3;
  const int size = group.Size(), rank = group.Rank(), last = (rank + size - 1) % size;
  for (int time = 0; time < kTimes; ++time) {
    std::vector<Operand> out, in;
    std::vector<std::array<Request, 2>> requests;
    for (int i = 0; i < kAtOnce; ++i) {
      out.emplace_back(stream, dtype, ValuesOf(rank, count + rank, time + i));
      in.emplace_back(stream, dtype, Numbers(static_cast<std::size_t>(count + last), -1));
      requests.push_back(group.StartShift(dtype, out.back().At(), count + rank, in.back().At(),
                                          count + last, kToNext[static_cast<std::size_t>(i)]));
    }
    for (auto& both : requests) {
      for (Request& request : both) {
        request.Test();
        request.Wait();
        EXPECT_TRUE(request.Complete());
      }
    }
    for (int i = 0; i < kAtOnce; ++i) {
      EXPECT_EQ(in[static_cast<std::size_t>(i)].Values(), ValuesOf(last, count + last, time + i));
    }
  }
}

void ChannelChecks::MessagesInTurn(Dtype dtype, std::int64_t count) const {
  constexpr int kMessages = 4;
  const int size = group.Size(), rank = group.Rank(), tag = kToNext[0];
  const int last = (rank + size - 1) % size;
  std::vector<Operand> out, in;
  std::vector<Request> sends, receives;
  for (int message = 0; message < kMessages; ++message) {
    out.emplace_back(stream, dtype, ValuesOf(rank, count, message));
    in.emplace_back(stream, dtype, Numbers(static_cast<std::size_t>(count), -1));
  }
  // In pairs: a send begins behind that before it, and holds up the receives that are started
  // later.
  for (std::size_t i = 0; i < out.size(); ++i) {
    sends.push_back(group.StartSend(dtype, out[i].At(), count, (rank + 1) % size, tag));
    receives.push_back(group.StartReceive(dtype, in[i].At(), count, last, tag));
  }
  for (Request& receive : receives) receive.Wait();
  for (Request& send : sends) send.Wait();
  for (int message = 0; message < kMessages; ++message) {
    EXPECT_EQ(in[static_cast<std::size_t>(message)].Values(), ValuesOf(last, count, message));
  }
}

void ChannelChecks::RoundedSums(Dtype dtype, const comm::Communicator& ranks) const {
  constexpr std::int64_t kCount = 2001;
  const auto value = [](int rank, std::int64_t i) {
    return std::sin(static_cast<double>((rank + 1) * (i + 1)));
  };
  Numbers mine, sums;
  for (std::int64_t i = 0; i < kCount; ++i) {
    mine.push_back(value(group.Rank(), i));
    double sum = 0;
    for (int rank = 0; rank < group.Size(); ++rank) sum += value(rank, i);
    sums.push_back(sum);
  }
  const Operand operand(stream, dtype, mine);
  group.AllReduce(dtype, operand.At(), kCount);
  const Numbers got = operand.Values();
  // Each operand is rounded once, and each partial sum, none larger than the group.
  const double unit = dtype == Dtype::kFloat64   ? 0x1p-53
                      : dtype == Dtype::kFloat32 ? 0x1p-24
                                                 : 0x1p-9;
  const double tolerance = 2 * unit * group.Size() * group.Size();
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ASSERT_NEAR(got[at], sums[at], tolerance) << i;
  }
  Numbers first = got;
  ranks.Broadcast(first.data(), kCount * static_cast<std::int64_t>(sizeof(double)), 0);
  EXPECT_EQ(got, first);
}

}  // namespace trireme::test
