// The columns of the screen. Every field falls back to a shorter form before it outgrows its
// column.
#include "table.hpp"

#include <fmt/format.h>

#include <cmath>

#include "metrics_file.hpp"

namespace trireme::report {

namespace {

std::string Fixed(double value, int decimals, double limit) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::abs(value);
  if (size < limit) return fmt::format("{:.{}f}", value, decimals);
  return fmt::format("{:.{}e}", value, size < 1e99 ? 1 : 0);
}

std::string PerplexityField(double loss) {
  const double value = Perplexity(loss);
  if (!(value < 999999.9)) return fmt::format("{:.1e}", value);
  const std::string tenths = fmt::format("{:.1f}", value);
  const auto whole = static_cast<std::int64_t>(std::stod(tenths));
  return WithThousands(whole) + tenths.substr(tenths.size() - 2);
}

std::string SpeedField(double tokens_per_second) {
  constexpr double kWidest = 9999999.5;  // "9,999,999" fills the column
  if (!(tokens_per_second < kWidest)) return WithSuffix(tokens_per_second);
  return WithThousands(std::llround(tokens_per_second));
}

std::string PercentField(double fraction, int decimals) {
  if (!std::isfinite(fraction)) return "-";
  const double percent = 100 * fraction;
  return fmt::format("{:.{}f}%", percent, percent < 99.95 ? decimals : 0);
}

std::string LossFields(const Record& record) {
  if (record.no_target) {
    return fmt::format("{:>8}{:>9}{:>12}", Fixed(record.epoch, 2, 9999.99), "-", "no target");
  }
  return fmt::format("{:>8}{:>9}{:>12}", Fixed(record.epoch, 2, 9999.99),
                     Fixed(record.loss, 4, 999.9), PerplexityField(record.loss));
}

}  // namespace

std::string TableHeader(bool has_stages) {
  return fmt::format("{}    rate   |grad|  tokens/s  roof   comm{}  elapsed     left",
                     ShortTableHeader(), has_stages ? " bubble" : "");
}

std::string ShortTableHeader() { return "    step   epoch     loss  perplexity"; }

std::string StepLine(const Record& record, double elapsed, double left, bool has_stages) {
  const auto share = [&record](double seconds) {
    return PercentField(record.step_seconds > 0 ? seconds / record.step_seconds : 0, 1);
  };
  const std::string roof = record.roof_fraction > 0 ? PercentField(record.roof_fraction, 0) : "-";
  return fmt::format("{:>8}{}{:>9}{:>8}{:>10}{:>6}{:>7}{}{:>9}{:>9}", record.step,
                     LossFields(record), fmt::format("{:.1e}", record.learning_rate),
                     Fixed(record.grad_norm, 2, 9999.9), SpeedField(record.tokens_per_second), roof,
                     share(record.seconds_exposed_communication),
                     has_stages ? fmt::format("{:>7}", share(record.seconds_bubble)) : "",
                     AsClock(elapsed), AsClock(left));
}

std::string EvaluationLine(const Record& record) {
  const bool valid = record.kind != Record::Kind::kTest;
  const std::string sample =
      record.windows == 0
          ? ""
          : fmt::format("  {} of {} {}", WithThousands(record.windows),
                        WithThousands(record.all_windows), record.pairs ? "pairs" : "windows");
  return fmt::format("{:>8}{}{}{}{}", valid ? "valid" : "test", LossFields(record),
                     record.set.empty() ? "" : "  ", record.set, sample);
}

std::string LiveLine(const Record& record, std::int64_t total_steps, double left) {
  const std::string of = total_steps > 0 ? " of " + WithThousands(total_steps) : "";
  return fmt::format("    step {}{}, loss {}, {} tokens/s, {} left", WithThousands(record.step), of,
                     record.no_target ? "none" : Fixed(record.loss, 4, 999.9),
                     SpeedField(record.tokens_per_second), AsClock(left));
}

}  // namespace trireme::report
