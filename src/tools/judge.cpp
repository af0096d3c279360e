// FindSlow: nodes against the median of all.
#include <algorithm>

#include "trireme/tools/measure.hpp"

namespace trireme::tools {

namespace {

double ValueOf(const Unit& unit, Quantity quantity) {
  return unit.values[static_cast<std::size_t>(quantity)];
}

}  // namespace

double Median(const std::vector<Unit>& units, Quantity quantity) {
  std::vector<double> values;
  for (const Unit& unit : units) {
    if (ValueOf(unit, quantity) > 0) values.push_back(ValueOf(unit, quantity));
  }
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::vector<Slow> FindSlow(const std::vector<Unit>& units) {
  std::vector<Slow> slow;
  for (int i = 0; i < kQuantities; ++i) {
    const auto quantity = static_cast<Quantity>(i);
    const double median = Median(units, quantity);
    const std::size_t before = slow.size();
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const double value = ValueOf(units[unit], quantity);
      if (value > 0 && value < (1 - kSlow) * median)
        slow.push_back({unit, quantity, value, median});
    }
    std::sort(slow.begin() + static_cast<std::ptrdiff_t>(before), slow.end(),
              [](const Slow& a, const Slow& b) { return a.value < b.value; });
  }
  return slow;
}

}  // namespace trireme::tools
