// RecordLine: the numbers that the screen of a run shows, in words.
#include "record_line.hpp"

#include <fmt/format.h>

#include "followed_file.hpp"
#include "plain_text.hpp"
#include "record_numbers.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tools {

namespace {

using nlohmann::json;

constexpr double kLargestWhole = 9e15;

// The line under construction: members that the record lacks are left out.
class Words {
 public:
  explicit Words(const json& record) : record_(record) {}

  // "  NAME VALUE" by `format`, of the value times `factor`.
  Words& Add(std::string_view name, const char* member, const char* format, double factor = 1) {
    const double value = NumberOf(record_, member);
    if (std::isnan(value)) return *this;
    line_ += fmt::format("  {}{}", name, fmt::format(fmt::runtime(format), value * factor));
    return *this;
  }
  // Likewise, a whole number with thousands.
  Words& Count(std::string_view name, const char* member, std::string_view unit = {}) {
    const double value = NumberOf(record_, member);
    if (!(std::abs(value) < kLargestWhole)) return *this;
    line_ += fmt::format("  {}{}{}", name, report::WithThousands(std::llround(value)), unit);
    return *this;
  }
  Words& Bytes(std::string_view name, const char* member) {
    const double value = NumberOf(record_, member);
    if (!(value >= 0 && value < kLargestWhole)) return *this;
    line_ += fmt::format("  {}{}", name, report::AsBytes(std::llround(value)));
    return *this;
  }
  Words& Text(std::string_view name, const char* member) {
    const std::string text = OneLine(TextOf(record_, member));
    if (!text.empty()) line_ += fmt::format("  {}{}", name, text);
    return *this;
  }
  // A loss that is null has diverged.
  Words& Loss() {
    const auto member = record_.find("loss");
    if (member != record_.end() && member->is_null()) line_ += "  loss not finite";
    return Add("loss ", "loss", "{:.4f}");
  }
  std::string Line() const { return line_.substr(std::min<std::size_t>(2, line_.size())); }

 private:
  const json& record_;
  std::string line_;
};

}  // namespace

std::string RecordLine(std::string_view line) {
  const auto parsed = deck::TryParseJson(line, FollowedFile::kMaxLine);
  const std::string kind = parsed && parsed->is_object() ? TextOf(*parsed, "kind") : "";
  if (kind.empty()) {
    return line.empty() ? "unreadable: an empty line, or one that is too long"
                        : fmt::format("unreadable: a line of {}",
                                      report::Counted(std::ssize(line), "byte"));
  }
  Words words(*parsed);
  const std::string begin = OneLine(kind, 40) + " ";
  if (kind == "event") {
    return words.Count(begin, "step").Text("", "event").Text("", "text").Text("on ", "host").Line();
  }
  if (kind == "interval") {
    return words.Count(begin, "step")
        .Add("loss ", "loss_mean", "{:.4f}")
        .Add("from ", "loss_min", "{:.4f}")
        .Add("to ", "loss_max", "{:.4f}")
        .Count("", "tokens_per_second_mean", " tokens/s")
        .Bytes("memory ", "memory_bytes")
        .Add("", "watts_per_node", "{:.0f} W a node")
        .Add("", "joules_per_token", "{:.3g} J a token")
        .Add("GPU ", "gpu_utilisation", "{:.0f}%", 100)
        .Line();
  }
  words.Count(begin, "step").Add("epoch ", "epoch", "{:.2f}").Text("set ", "set").Loss();
  if (kind == "step") {
    words.Add("rate ", "learning_rate", "{:.1e}").Add("|grad| ", "grad_norm", "{:.2f}");
  }
  if (kind == "step" || kind == "done") {
    words.Count("", "tokens_per_second", " tokens/s").Add("roof ", "roof_fraction", "{:.0f}%", 100);
  }
  return words.Line();
}

}  // namespace trireme::tools
