// The token file that all ranks fill: rank 0 makes it.
#ifndef TRIREME_SRC_DATA_TEXT_WRITE_PARALLEL_HPP_
#define TRIREME_SRC_DATA_TEXT_WRITE_PARALLEL_HPP_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "encoder.hpp"
#include "piece_writer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

// Tokens of train at which their place is known before their number is. HDF5 packs smaller
// datasets together.
inline constexpr std::int64_t kEarlyTokens = 1 << 12;

// Facts of the file beside its tokens.
struct TextFacts {
  std::int64_t eos = 0;
  bool masks = false;
};

// Outcome of encoding.
struct EncodedUnits {
  std::span<const UnitResult> results;  // of all units, in order, the same on every rank
  std::span<const UnitResult> mine;     // of those in `spills`, in order
  Spills& spills;                       // copied: the same on every rank
  std::string source_sha256;
  std::int64_t copied_to = 0;  // if spills.copied: first byte of train's tokens in the file
};

// A temporary name beside the file's own, until all is written: an error leaves nothing behind.
class ParallelTokenFile {
 public:
  // Collective. The tokenizer must live longer.
  ParallelTokenFile(const comm::Communicator& world, const std::string& path,
                    const Tokenizer& tokenizer, const TextFacts& facts);
  ~ParallelTokenFile();
  ParallelTokenFile(const ParallelTokenFile&) = delete;
  ParallelTokenFile& operator=(const ParallelTokenFile&) = delete;

  // The file with the place of train's tokens that HDF5 will give at least kEarlyTokens of them;
  // none if it depends on their number.
  std::optional<WrittenFile> Early() const;

  // Collective. Writes what was not copied, and gives the file its name. stop: asked about every
  // MiB; true ends all with an error. An error on one rank is thrown by all. False: tokens of train
  // were copied to a place that is not theirs; nothing is written.
  bool Write(const EncodedUnits& encoded, const std::function<bool()>& stop);

 private:
  struct Root;

  const comm::Communicator& world_;
  WrittenFile file_;
  bool early_ = false;
  std::unique_ptr<Root> root_;  // of rank 0
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TEXT_WRITE_PARALLEL_HPP_
