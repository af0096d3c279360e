// A channel in front of a group's own transfers, which it starts as they were asked for: the same
// calls of MPI, the same bits. Tests derive from it to spoil what passes.
#ifndef TRIREME_TEST_SUPPORT_FORWARDING_CHANNEL_HPP_
#define TRIREME_TEST_SUPPORT_FORWARDING_CHANNEL_HPP_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "trireme/comm/collectives.hpp"

namespace trireme::test {

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

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_FORWARDING_CHANNEL_HPP_
