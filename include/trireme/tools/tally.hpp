// Tally: what many ranks found, told compactly: each text once, with how many said it and the first
// of them.
#ifndef TRIREME_TOOLS_TALLY_HPP_
#define TRIREME_TOOLS_TALLY_HPP_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::tools {

class Tally {
 public:
  static constexpr std::size_t kMostTexts = 16;   // of a topic; the others are counted together
  static constexpr std::size_t kMostRanks = 8;    // named for a text
  static constexpr std::size_t kMostBytes = 400;  // of a text

  struct Said {
    std::string text;        // empty: all texts beyond kMostTexts
    std::int64_t count = 0;  // of ranks, or of nodes if only their first ranks speak
    std::vector<int> ranks;  // the lowest, rising
  };

  // Control characters of the text become spaces; a long one is cut.
  void Add(std::string_view topic, std::string_view text, int rank);
  void Merge(const Tally& other);

  const std::vector<Said>& Of(std::string_view topic) const;  // the most frequent first
  // Texts of the topic: the only one, or the most frequent with "and 2 others"; empty: none.
  std::string Text(std::string_view topic) const;
  const std::map<std::string, std::vector<Said>, std::less<>>& Topics() const { return topics_; }

  std::string Pack() const;
  static Tally Unpack(std::string_view text);

 private:
  void Put(const std::string& topic, Said said);
  std::map<std::string, std::vector<Said>, std::less<>> topics_;
};

// Collective. The tallies of all ranks on rank 0, along a binomial tree: no rank receives more than
// log2(ranks) messages, of a size that does not grow with the number of ranks. Elsewhere a part.
Tally MergeOnRoot(const comm::Communicator& group, Tally mine);

}  // namespace trireme::tools

#endif  // TRIREME_TOOLS_TALLY_HPP_
