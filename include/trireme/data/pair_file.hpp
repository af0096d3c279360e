// A file of pairs: source and target texts of a translation, read as two token files in one.
#ifndef TRIREME_DATA_PAIR_FILE_HPP_
#define TRIREME_DATA_PAIR_FILE_HPP_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/token_file.hpp"

namespace trireme::data {

// Numbers of a file of pairs that a plan needs.
struct PairCounts {
  std::int64_t source_vocabulary = 0, target_vocabulary = 0;  // types
  bool shared_vocabulary = true;                              // both texts have one
  std::array<std::int64_t, 3> pairs{};                        // by Split
  std::array<std::int64_t, 3> source_tokens{}, target_tokens{};
};
// Checks everything but the arrays' elements. Serial; needs no MPI. Throws InputError as
// CountTokens does, also for a file of single texts.
PairCounts CountPairs(const std::string& path);

class PairFile {
 public:
  // Collective; arguments and errors as of TokenFile, which reads each side. Each text ends with
  // its vocabulary's eos.
  PairFile(const comm::Communicator& world, const comm::Communicator& node, const std::string& path,
           const Keeping& keeping, const std::function<void()>& after_round = {});
  // Of texts in memory, each a document. Collective, as of TokenFile. Throws AgreedError if their
  // numbers differ.
  PairFile(const comm::Communicator& world, const TokenData& source, const TokenData& target,
           bool shared_vocabulary);

  std::int64_t Pairs(Split split) const { return source_.Documents(split); }
  bool SharesVocabulary() const { return shared_; }
  // Of kSource or kTarget: vocabulary, tokenizer, ids.
  const TokenFile& Of(Side side) const { return side == Side::kSource ? source_ : target_; }

  // Tokens of the texts of pairs [first, first + lengths.size()), eos included. Serial; of a
  // stream, on ranks that read it. Throws RunError as class Windows does.
  void ReadLengths(Side side, Split split, std::int64_t first,
                   std::span<std::int32_t> lengths) const;
  // Replaces `ids` by those of the text of one pair, eos included. Likewise.
  void ReadText(Side side, Split split, std::int64_t pair, std::vector<std::int32_t>& ids) const;

  // Ids of a text, with eos: what the file holds for it. Throws InputError as TokenFile::Encode. By
  // one thread at a time.
  std::vector<std::int32_t> Encode(Side side, std::string_view text) const;
  // Text of ids up to the first eos, if there is one.
  std::string Decode(Side side, std::span<const std::int32_t> ids) const;

 private:
  void CheckCounts(const comm::Communicator& world) const;
  TokenFile source_, target_;
  bool shared_ = true;
  // Ids that the tokenizers' templates put after a text, of source and target, once they are known.
  mutable std::array<std::optional<std::vector<std::int32_t>>, 2> suffixes_;
};

}  // namespace trireme::data

#endif  // TRIREME_DATA_PAIR_FILE_HPP_
