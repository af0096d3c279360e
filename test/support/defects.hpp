// Deliberate mistakes that verification must find, put into the transfers of a grid.
#ifndef TRIREME_TEST_SUPPORT_DEFECTS_HPP_
#define TRIREME_TEST_SUPPORT_DEFECTS_HPP_

#include <algorithm>
#include <cstring>
#include <memory>

#include "forwarding_channel.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::test {

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

#endif  // TRIREME_TEST_SUPPORT_DEFECTS_HPP_
