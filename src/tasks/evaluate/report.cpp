// Lines and JSON of results.
#include "report.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <numbers>

#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double PerUnit(double nats, std::int64_t units) {
  return units > 0 ? nats / static_cast<double>(units) : std::nan("");
}

double BitsPerByte(double nats, const data::TextUnits& units) {
  return PerUnit(nats, units.bytes) / std::numbers::ln2;
}

double WordPerplexity(double nats, const data::TextUnits& units) {
  return std::exp(PerUnit(nats, units.words + units.lines));
}

void Say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void SayLoss(const std::string& what, const train::Evaluation& result, const std::string& of) {
  Say(fmt::format("{:<10}  loss {:.6f} nats/token   perplexity {:.3f}   {} tokens   {:.1f} s{}{}",
                  what, result.loss, std::exp(result.loss), report::WithThousands(result.targets),
                  result.seconds, of.empty() ? "" : "   ", of));
}

namespace {

std::string Perplexity(double value) {
  constexpr double kLong = 1e6;
  return value < kLong ? fmt::format("{:.3f}", value) : fmt::format("{:.3e}", value);
}

}  // namespace

void SayUnits(double nats, const data::TextUnits& units) {
  Say(fmt::format("{}per word {} ({} words, {} line ends)   bits per byte {:.5f} ({} bytes)",
                  kIndent, Perplexity(WordPerplexity(nats, units)),
                  report::WithThousands(units.words), report::WithThousands(units.lines),
                  BitsPerByte(nats, units), report::WithThousands(units.bytes)));
  if (units.unknown == 0) return;
  Say(fmt::format("{}{} <unk>: bytes and words are those of the tokens, not of an original text",
                  kIndent, report::WithThousands(units.unknown)));
}

Json AsJson(const train::Evaluation& result, const data::TextUnits& units) {
  Json json;
  json["targets"] = result.targets;
  json["nats"] = Number(result.nats);
  json["loss"] = Number(result.loss);
  json["perplexity"] = Number(std::exp(result.loss));
  json["words"] = units.words;
  json["line_ends"] = units.lines;
  json["bytes"] = units.bytes;
  json["unknown"] = units.unknown;
  json["perplexity_per_word"] = Number(WordPerplexity(result.nats, units));
  json["bits_per_byte"] = Number(BitsPerByte(result.nats, units));
  json["windows"] = result.windows;
  json["seconds"] = result.seconds;
  return json;
}

}  // namespace trireme::tasks
