// Mistakes that tests make on purpose, by channels that forward what they are given.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::test {

// A channel in front of a group's own transfers, which it starts as they were asked for: the same
// calls of MPI, the same bits. Tests derive from it to spoil what passes.

class ForwardingChannel : public comm::Channel {
 public:
  explicit ForwardingChannel(const comm::Collectives& plain) : plain_(plain) {}

  int Start(const comm::Operation& operation) final {
    const auto free = std::ranges::find_if(flights_, [](const Flight& one) { return !one.used; });
    const auto ticket = static_cast<std::size_t>(free - flights_.begin());
    if (free == flights_.end()) flights_.emplace_back();
    Flight& flight = flights_[ticket];
    flight.used = true;
    flight.operation = operation;
    flight.arriving = Arriving(operation);
    if (Before(operation)) flight.requests = Forward(operation);
    flight.operation.places = flight.operation.taken = nullptr;  // gone when this returns
    return static_cast<int>(ticket);
  }
  bool Test(int ticket) final {
    auto& requests = flights_[static_cast<std::size_t>(ticket)].requests;
    const bool first = requests[0].Test(), second = requests[1].Test();
    return first && second;
  }
  void Wait(int ticket) final {
    Flight& flight = flights_[static_cast<std::size_t>(ticket)];
    for (comm::Request& request : flight.requests) request.Wait();
    After(flight.operation, flight.arriving);
    flight.used = false;
  }
  double TakeExposed() override { return 0; }
  void CheckHealth() override {}
  std::vector<std::shared_future<void>> GiveUp() noexcept override { return {}; }
  bool Recordable() const override { return false; }

 protected:
  // Called before a transfer starts; false: it does not.
  virtual bool Before(const comm::Operation&) { return true; }
  // Called when it is complete, with the elements that arrived in operation.to.
  virtual void After(const comm::Operation&, std::int64_t) {}
  const comm::Collectives& Plain() const { return plain_; }

 private:
  using Requests = std::array<comm::Request, 2>;
  struct Flight {
    bool used = false;
    comm::Operation operation;
    std::int64_t arriving = 0;
    Requests requests;
  };

  std::int64_t Arriving(const comm::Operation& operation) const {
    using comm::Transfer;
    if (operation.transfer == Transfer::kSend) return 0;
    if (operation.transfer == Transfer::kReduceScatter) {
      return operation.places->Sizes()[plain_.Rank()];
    }
    if (operation.transfer == Transfer::kAllToAll) return operation.taken->Total();
    return operation.places == nullptr ? operation.count : operation.places->Total();
  }

  Requests Forward(const comm::Operation& o) const {
    using comm::Transfer;
    switch (o.transfer) {
      case Transfer::kAllReduce:
        if (o.reduction == comm::Reduction::kSum) {
          return {plain_.StartAllReduce(o.dtype, o.to, o.count), {}};
        }
        plain_.AllReduce(o.dtype, o.to, o.count, o.reduction);
        return {};
      case Transfer::kBroadcast:
        plain_.Broadcast(o.dtype, o.to, o.count, o.peer);
        return {};
      case Transfer::kSend:
        return {plain_.StartSend(o.dtype, o.from, o.count, o.peer, o.tag), {}};
      case Transfer::kReceive:
        return {plain_.StartReceive(o.dtype, o.to, o.count, o.peer, o.tag), {}};
      default:
        return ForwardPlaced(o);
    }
  }
  Requests ForwardPlaced(const comm::Operation& o) const {
    using comm::Transfer;
    const std::vector<std::int64_t> counts(o.places->Sizes(), o.places->Sizes() + plain_.Size());
    if (o.transfer == Transfer::kReduceScatter) {
      if (o.from == o.to) return {plain_.StartReduceScatterInPlace(o.dtype, o.to, counts), {}};
      return {plain_.StartReduceScatter(o.dtype, o.from, o.to, counts), {}};
    }
    if (o.transfer == Transfer::kAllGather) {
      if (InPlace(o)) return {plain_.StartAllGatherInPlace(o.dtype, o.to, counts), {}};
      return {plain_.StartAllGather(o.dtype, o.from, o.to, counts), {}};
    }
    // An all-to-all, or a shift around the ring, which sends to one rank alone.
    const auto next = static_cast<std::size_t>((plain_.Rank() + 1) % plain_.Size());
    if (plain_.Name() == comm::Group::kContext) {
      constexpr int kTag = 1;
      return plain_.StartShift(o.dtype, o.from, counts[next], o.to, o.taken->Total(), kTag);
    }
    plain_.AllToAll(o.dtype, o.from, o.to, counts);
    return {};
  }

 protected:
  // Whether a gathered part already lies at its place.
  bool InPlace(const comm::Operation& o) const {
    return o.from == ElementAt(o.to, o.dtype, o.places->Starts()[plain_.Rank()]);
  }

 private:
  comm::Collectives plain_;
  std::vector<Flight> flights_;
};

// Deliberate mistakes that verification must find, put into the transfers of a grid.

enum class Defect {
  kNone,
  kNormGradientNotSummed,  // sequence parallelism without the sum of the norms' gradients
  kDataRanksWeighed,       // sums of data ranks with unequal weights, as in an average of averages
  kDataSumSpoiled,         // data rank 1 reads a sum wrongly, as from a broken network
  kTiedGradientNotSummed,  // first and last stage keep their own gradient of the embedding
  kRingOffsetWrong,        // context rank 1 takes keys for those of other positions
  kUsedBeforeGather,       // a parameter is used before its gather is complete
  kTreeOfRanks,            // a canonical sum whose tree depends on the number of ranks
};

class SpoilingChannel final : public ForwardingChannel {
 public:
  // weight: of this rank's terms, of kDataRanksWeighed. here: whether this rank spoils.
  SpoilingChannel(const comm::Collectives& plain, Defect defect, bool here = true,
                  double weight = 1)
      : ForwardingChannel(plain), defect_(defect), here_(here), weight_(weight) {}

 protected:
  bool Before(const comm::Operation& o) override {
    using comm::Transfer;
    const bool gradients = o.payload == comm::Payload::kGradients;
    switch (defect_) {
      case Defect::kNormGradientNotSummed:
      case Defect::kTiedGradientNotSummed:
        return !gradients || o.transfer != Transfer::kAllReduce;
      case Defect::kUsedBeforeGather:
        if (o.transfer != Transfer::kAllGather || InPlace(o)) return true;
        std::memset(o.to, 0, static_cast<std::size_t>(o.places->Total()) * SizeOf(o.dtype));
        return false;
      case Defect::kDataRanksWeighed:
        if (gradients) Scale(o);
        return true;
      default:
        return true;
    }
  }

  void After(const comm::Operation& o, std::int64_t arrived) override {
    const bool gradients = o.payload == comm::Payload::kGradients;
    DispatchDtype(o.dtype, [&](auto zero) {
      auto* to = static_cast<decltype(zero)*>(o.to);
      if (defect_ == Defect::kDataSumSpoiled && here_ && gradients && arrived > 0) to[0] += 1;
      if (o.transfer != comm::Transfer::kAllToAll) return;
      if (defect_ == Defect::kRingOffsetWrong && here_) {
        std::rotate(to, to + arrived / 2, to + arrived);
      }
      if (defect_ == Defect::kTreeOfRanks) SumInOrder(to, arrived / Plain().Size());
    });
  }

 private:
  void Scale(const comm::Operation& o) const {
    const std::int64_t count = o.places == nullptr ? o.count : o.places->Total();
    DispatchDtype(o.dtype, [&](auto zero) {
      using T = decltype(zero);
      auto* values = static_cast<T*>(o.to);  // in place
      std::for_each(values, values + count, [this](T& x) { x *= static_cast<T>(weight_); });
    });
  }
  // ((0 + 1) + 2) + ... in the first array and zeros in the others, which a tree adds to it.
  template <typename T>
  void SumInOrder(T* arrays, std::int64_t count) const {
    for (int rank = 1; rank < Plain().Size(); ++rank) {
      T* const one = arrays + rank * count;
      for (std::int64_t i = 0; i < count; ++i) arrays[i] += one[i];
      std::fill_n(one, count, T{0});
    }
  }
  Defect defect_;
  bool here_;
  double weight_;
};

// Before anything is built on the grid.
inline void Spoil(comm::ProcessGrid& grid, Defect defect) {
  using comm::Group;
  const auto spoil = [&](Group group, bool here, double weight = 1) {
    grid.Decorate(group, [=](const comm::Collectives& plain) {
      return std::make_unique<SpoilingChannel>(plain, defect, here, weight);
    });
  };
  const int rank = grid.Data().Rank(), ranks = grid.Data().Size();
  switch (defect) {
    case Defect::kNone:
      return;
    case Defect::kNormGradientNotSummed:
      return spoil(Group::kTensor, true);
    case Defect::kTiedGradientNotSummed:
      return spoil(Group::kEmbedding, true);
    case Defect::kUsedBeforeGather:
      return spoil(Group::kShard, true);
    case Defect::kRingOffsetWrong:
      return spoil(Group::kContext, grid.Context().Rank() == 1);
    case Defect::kDataRanksWeighed:
      return spoil(grid.Shard().Size() > 1 ? Group::kShard : Group::kData, true,
                   2.0 * (rank + 1) / (ranks + 1));
    case Defect::kDataSumSpoiled:  // the last sum: nothing makes copies agree again
      return spoil(grid.SameShard().Size() > 1 ? Group::kData : Group::kShard, rank == 1);
    case Defect::kTreeOfRanks:
      for (const Group group : {Group::kTensor, Group::kData, Group::kShard}) spoil(group, true);
  }
}

}  // namespace trireme::test
