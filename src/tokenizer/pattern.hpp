// Pre-tokenization patterns: regular expressions of tokenizers by PCRE2, with Unicode's properties.
#ifndef TRIREME_SRC_TOKENIZER_PATTERN_HPP_
#define TRIREME_SRC_TOKENIZER_PATTERN_HPP_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::tokenizer {

// A compiled pattern; copies share it.
class Pattern {
 public:
  // Throws InputError naming `where` if the expression is none.
  Pattern(const std::string& expression, const std::string& where);

  const std::string& Expression() const { return expression_; }

  // Memory of one thread's searches with any patterns.
  class Search {
   public:
    Search();
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    // First match in `text`, valid UTF-8, from byte `from` on, as [begin, end); none: both are
    // text.size(). Empty matches do not count. Throws RunError if the search hits a limit.
    std::pair<std::size_t, std::size_t> First(const Pattern& pattern, std::string_view text,
                                              std::size_t from);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::string expression_;
  std::shared_ptr<const Code> code_;
};

}  // namespace trireme::tokenizer

#endif  // TRIREME_SRC_TOKENIZER_PATTERN_HPP_
