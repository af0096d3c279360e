// Pre-tokenization patterns by PCRE2, compiled to machine code where it can do that.
#include "pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>

#include "trireme/base/error.hpp"

namespace trireme::tokenizer {

namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;  // of a search, at most

// Unicode's White_Space, as Rust and Oniguruma understand \s. PCRE2 adds U+180E to it.
constexpr const char* kWhiteSpace =
    R"(\t-\r\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// The expression with \s and \S written out: in a class only \s can be.
std::string SpellSpaces(const std::string& expression) {
  std::string text;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c != '\\' || i + 1 == expression.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      text += c;
      continue;
    }
    const char escaped = expression[++i];
    if (escaped == 's') {
      text += in_class ? kWhiteSpace : fmt::format("[{}]", kWhiteSpace);
    } else if (escaped == 'S' && !in_class) {
      text += fmt::format("[^{}]", kWhiteSpace);
    } else {
      text += {c, escaped};
    }
  }
  return text;
}

std::string MessageOf(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct Pattern::Code {
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code = nullptr;
};

Pattern::Pattern(const std::string& expression, const std::string& where)
    : expression_(expression) {
  const std::string spelled = SpellSpaces(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code->code == nullptr) {
    throw InputError(fmt::format("{}: the pattern '{}' is not understood: {}", where, expression,
                                 MessageOf(error)));
  }
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // without it the search is only slower
  code_ = std::move(code);
}

struct Pattern::Search::State {
  State()
      : context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(std::size_t{1} << 15, kStackBytes, nullptr)),
        match(pcre2_match_data_create(1, nullptr)) {
    pcre2_jit_stack_assign(context, nullptr, stack);
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

std::pair<std::size_t, std::size_t> Pattern::Search::First(const Pattern& pattern,
                                                           std::string_view text,
                                                           std::size_t from) {
  const int found =
      pcre2_match(pattern.code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, state_->match, state_->context);
  if (found == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
  if (found < 0) {
    throw RunError(fmt::format("the pattern '{}' fails on a text of {} bytes: {}",
                               pattern.Expression(), text.size(), MessageOf(found)));
  }
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(state_->match);
  return {ends[0], ends[1]};
}

}  // namespace trireme::tokenizer
