// Reading and tokenising of evaluate.text.
#include "text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/base/posix_file.hpp"
#include "trireme/tasks/detokenise.hpp"

namespace trireme::tasks {

std::int64_t EncodeDocument(const data::TokenFile& tokens, std::string_view text,
                            std::vector<std::int32_t>& ids) {
  ids = tokens.Encode("");
  if (ids.empty()) {
    const std::vector<std::int32_t> encoded = tokens.Encode(text);
    ids.push_back(static_cast<std::int32_t>(tokens.Words().eos));
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    return 1;
  }
  const std::int64_t before = std::ssize(ids);
  ids = tokens.Encode(text);
  return before;
}

Text ReadEvaluatedText(const EvaluateOptions& options, const data::TokenFile& tokens) {
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  std::string text = trireme::ReadText(options.text, kMostBytes);
  Text result;
  result.original = data::UnitsOf(text);
  if (options.detokenise == Detokenise::kWikitext) text = DetokeniseWikitext(std::move(text));
  result.bytes = std::ssize(text);
  std::int64_t before = 0;
  std::vector<std::int32_t>& ids = result.tokens.ids;
  try {
    before = EncodeDocument(tokens, text, ids);
  } catch (const Error& error) {
    throw Error(error.Code(), fmt::format("{}: {}", options.text, error.what()));
  }
  // Word level: the last line end, which encoding leaves open.
  if (text.ends_with('\n') && data::IsWordLevel(tokens)) {
    ids.push_back(static_cast<std::int32_t>(tokens.Words().eos));
  }
  if (std::ssize(ids) <= before) {
    throw InputError(options.text + ": there is no token in it", "Name a file with text.");
  }
  result.tokens.documents = {0};
  result.tokens.counted.assign(ids.size(), 1);
  std::fill_n(result.tokens.counted.begin(), before, 0);
  const auto unk = static_cast<std::int32_t>(tokens.Words().unk);
  if (unk >= 0) result.original.unknown = std::count(ids.begin() + before, ids.end(), unk);
  return result;
}

}  // namespace trireme::tasks
