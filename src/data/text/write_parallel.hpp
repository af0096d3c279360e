// From the ranks' temporary files to one token file: rank 0 makes it, all ranks fill it.
#ifndef TRIREME_SRC_DATA_TEXT_WRITE_PARALLEL_HPP_
#define TRIREME_SRC_DATA_TEXT_WRITE_PARALLEL_HPP_

#include <functional>
#include <span>
#include <string>

#include "encoder.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/tokenizer/tokenizer.hpp"

namespace trireme::data {

// Facts of the file beside its tokens.
struct TextFacts {
  std::int64_t eos = 0;
  std::string source_sha256;
  bool masks = false;
};

// Outcome of encoding.
struct EncodedUnits {
  std::span<const UnitResult> results;  // of all units, in order, the same on every rank
  std::span<const UnitResult> mine;     // of those in `spills`, in order
  Spills& spills;
};

// Collective. Writes `path` by way of a temporary name beside it. stop: asked about every MiB; true
// ends all with an error. An error on one rank is thrown by all, and nothing is left behind.
void WriteInParallel(const comm::Communicator& world, const std::string& path,
                     const tokenizer::Tokenizer& tokenizer, const TextFacts& facts,
                     const EncodedUnits& encoded, const std::function<bool()>& stop);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_WRITE_PARALLEL_HPP_
