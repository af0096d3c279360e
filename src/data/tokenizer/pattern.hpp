// Pre-tokenization patterns: regular expressions of tokenizers by PCRE2, with Unicode's properties.
#ifndef TRIREME_SRC_DATA_TOKENIZER_PATTERN_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_PATTERN_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::data {

// A compiled pattern; copies share it.
class Pattern {
 public:
  // Throws InputError naming `where` for what is no expression, or one that PCRE2 may understand
  // otherwise than `tokenizers`.
  Pattern(const std::string& expression, const std::string& where);

  const std::string& Expression() const { return expression_; }
  // True if a match may depend on the text before it.
  bool LooksBehind() const { return looks_behind_; }

  // Memory of one thread's searches with any patterns.
  class Search {
   public:
    Search();
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    // Prepares for searches in `text` and parts of it.
    void Begin(std::string_view text);
    // First match in `text`, valid UTF-8, from byte `from` on, as [begin, end); none: both are
    // text.size(). Empty matches do not count. Throws RunError if the search hits a limit.
    std::pair<std::size_t, std::size_t> First(const Pattern& pattern, std::string_view text,
                                              std::size_t from);
    // The same, if it stays the first match whatever text follows; else both are text.size().
    std::pair<std::size_t, std::size_t> FirstWhateverFollows(const Pattern& pattern,
                                                             std::string_view text,
                                                             std::size_t from);

   private:
    struct State;
    std::pair<std::size_t, std::size_t> Find(const Pattern& pattern, std::string_view text,
                                             std::size_t from, std::uint32_t options);

    std::unique_ptr<State> state_;
    bool late_ = false;  // the text has late characters
  };

 private:
  struct Code;
  std::string expression_;
  std::shared_ptr<const Code> code_;
  bool looks_behind_ = false;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_PATTERN_HPP_
