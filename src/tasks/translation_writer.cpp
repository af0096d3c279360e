// TranslationWriter: source texts in, target texts out.
#include "translation_writer.hpp"

#include <fmt/format.h>

#include "trireme/base/error.hpp"

namespace trireme::tasks {

TranslationWriter::TranslationWriter(model::ParallelModel& model, const data::PairFile& pairs,
                                     const TranslationOptions& options)
    : model_(model), pairs_(pairs), translator_(SetupOf(model, pairs, options)) {}

void TranslationWriter::Encode(Prompt& prompt) const {
  try {
    prompt.ids = pairs_.Encode(data::Side::kSource, prompt.text);
  } catch (const Error& error) {
    throw Error(error.Code(), fmt::format("{}: {}", prompt.where, error.what()));
  }
  const std::int64_t tokens = std::ssize(prompt.ids), most = model_.Plan().length;
  if (tokens == 1) {
    throw InputError(fmt::format("{}: nothing to translate", prompt.where), "Give it text.");
  }
  if (tokens <= most) return;
  throw InputError(fmt::format("{}: {} tokens, the model takes {}", prompt.where, tokens, most),
                   "Cut it into sentences.");
}

std::vector<std::optional<Continuation>> TranslationWriter::Run(std::span<const Prompt> prompts,
                                                                const OnText& on_text) {
  std::vector<Translator::Ids> sources;
  for (const Prompt& prompt : prompts) sources.push_back(prompt.ids);
  std::vector<std::optional<Continuation>> texts;
  for (const auto& found : translator_.Run(sources)) {
    std::optional<Continuation>& text = texts.emplace_back();
    if (!found) continue;
    text = Continuation{.tokens = found->tokens,
                        .text = pairs_.Decode(data::Side::kTarget, found->tokens),
                        .log_probability = found->log_probability,
                        .end = found->ended ? End::kEos : End::kLength};
  }
  if (on_text && model_.Grid().World().IsRoot() && !texts.empty() && texts.front()) {
    on_text(texts.front()->text);
  }
  return texts;
}

}  // namespace trireme::tasks
