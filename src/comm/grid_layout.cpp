// The sizes of the grid's axes, and the message to a user whose layout does not fit the job.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "nearest_divisors.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"

namespace trireme::comm {

namespace {

constexpr double kStepsOfDistance = 1e6;  // a factor of e

// The axes that the data axis must leave ranks for: their sizes and names.
enum { kTensor, kPipeline, kContext, kAxes };
using Sizes = std::array<std::int64_t, kAxes>;
constexpr const char* kNames[kAxes] = {"grid.tensor", "grid.pipeline", "grid.context"};

// The deck's numbers, which may be far too large; data = 0 is what is left.
struct Asked {
  std::int64_t data = 0;
  Sizes sizes{};
};

// Saturates: products of a deck's numbers are only compared.
std::int64_t Times(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return a > kMost / b ? kMost : a * b;
}

bool Divides(std::int64_t part, std::int64_t whole) { return whole % part == 0; }

std::string Count(std::int64_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

std::int64_t Product(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, Times);
}

bool Fits(const Allowed& allowed, const Sizes& sizes) {
  return allowed(sizes[kTensor], sizes[kPipeline]);
}

// The axes of `asked` above 1 but `left_out`, with their sizes in `sizes`: an axis that was not
// asked for is no remedy to name.
std::vector<std::string> Named(const Sizes& asked, const Sizes& sizes, std::size_t left_out) {
  std::vector<std::string> named;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    if (asked[axis] == 1 || axis == left_out) continue;
    named.push_back(fmt::format("{} = {}", kNames[axis], sizes[axis]));
  }
  return named;
}

// "a with b and c"; "a" alone.
std::string With(const std::string& first, const std::vector<std::string>& others) {
  return others.empty() ? first : fmt::format("{} with {}", first, fmt::join(others, " and "));
}

// "grid.tensor = 2 or 4 with grid.pipeline = 2": one axis changed. Empty where no size of it fits.
std::string OneAxis(std::size_t axis, const Sizes& asked, std::int64_t ranks,
                    const Allowed& allowed) {
  Sizes sizes = asked;
  sizes[axis] = 1;
  const std::int64_t kept = Product(sizes);
  if (asked[axis] == 1 || !Divides(kept, ranks)) return {};
  const auto values = NearestDivisors(ranks / kept, asked[axis], [&](std::int64_t size) {
    sizes[axis] = size;
    return Fits(allowed, sizes);
  });
  if (values.empty()) return {};
  return With(fmt::format("{} = {}", kNames[axis], fmt::join(values, " or ")),
              Named(asked, asked, axis));
}

// How far sizes are from what was asked for: the factors by which they differ, as a logarithm, in
// steps that leave out the roundings of equal products.
std::int64_t Distance(const Sizes& asked, const Sizes& sizes) {
  double distance = 0;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    const auto factor = static_cast<double>(sizes[axis]) / static_cast<double>(asked[axis]);
    distance += std::abs(std::log(factor));
  }
  return std::llround(distance * kStepsOfDistance);
}

// Several axes changed: the two nearest layouts. An axis of one stays one.
std::vector<std::string> SeveralAxes(const Sizes& asked, std::int64_t ranks,
                                     const Allowed& allowed) {
  std::vector<Sizes> layouts;
  const auto each = [&](std::int64_t whole, std::int64_t axis_asked, const auto& then) {
    for (std::int64_t size = axis_asked == 1 ? 1 : whole; size >= 1; --size) {
      if (Divides(size, whole)) then(size);
    }
  };
  each(ranks, asked[kTensor], [&](std::int64_t tensor) {
    each(ranks / tensor, asked[kPipeline], [&](std::int64_t pipeline) {
      if (!allowed(tensor, pipeline)) return;
      each(ranks / tensor / pipeline, asked[kContext], [&](std::int64_t context) {
        layouts.push_back({tensor, pipeline, context});
      });
    });
  });
  std::stable_sort(layouts.begin(), layouts.end(), [&](const Sizes& a, const Sizes& b) {
    return Distance(asked, a) < Distance(asked, b);
  });
  layouts.resize(std::min<std::size_t>(layouts.size(), 2));
  std::vector<std::string> texts;
  for (const Sizes& sizes : layouts) {
    std::vector<std::string> named = Named(asked, sizes, kAxes);
    const std::string first = named.front();
    named.erase(named.begin());
    texts.push_back(With(first, named));
  }
  return texts;
}

// Numbers of ranks that the layout fills with some data axis: the nearest below and above.
std::string NearestRanks(std::int64_t unit, std::int64_t ranks) {
  const std::int64_t below = ranks / unit * unit;
  if (below == 0) return Count(unit);
  return fmt::format("{} or {}", below, Count(Times(ranks / unit + 1, unit)));
}

// The axis whose line in the deck the message names: one that does not fit by itself before one
// that was asked for.
const char* Blamed(const Sizes& asked, std::int64_t ranks) {
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    if (!Divides(asked[axis], ranks)) return kNames[axis];
  }
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    if (asked[axis] > 1) return kNames[axis];
  }
  return kNames[kTensor];
}

// tensor x pipeline x context does not divide the ranks, whatever the data axis is.
[[noreturn]] void RefuseAxes(const deck::Deck& deck, const Asked& asked, std::int64_t ranks,
                             const Allowed& allowed) {
  std::vector<std::string> fits;
  for (std::size_t axis = 0; axis < kAxes; ++axis) {
    const std::string remedy = OneAxis(axis, asked.sizes, ranks, allowed);
    if (!remedy.empty()) fits.push_back(remedy);
  }
  if (fits.empty()) fits = SeveralAxes(asked.sizes, ranks, allowed);
  const std::int64_t unit = Product(asked.sizes);
  const std::string data = asked.data == 0 ? "" : "grid.data = 0 and ";
  std::string start;  // other sizes of the job; none that the model could not use
  if (Fits(allowed, asked.sizes) &&
      Times(unit, std::max<std::int64_t>(asked.data, 1)) <= kMostRanks) {
    start =
        fmt::format("; or start the job with {}",
                    asked.data == 0 ? NearestRanks(unit, ranks) : Count(Times(unit, asked.data)));
  }
  throw InputError(
      fmt::format("{}: {} does not divide {}", deck.Where(Blamed(asked.sizes, ranks)),
                  fmt::join(Named(asked.sizes, asked.sizes, kAxes), " x "), Count(ranks)),
      fmt::format("What fits: {}{}{}.", data, fmt::join(fits, ", or "), start));
}

}  // namespace

GridShape ReadGrid(const Options& options, const deck::Deck& deck, int ranks,
                   const Allowed& given) {
  const Allowed allowed = given ? given : [](std::int64_t, std::int64_t) { return true; };
  const Asked asked{options.data, {options.tensor, options.pipeline, options.context}};
  const std::int64_t unit = Product(asked.sizes);
  if (!Divides(unit, ranks)) RefuseAxes(deck, asked, ranks, allowed);
  const std::int64_t left = ranks / unit;
  if (asked.data != 0 && asked.data != left) {
    const std::string all = Count(Times(unit, asked.data));
    throw deck.Complain(
        "grid.data", fmt::format("the grid has {}, the job has {}", all, ranks),
        fmt::format("What fits: grid.data = {}, or 0 (what is left); or start the job with {}.",
                    left, all));
  }
  GridShape shape;
  shape.data = static_cast<int>(left);
  shape.context = static_cast<int>(asked.sizes[kContext]);
  shape.tensor = static_cast<int>(asked.sizes[kTensor]);
  shape.pipeline = static_cast<int>(asked.sizes[kPipeline]);
  return shape;
}

}  // namespace trireme::comm
