// Questions: parsing, tokenising at the boundary between context and choice, and accuracy.
#include "choices.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <string_view>

#include "trireme/base/error.hpp"
#include "trireme/base/exact_sum.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::tasks {

namespace {

template <typename T>
void ShareNumbers(const comm::Communicator& world, std::vector<T>& numbers) {
  auto count = static_cast<std::int64_t>(numbers.size());
  world.Broadcast(&count, sizeof count);
  numbers.resize(static_cast<std::size_t>(count));
  world.Broadcast(numbers.data(), count * static_cast<std::int64_t>(sizeof(T)));
}

constexpr std::int64_t kMostFileBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMostLineBytes = std::int64_t{16} << 20;
constexpr std::size_t kMostChoices = 1000;

// Tokens of a choice that continues a context, as in lm-evaluation-harness: white space at the end
// of the context belongs to the choice. Both are encoded as one text; as many of its first tokens
// as the context has when encoded alone belong to the context.
struct EncodedChoice {
  std::vector<std::int32_t> ids;  // beginning of the document, context, choice
  std::int64_t context = 0;       // tokens before the choice
};

EncodedChoice Encode(const data::TokenFile& tokens, std::string_view context,
                     std::string_view choice) {
  const std::size_t end = context.find_last_not_of(data::kWhiteSpace);
  const std::size_t kept = end == std::string_view::npos ? 0 : end + 1;
  const std::string whole = std::string(context) + std::string(choice);
  EncodedChoice result;
  std::vector<std::int32_t> alone = tokens.Encode(context.substr(0, kept));
  result.ids = tokens.Encode(whole);
  result.context = std::ssize(alone);
  if (alone.empty()) {  // if nothing comes before the choice, it follows an <eos>
    result.ids.insert(result.ids.begin(), static_cast<std::int32_t>(tokens.Words().eos));
    result.context = 1;
  }
  return result;
}

struct Parsed {
  std::string context;
  std::vector<std::string> choices;
  std::int64_t answer = 0;
};

Parsed Parse(const deck::JsonLine& line) {
  const std::string& where = line.where;
  const deck::JsonObject object(line.value, where);
  Parsed parsed;
  parsed.context = object.Text("context", kMostLineBytes);
  const nlohmann::json& choices = object.List("choices");
  if (choices.size() < 2 || choices.size() > kMostChoices) {
    throw InputError(fmt::format("{}: choices: 2 to {} expected, {} found", where, kMostChoices,
                                 choices.size()));
  }
  for (const nlohmann::json& choice : choices) {
    if (!choice.is_string()) {
      throw InputError(
          fmt::format("{}: choices: a text expected, {} found", where, deck::Brief(choice)));
    }
    parsed.choices.push_back(choice.get<std::string>());
  }
  parsed.answer = object.Integer("answer", 0, std::ssize(parsed.choices) - 1);
  return parsed;
}

// Adds a choice as a document of its own.
void AddChoice(const data::TokenFile& tokens, const std::string& context, const std::string& choice,
               std::int64_t length, Question& question, Tokens& all) {
  const std::size_t begin = choice.find_first_not_of(data::kWhiteSpace);
  if (begin == std::string::npos) throw InputError("is empty", "A choice is a text to score.");
  const auto [ids, before] = Encode(tokens, context, choice);
  const std::int64_t size = std::ssize(ids) - before;
  if (size < 1) throw InputError("adds no token to its context");
  if (size > length) {
    throw InputError(fmt::format("has {} tokens, a window {}", size, length),
                     "Set data.sequence_length higher, as far as the model allows.");
  }
  question.bytes.push_back(static_cast<std::int64_t>(choice.size() - begin));
  question.tokens.push_back(size);
  // A window has one token more than targets.
  const std::int64_t kept = std::min(std::ssize(ids), length + 1);
  question.truncated += kept < std::ssize(ids) ? 1 : 0;
  all.documents.push_back(std::ssize(all.ids));
  all.ids.insert(all.ids.end(), ids.end() - kept, ids.end());
  all.counted.insert(all.counted.end(), static_cast<std::size_t>(kept - size), 0);
  all.counted.insert(all.counted.end(), static_cast<std::size_t>(size), 1);
}

constexpr int kHighBits = 10, kBits = 23;  // binary places of the first word, and of each other one
constexpr std::ptrdiff_t kSumDoubles = std::ptrdiff_t{1} << 20;  // numbers in one sum over ranks

}  // namespace

void Share(const comm::Communicator& world, Tokens& tokens) {
  ShareNumbers(world, tokens.ids);
  ShareNumbers(world, tokens.documents);
  ShareNumbers(world, tokens.counted);
}

data::TokenFile AsFile(const comm::Communicator& world, const data::TokenFile& like,
                       const Tokens& tokens) {
  data::TokenData data;
  data.vocabulary = like.Words();
  data.tokenizer = like.Tokenizer();
  data.source_sha256 = std::string(64, '0');
  const auto eos = static_cast<std::int32_t>(data.vocabulary.eos);
  // The other splits are not read; they get the fewest tokens that a file may have.
  data.tokens = {std::vector{eos, eos}, tokens.ids, std::vector{eos, eos}};
  data.documents[1] = tokens.documents;
  data.counted[1] = tokens.counted;
  return data::TokenFile(world, data);
}

Text ReadEvaluatedText(const EvaluateOptions& options, const data::TokenFile& tokens) {
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  std::string text = trireme::ReadText(options.text, kMostBytes);
  Text result;
  result.original = data::UnitsOf(text);
  if (options.detokenise == Detokenise::kWikitext) text = DetokeniseWikitext(std::move(text));
  result.bytes = std::ssize(text);
  std::int64_t before = 0;  // tokens of the template, or one <eos> if there is no template
  std::vector<std::int32_t>& ids = result.tokens.ids;
  try {
    before = std::ssize(tokens.Encode(""));
    ids = tokens.Encode(text);
    if (before == 0) ids.insert(ids.begin(), static_cast<std::int32_t>(tokens.Words().eos));
    before = std::max<std::int64_t>(before, 1);
  } catch (const Error& error) {
    throw Error(error.Code(), fmt::format("{}: {}", options.text, error.what()));
  }
  // At word level, encoding leaves out the last line end: add it.
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

Questions ReadQuestions(const std::string& path, const data::TokenFile& tokens,
                        std::int64_t length) {
  const std::string text = trireme::ReadText(path, kMostFileBytes);
  Questions questions;
  deck::EachJsonLine(text, path, kMostLineBytes, [&](const deck::JsonLine& line) {
    const Parsed parsed = Parse(line);
    Question question{.line = line.number, .answer = parsed.answer};
    for (std::size_t i = 0; i < parsed.choices.size(); ++i) {
      try {
        AddChoice(tokens, parsed.context, parsed.choices[i], length, question, questions.tokens);
      } catch (const Error& error) {
        throw Error(error.Code(), fmt::format("{}: choice {} {}", line.where, i, error.what()));
      }
    }
    questions.all.push_back(std::move(question));
  });
  if (questions.all.empty()) throw InputError(path + ": there is no question in it");
  return questions;
}

std::vector<data::Sample> WindowsOf(const Tokens& tokens) {
  std::vector<data::Sample> windows;
  for (std::size_t i = 0; i < tokens.documents.size(); ++i) {
    const std::int64_t begin = tokens.documents[i];
    const std::int64_t end =
        i + 1 < tokens.documents.size() ? tokens.documents[i + 1] : std::ssize(tokens.ids);
    windows.push_back({.ordinal = static_cast<std::int64_t>(i),
                       .start = begin,
                       .targets = end - begin - 1,
                       .source = 0});
  }
  return windows;
}

Accuracy AccuracyOf(std::int64_t right, std::int64_t questions) {
  const auto n = static_cast<double>(questions);
  const double mean = static_cast<double>(right) / n;
  if (questions < 2) return {mean, std::numeric_limits<double>::quiet_NaN()};
  return {mean, std::sqrt(mean * (1 - mean) / (n - 1))};
}

Chosen Choose(const Question& question, const std::vector<double>& nats) {
  Chosen chosen;
  const auto per_byte = [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    return nats[at] / static_cast<double>(question.bytes[at]);
  };
  for (std::int64_t i = 1; i < std::ssize(nats); ++i) {
    if (nats[static_cast<std::size_t>(i)] < nats[static_cast<std::size_t>(chosen.by_sum)]) {
      chosen.by_sum = i;
    }
    if (per_byte(i) < per_byte(chosen.by_bytes)) chosen.by_bytes = i;
  }
  return chosen;
}

// LossTable: losses in fixed point, so that the order of additions changes no bit.

void LossTable::Add(std::int64_t row, double loss) {
  double rest = std::ldexp(loss, kHighBits);
  const double high = std::floor(rest);
  rest = std::ldexp(rest - high, kBits);
  const double middle = std::floor(rest);
  At(row, kHigh) += high;
  At(row, kMiddle) += middle;
  At(row, kLow) += std::nearbyint(std::ldexp(rest - middle, kBits));
  At(row, kTargets) += 1;
}

void LossTable::Sum(const comm::Communicator& world) {
  std::vector<double> piece;
  for (auto at = sums_.begin(); at != sums_.end();) {
    const auto end = at + std::min(kSumDoubles, sums_.end() - at);
    piece.assign(at, end);
    world.Sum(piece);
    at = std::copy(piece.begin(), piece.end(), at);
  }
}

double LossTable::Nats(std::int64_t row) const {
  ExactSum sum;
  sum.Add(std::ldexp(Of(row, kHigh), -kHighBits));
  sum.Add(std::ldexp(Of(row, kMiddle), -kHighBits - kBits));
  sum.Add(std::ldexp(Of(row, kLow), -kHighBits - 2 * kBits));
  return sum.Value();
}

}  // namespace trireme::tasks
