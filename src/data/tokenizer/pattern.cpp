// Pre-tokenization patterns by PCRE2, compiled to machine code where it can do that.
#include "bpe.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <limits>

#include "pattern_syntax.hpp"
#include "trireme/base/error.hpp"

namespace trireme::data {

namespace {

constexpr std::size_t kStackBytes = std::size_t{32} << 20;  // of a search, at most

std::string MessageOf(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Pattern::Code {
  Code() = default;
  ~Code() {
    pcre2_code_free(plain);
    pcre2_code_free(late);
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  pcre2_code* plain = nullptr;
  pcre2_code* late = nullptr;  // for texts with late characters
};

namespace {

// Throws InputError with PCRE2's reason.
pcre2_code* Compile(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* const context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) throw InputError(MessageOf(error));
  // Without it the search is only slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return code;
}

}  // namespace

Pattern::Pattern(const std::string& expression, const std::string& where)
    : expression_(expression) {
  auto code = std::make_shared<Code>();
  try {
    const PcrePattern pattern = TranslatePattern(expression);
    code->plain = Compile(pattern.plain);
    if (pattern.late != pattern.plain) code->late = Compile(pattern.late);
    looks_behind_ = pattern.looks_behind;
  } catch (const Error& error) {
    throw InputError(
        fmt::format("{}: the pattern '{}' is not understood: {}", where, expression, error.what()));
  }
  code_ = std::move(code);
}

struct Pattern::Search::State {
  State()
      : context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(std::size_t{1} << 15, kStackBytes, nullptr)),
        match(pcre2_match_data_create(1, nullptr)) {
    pcre2_jit_stack_assign(context, nullptr, stack);
    // Long runs of blanks go back and forth more often than the library allows by itself.
    pcre2_set_match_limit(context, std::numeric_limits<std::uint32_t>::max());
  }
  ~State() {
    pcre2_match_data_free(match);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  pcre2_match_context* context;
  pcre2_jit_stack* stack;
  pcre2_match_data* match;
};

Pattern::Search::Search() : state_(std::make_unique<State>()) {}
Pattern::Search::~Search() = default;

void Pattern::Search::Begin(std::string_view text) { late_ = HasLateCharacter(text); }

std::pair<std::size_t, std::size_t> Pattern::Search::First(const Pattern& pattern,
                                                           std::string_view text,
                                                           std::size_t from) {
  return Find(pattern, text, from, 0);
}

std::pair<std::size_t, std::size_t> Pattern::Search::FirstWhateverFollows(const Pattern& pattern,
                                                                          std::string_view text,
                                                                          std::size_t from) {
  return Find(pattern, text, from, PCRE2_PARTIAL_HARD);
}

std::pair<std::size_t, std::size_t> Pattern::Search::Find(const Pattern& pattern,
                                                          std::string_view text, std::size_t from,
                                                          std::uint32_t options) {
  const Code& codes = *pattern.code_;
  const pcre2_code* const code = late_ && codes.late != nullptr ? codes.late : codes.plain;
  const int found =
      pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | options, state_->match, state_->context);
  if (found == PCRE2_ERROR_NOMATCH || found == PCRE2_ERROR_PARTIAL) {
    return {text.size(), text.size()};
  }
  if (found < 0) {
    throw RunError(fmt::format("the pattern '{}' fails on a text of {} bytes: {}",
                               pattern.Expression(), text.size(), MessageOf(found)));
  }
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(state_->match);
  return {ends[0], ends[1]};
}

}  // namespace trireme::data
