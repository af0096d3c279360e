// Report: the table on the screen and preflight.json.
#include "trireme/tools/report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/json.hpp"

namespace trireme::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr std::size_t kMostUnits = 1024;  // in preflight.json
constexpr std::size_t kMostSlow = 8;      // on the screen
constexpr std::size_t kMostWarnings = 20;
constexpr std::size_t kColumn = 14;

double ValueOf(const Unit& unit, int quantity) {
  return unit.values[static_cast<std::size_t>(quantity)];
}

std::string NameOf(const Report& report, const Unit& unit) {
  const auto rank = static_cast<int>(unit.rank);
  const std::string& host = report.hosts.Of(rank);
  return report.measured.of_ranks ? fmt::format("rank {} on {}", rank, host) : host;
}

// On one host messages go through its memory.
const char* TitleOf(const Report& report, int quantity) {
  if (report.measured.of_ranks && quantity == static_cast<int>(Quantity::kPairs)) {
    return "messages in pairs";
  }
  if (report.measured.of_ranks && quantity == static_cast<int>(Quantity::kTogether)) {
    return "messages, all together";
  }
  return kQuantityNames[static_cast<std::size_t>(quantity)].title;
}

// Of two ranks of a host nobody knows which one is as it should be.
std::vector<Slow> SlowIn(const Report& report) {
  if (report.measured.of_ranks && report.measured.units.size() < 3) return {};
  return FindSlow(report.measured.units);
}

// Number in the shown unit, three digits: "118", "11.8", "0.52".
std::string Shown(double value, const QuantityName& name) {
  const double scaled = value / name.scale;
  return fmt::format("{:.{}f}", scaled, scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2);
}

std::string Fact(const std::string& name, const std::string& text) {
  return fmt::format("{:<{}}{}", name, kColumn, text);
}

// Least, median and greatest of a quantity with the units that have the extremes.
std::string Extremes(const Report& report, int quantity) {
  const QuantityName& name = kQuantityNames[static_cast<std::size_t>(quantity)];
  std::vector<const Unit*> units;
  for (const Unit& unit : report.measured.units) {
    if (ValueOf(unit, quantity) > 0) units.push_back(&unit);
  }
  if (units.empty()) return {};
  const auto [least, most] = std::ranges::minmax_element(
      units, {}, [&](const Unit* unit) { return ValueOf(*unit, quantity); });
  const double median = Median(report.measured.units, static_cast<Quantity>(quantity));
  if (units.size() == 1) {
    return fmt::format("{:<26}{:>10} {}", TitleOf(report, quantity), Shown(median, name),
                       name.unit);
  }
  return fmt::format("{:<26}{:>10} {:>10} {:>10} {}   slowest {}, fastest {}",
                     TitleOf(report, quantity), Shown(ValueOf(**least, quantity), name),
                     Shown(median, name), Shown(ValueOf(**most, quantity), name), name.unit,
                     NameOf(report, **least), NameOf(report, **most));
}

void AddMeasured(const Report& report, std::vector<std::string>& lines) {
  const Measured& measured = report.measured;
  if (measured.units.empty()) return;
  if (measured.units.size() > 1) {
    lines.push_back(fmt::format("{:<26}{:>10} {:>10} {:>10}",
                                measured.of_ranks ? "of each rank" : "of each node", "least",
                                "median", "most"));
  }
  for (int quantity = 0; quantity < kQuantities; ++quantity) {
    const std::string line = Extremes(report, quantity);
    if (!line.empty()) lines.push_back(line);
  }
  if (measured.all_reduce > 0) {
    constexpr double kGiga = 1e9;
    lines.push_back(fmt::format("{:<26}{:>10.2f} GB/s of a 4 MiB operand on {} ranks", "all-reduce",
                                measured.all_reduce / kGiga, report.ranks));
  }
}

Json UnitsOf(const Report& report) {
  Json units = Json::array();
  for (const Unit& unit : report.measured.units) {
    if (units.size() >= kMostUnits) break;
    Json json = {{"host", report.hosts.Of(static_cast<int>(unit.rank))}, {"rank", unit.rank}};
    for (int quantity = 0; quantity < kQuantities; ++quantity) {
      json[kQuantityNames[static_cast<std::size_t>(quantity)].name] = ValueOf(unit, quantity);
    }
    json["slowest_rank"] = unit.slowest;
    json["worst_pair"] = unit.worst_pair;
    if (unit.worst_partner >= 0) {
      const Unit& partner = report.measured.units[static_cast<std::size_t>(unit.worst_partner)];
      json["worst_partner"] = report.hosts.Of(static_cast<int>(partner.rank));
    }
    json["wrong_products"] = unit.wrong;
    units.push_back(json);
  }
  return units;
}

Json SlowOf(const Report& report) {
  Json slow = Json::array();
  for (const Slow& one : SlowIn(report)) {
    const Unit& unit = report.measured.units[one.unit];
    slow.push_back({{"host", report.hosts.Of(static_cast<int>(unit.rank))},
                    {"rank", unit.rank},
                    {"quantity", kQuantityNames[static_cast<std::size_t>(one.quantity)].name},
                    {"value", one.value},
                    {"median", one.median}});
  }
  return slow;
}

}  // namespace

std::vector<std::string> SlowSentences(const Report& report, std::size_t most) {
  std::vector<std::string> sentences;
  for (const Unit& unit : report.measured.units) {
    if (unit.wrong == 0) continue;
    sentences.push_back(fmt::format(
        "{}: a matrix product is not finite, or not the same twice: take this node out of the job",
        NameOf(report, unit)));
  }
  for (const Slow& one : SlowIn(report)) {
    const QuantityName& name = kQuantityNames[static_cast<std::size_t>(one.quantity)];
    const Unit& unit = report.measured.units[one.unit];
    std::string who = NameOf(report, unit);
    if (one.quantity == Quantity::kProduct && !report.measured.of_ranks) {
      who += fmt::format(" (rank {})", unit.slowest);
    }
    constexpr double kPercent = 100;
    sentences.push_back(
        fmt::format("{}: {} {} {}, {:.0f}% below the median of {}", who,
                    TitleOf(report, static_cast<int>(one.quantity)), Shown(one.value, name),
                    name.unit, kPercent * (1 - one.value / one.median), Shown(one.median, name)));
  }
  if (sentences.size() > most) {
    const std::size_t left = sentences.size() - most;
    sentences.resize(most);
    sentences.push_back(fmt::format("and {} more: see slow in preflight.json", left));
  }
  return sentences;
}

std::vector<std::string> LinesOf(const Report& report) {
  const std::size_t hosts = report.hosts.Names().size();
  std::vector<std::string> lines = {
      Fact("preflight", fmt::format("{}, {} rank{} on {} host{}", report.program, report.ranks,
                                    report.ranks == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s"))};
  for (const auto& [name, text] : report.findings.facts) lines.push_back(Fact(name, text));
  AddMeasured(report, lines);
  for (const std::string& sentence : SlowSentences(report, kMostSlow)) {
    lines.push_back(Fact("slow", sentence));
  }
  const std::vector<Warning>& warnings = report.findings.warnings;
  for (std::size_t i = 0; i < std::min(kMostWarnings, warnings.size()); ++i) {
    lines.push_back(Fact("warning", warnings[i].text));
  }
  if (warnings.size() > kMostWarnings) {
    lines.push_back(Fact("warning", fmt::format("and {} more: see preflight.json",
                                                warnings.size() - kMostWarnings)));
  }
  return lines;
}

std::string JsonOf(const Report& report) {
  Json warnings = Json::array();
  for (const Warning& warning : report.findings.warnings) {
    warnings.push_back({{"kind", warning.kind}, {"text", warning.text}});
  }
  Json facts = Json::object();
  for (const auto& [name, text] : report.findings.facts) facts[name] = text;
  Json medians = Json::object();
  for (int quantity = 0; quantity < kQuantities; ++quantity) {
    medians[kQuantityNames[static_cast<std::size_t>(quantity)].name] =
        Median(report.measured.units, static_cast<Quantity>(quantity));
  }
  medians["all_reduce"] = report.measured.all_reduce;
  const Json json = {{"format", kFormat},
                     {"program", report.program},
                     {"ranks", report.ranks},
                     {"hosts", report.hosts.Names().size()},
                     {"facts", facts},
                     {"warnings", warnings},
                     {"unit", report.measured.of_ranks ? "rank" : "node"},
                     {"median", medians},
                     {"slow", SlowOf(report)},
                     {"units", UnitsOf(report)},
                     {"seconds_look", report.findings.seconds},
                     {"seconds_measured", report.measured.seconds}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace trireme::tools
