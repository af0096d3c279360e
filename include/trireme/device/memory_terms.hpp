// Memory of one rank by purpose: predicted by a plan before a run, and added up over a node.
#pragma once

#include <array>
#include <cstdint>

namespace trireme::device {

// Bytes of allocated buffers, and of what libraries take in addition.
struct MemoryTerms {
  std::int64_t parameters = 0;       // values, and fp32 masters of bf16 values
  std::int64_t gradients = 0;        // sums of gradients that outlive a micro-batch
  std::int64_t moments = 0;          // of the optimizer
  std::int64_t activations = 0;      // activations of the schedule, scratch, tables of positions
  std::int64_t vocabulary_tile = 0;  // logits of the tokens that the head computes at once
  std::int64_t key_value_cache = 0;  // for generating text
  std::int64_t packed_weights = 0;   // second copies of weights, to generate several texts
  std::int64_t gathered_parameters = 0;  // sharded parameters while they are in use
  std::int64_t gradients_under_way = 0;  // whole gradients on the way to their owners
  std::int64_t exchange_buffers = 0;     // messages between stages; packed sums that are exchanged
  std::int64_t mpi_buffers = 0;          // MPI's own buffers, for gradient sums under way on CPUs
  std::int64_t tokens = 0;               // of the token file
  std::int64_t checkpoint_copy = 0;      // copy of the state for asynchronous checkpoints
  std::int64_t gpu_libraries = 0;        // code and plans that libraries load (an allowance)
  std::int64_t communicators = 0;        // buffers for transfers between GPUs (an estimate)
  std::int64_t fp8_operands = 0;         // rounded operands of matrix products, and kept weights
  std::int64_t Total() const;
  bool operator==(const MemoryTerms&) const = default;
};

// Displayed names, in the order of display.
struct MemoryTerm {
  const char* name;
  std::int64_t MemoryTerms::*bytes;
};
inline constexpr std::array<MemoryTerm, 16> kMemoryTerms = {{
    {"parameters", &MemoryTerms::parameters},
    {"gradients", &MemoryTerms::gradients},
    {"moments", &MemoryTerms::moments},
    {"activations", &MemoryTerms::activations},
    {"vocabulary tile", &MemoryTerms::vocabulary_tile},
    {"key-value cache", &MemoryTerms::key_value_cache},
    {"packed weights", &MemoryTerms::packed_weights},
    {"gathered parameters", &MemoryTerms::gathered_parameters},
    {"gradients under way", &MemoryTerms::gradients_under_way},
    {"exchange buffers", &MemoryTerms::exchange_buffers},
    {"MPI buffers", &MemoryTerms::mpi_buffers},
    {"tokens", &MemoryTerms::tokens},
    {"checkpoint copy", &MemoryTerms::checkpoint_copy},
    {"GPU libraries", &MemoryTerms::gpu_libraries},
    {"communicators", &MemoryTerms::communicators},
    {"fp8 operands", &MemoryTerms::fp8_operands},
}};

inline std::int64_t MemoryTerms::Total() const {
  std::int64_t sum = 0;
  for (const MemoryTerm& term : kMemoryTerms) sum += this->*term.bytes;
  return sum;
}

}  // namespace trireme::device
