// Registry: initial weights, each element from its global coordinates (doc/numerics.md).
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "trireme/base/bfloat16.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::kernels {

namespace {

// Values of the global elements 4 block to 4 block + 3 of the tensor whose name hashes to `hash`
// (doc/numerics.md).
std::array<double, 4> InitialValues(const Initialiser& initialiser, std::uint32_t seed,
                                    std::uint64_t hash, std::int64_t block) {
  const double scale = initialiser.scale;
  if (initialiser.kind == InitialiserKind::kConstant) return {scale, scale, scale, scale};
  const auto number = static_cast<std::uint64_t>(block);
  const PhiloxCounter words =
      Philox({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32),
              static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)},
             MakeKey(seed, Purpose::kInitialise));
  std::array<double, 4> values;
  if (initialiser.kind == InitialiserKind::kUniform) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      values[lane] = scale * (2 * UniformFrom(words[lane]) - 1);
    }
    return values;
  }
  // Box-Muller: lanes (0, 1) and (2, 3) are two pairs, cosine first.
  for (std::size_t lane = 0; lane < 4; lane += 2) {
    const double radius = std::sqrt(-2 * std::log(UniformFrom(words[lane])));
    const double angle = 2 * std::numbers::pi * UniformFrom(words[lane + 1]);
    values[lane] = scale * radius * std::cos(angle);
    values[lane + 1] = scale * radius * std::sin(angle);
  }
  return values;
}

}  // namespace

// Global elements of a parameter to `values`, where the first of them lies.
void Registry::Initialise(const Parameter& parameter, std::uint32_t seed, Part elements,
                          Dtype dtype, void* values) const {
  const std::uint64_t hash = XXH64(parameter.name.data(), parameter.name.size(), 0);
  const auto fill = [&](const Part& part, auto* out, auto&& round) {
#pragma omp parallel for schedule(static)
    for (std::int64_t block = part.begin / 4; block < CeilDivide(part.end, 4); ++block) {
      const auto four = InitialValues(parameter.initialiser, seed, hash, block);
      const std::int64_t begin = std::max(part.begin, 4 * block);
      for (std::int64_t i = begin; i < std::min(part.end, 4 * block + 4); ++i) {
        // Rounded through fp32, so that an fp64 verification starts from the fp32 run's weights.
        out[i - part.begin] = round(static_cast<float>(four[static_cast<std::size_t>(i % 4)]));
      }
    }
  };
  const auto fill_as = [&](const Part& part, void* out) {
    if (dtype == Dtype::kBfloat16) {
      fill(part, static_cast<std::uint16_t*>(out), RoundToBfloat16);
    } else {
      DispatchDtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        fill(part, static_cast<T*>(out), [](float value) { return static_cast<T>(value); });
      });
    }
  };
  if (stream_.Where() == device::Kind::kCpu) return fill_as(elements, values);
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;  // elements that pass through the host
  const std::int64_t most = std::min(kPiece, elements.Size());
  const auto size = static_cast<std::int64_t>(SizeOf(dtype));
  std::vector<std::byte> host(static_cast<std::size_t>(most * size));
  for (std::int64_t begin = elements.begin; begin < elements.end; begin += kPiece) {
    const Part part{begin, std::min(begin + kPiece, elements.end)};
    fill_as(part, host.data());
    device::CopyIn(stream_, host.data(), ElementAt(values, dtype, begin - elements.begin),
                   part.Size() * size);
  }
}

void Registry::EachInitialPiece(
    FunctionRef<void(const Parameter&, Part elements, Dtype, void* values)> visit) const {
  if (stream_.Planned()) return;                          // no memory
  constexpr std::int64_t kPiece = std::int64_t{1} << 24;  // elements: below a second of one thread
  const auto in_pieces = [&](const Parameter& parameter, Part all, Dtype dtype, void* values) {
    for (std::int64_t begin = all.begin; begin < all.end; begin += kPiece) {
      visit(parameter, {begin, std::min(begin + kPiece, all.end)}, dtype,
            ElementAt(values, dtype, begin - all.begin));
    }
  };
  for (std::size_t id = 0; id < Parameters().size(); ++id) {
    const Parameter& parameter = Parameters()[id];
    const Owned owned = OwnedOf(static_cast<ParameterId>(id));
    const std::int64_t first = parameter.begin + owned.flat.begin - parameter.offset;
    const Part mine{first, first + owned.flat.Size()};
    if (ownership_.values_sharded) {
      in_pieces(parameter, mine, dtype_, ElementAt(values_.get(), dtype_, owned.value));
    } else {
      in_pieces(parameter, {parameter.begin, parameter.end}, dtype_,
                ElementAt(values_.get(), dtype_, parameter.offset));
    }
    if (masters_ == nullptr) continue;
    in_pieces(parameter, mine, SumType(), ElementAt(masters_.get(), SumType(), owned.moment));
  }
}

void Registry::Initialise(std::uint32_t seed, const std::function<void()>& after_piece) {
  EachInitialPiece([&](const Parameter& parameter, Part elements, Dtype dtype, void* values) {
    Initialise(parameter, seed, elements, dtype, values);
    if (after_piece) after_piece();
  });
}

std::int64_t Registry::InitialPieces() const {
  std::int64_t pieces = 0;
  EachInitialPiece([&](const Parameter&, Part, Dtype, void*) { ++pieces; });
  return pieces;
}

}  // namespace trireme::kernels
