// Prompts and texts as JSON lines.
#include "prompts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <span>
#include <sstream>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/deck/shown.hpp"

namespace trireme::tasks {

namespace {

constexpr std::int64_t kMostLine = std::int64_t{16} << 20;  // bytes of a prompt's line
constexpr std::array kMembers = {"prompt", "id",   "tokens", "temperature",       "top_k",
                                 "top_p",  "seed", "stop",   "repetition_penalty"};

void CheckMembers(const nlohmann::json& value, const std::string& where, bool translates) {
  const auto known = std::span(kMembers).first(translates ? 2 : kMembers.size());
  for (const auto& [name, member] : value.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw InputError(fmt::format("{}: unknown member {}", where, deck::Shown(name)),
                     translates
                         ? "A text to translate has prompt and id."
                         : "A prompt has prompt, id, tokens, temperature, top_k, top_p, seed, "
                           "stop, repetition_penalty.");
  }
}

std::vector<std::string> StopsOf(const nlohmann::json& value, const std::string& where) {
  std::vector<std::string> stops;
  const auto add = [&](const nlohmann::json& stop) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      throw InputError(fmt::format("{}: stop: a string or a list of strings expected, {} found",
                                   where, deck::Brief(stop)),
                       "No string may be empty.");
    }
    stops.push_back(stop.get<std::string>());
  };
  if (value.is_array()) {
    for (const nlohmann::json& stop : value) add(stop);
  } else {
    add(value);
  }
  return stops;
}

Prompt PromptOf(const nlohmann::json& value, const std::string& where,
                const GenerateOptions& options) {
  constexpr double kTiny = std::numeric_limits<double>::min();
  const deck::JsonObject object(value, where);
  CheckMembers(value, where, options.translates);
  Prompt prompt{
      .where = where, .text = object.Text("prompt", kMostLine), .id = {}, .options = options};
  GenerateOptions& own = prompt.options;
  if (object.Has("id")) {
    prompt.id = value.at("id");
    if (!prompt.id.is_string() && !prompt.id.is_number_integer()) {
      throw InputError(fmt::format("{}: id: a string or an integer expected, {} found", where,
                                   deck::Brief(prompt.id)));
    }
  }
  if (object.Has("tokens")) own.tokens = object.Integer("tokens", 1);
  if (object.Has("temperature")) own.temperature = object.Real("temperature", 0);
  if (object.Has("top_k")) own.top_k = object.Integer("top_k", 0);
  if (object.Has("top_p")) own.top_p = object.Real("top_p", kTiny, 1);
  if (object.Has("seed")) {
    own.seed = static_cast<std::uint32_t>(
        object.Integer("seed", 0, std::numeric_limits<std::uint32_t>::max()));
  }
  if (object.Has("repetition_penalty")) {
    own.repetition_penalty = object.Real("repetition_penalty", kTiny);
  }
  if (object.Has("stop")) own.stop = StopsOf(value.at("stop"), where);
  return prompt;
}

}  // namespace

const char* NameOf(End end) {
  return end == End::kLength ? "length" : end == End::kStop ? "stop" : "eos";
}

std::vector<Prompt> ParsePrompts(std::string_view text, const std::string& path,
                                 const GenerateOptions& options) {
  std::vector<Prompt> prompts;
  deck::EachJsonLine(text, path, kMostLine, [&](const deck::JsonLine& line) {
    prompts.push_back(PromptOf(line.value, line.where, options));
    prompts.back().number = std::ssize(prompts) - 1;
  });
  return prompts;
}

std::vector<Prompt> ReadPrompts(const app::Job& job, const GenerateOptions& options) {
  const comm::Communicator& world = job.World();
  std::string text;
  world.Together([&] {
    if (!world.IsRoot()) return;
    std::ifstream file(options.file, std::ios::binary);
    std::ostringstream whole;
    if (file) whole << file.rdbuf();
    if (!file) {
      throw job.deck.Complain("generate.file", "cannot be read: " + ErrorText(errno),
                              "It holds one JSON object a line.");
    }
    text = whole.str();
  });
  text = world.Broadcast(text);
  std::vector<Prompt> prompts;
  world.Together([&] {
    prompts = ParsePrompts(text, options.file, options);
    if (!prompts.empty()) return;
    throw job.deck.Complain("generate.file", "there is no prompt in it",
                            "It holds one JSON object a line: {\"prompt\": \"...\"}.");
  });
  return prompts;
}

void EncodePrompt(const data::TokenFile& tokens, Prompt& prompt) {
  try {
    prompt.ids = tokens.Encode(prompt.text);
  } catch (const Error& error) {
    throw Error(error.Code(), fmt::format("{}: {}", prompt.where, error.what()));
  }
  if (!prompt.ids.empty() || prompt.options.start_with_eos) return;
  throw InputError(fmt::format("{}: nothing to continue", prompt.where),
                   "Give it text, or use generate.start_with_eos = yes.");
}

std::string LineOf(const Prompt& prompt, const Continuation& continuation) {
  constexpr double kDigits = 1e6;  // layouts differ by rounding
  nlohmann::ordered_json line;
  if (!prompt.id.is_null()) line["id"] = prompt.id;
  line["prompt"] = prompt.text;
  line["text"] = continuation.text;
  line["tokens"] = continuation.tokens;
  line["reason"] = NameOf(continuation.end);
  line["log_probability"] = std::round(continuation.log_probability * kDigits) / kDigits;
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace trireme::tasks
