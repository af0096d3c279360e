// Registry: the blocks of a checkpoint.
#include "trireme/kernels/registry.hpp"

namespace trireme::kernels {

std::vector<StateBlock> Registry::ValueBlocks(int rank, int ranks, int sharers) const {
  if (masters_ != nullptr) {
    return OwnedBlocks(masters_.get(), SumType(), &Owned::moment, "", rank, ranks, sharers);
  }
  return StoredValueBlocks(rank, ranks, sharers);
}

std::vector<StateBlock> Registry::StoredValueBlocks(int rank, int ranks, int sharers) const {
  if (ownership_.values_sharded) {
    return OwnedBlocks(values_.get(), dtype_, &Owned::value, "", rank, ranks, sharers);
  }
  std::vector<StateBlock> blocks;
  blocks.reserve(Parameters().size());
  for (const Parameter& parameter : Parameters()) {
    void* data = parameter.Held() ? ElementAt(values_.get(), dtype_, parameter.offset) : nullptr;
    blocks.push_back({parameter.name, parameter.shape, dtype_, parameter.begin, parameter.end, data,
                      rank * parameter.copies + parameter.copy, ranks * parameter.copies});
  }
  return blocks;
}

std::vector<StateBlock> Registry::MomentBlocks(void* storage, const std::string& prefix, int rank,
                                               int ranks, int sharers) const {
  return OwnedBlocks(storage, SumType(), &Owned::moment, prefix, rank, ranks, sharers);
}

std::vector<StateBlock> Registry::GradientBlocks(int rank, int ranks, int sharers) const {
  return OwnedBlocks(gradients_.get(), SumType(), &Owned::gradient, "", rank, ranks, sharers);
}

// Owned elements: as many ranks hold them as there are groups of sharers, times the copies.
std::vector<StateBlock> Registry::OwnedBlocks(void* storage, Dtype dtype,
                                              std::int64_t Owned::*place, const std::string& prefix,
                                              int rank, int ranks, int sharers) const {
  std::vector<StateBlock> blocks;
  blocks.reserve(Parameters().size());
  for (std::size_t id = 0; id < Parameters().size(); ++id) {
    const Parameter& parameter = Parameters()[id];
    const Owned owned = OwnedOf(static_cast<ParameterId>(id));
    const std::int64_t begin = parameter.begin + owned.flat.begin - parameter.offset;
    const std::int64_t size = owned.flat.Size();
    void* data = size > 0 ? ElementAt(storage, dtype, owned.*place) : nullptr;
    blocks.push_back({prefix + parameter.name, parameter.shape, dtype, begin, begin + size, data,
                      rank / sharers * parameter.copies + parameter.copy,
                      ranks / sharers * parameter.copies});
  }
  return blocks;
}

}  // namespace trireme::kernels
