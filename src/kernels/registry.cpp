// Registry: storages, views, owned elements of parameters, checkpoint blocks, initial weights.
#include "trireme/kernels/registry.hpp"

#include <xxhash.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>

#include "trireme/base/error.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::kernels {

// ParameterList: offsets of parameters and units in the flat range; and ownership of all of it.

namespace {

// Elements: 128 bytes in fp32, so that the operands of products are aligned.
constexpr std::int64_t kAlignment = 32;

std::int64_t Aligned(std::int64_t size) { return CeilDivide(size, kAlignment) * kAlignment; }

std::int64_t Bytes(Dtype dtype, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(SizeOf(dtype));
}

void RequireMemory(const void* base, const std::string& what, const std::string& name) {
  if (base != nullptr) return;
  throw RunError("registry: the " + what + " of " + name + " are not there",
                 "This is a bug in Trireme.");
}

// Initial values of the global elements 4 block to 4 block + 3 of the tensor whose name has this
// hash (doc/reference/numerics.md).
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
  // Box-Muller: words (0, 1) and (2, 3) give two pairs of values, cosine first.
  for (std::size_t lane = 0; lane < 4; lane += 2) {
    const double radius = std::sqrt(-2 * std::log(UniformFrom(words[lane])));
    const double angle = 2 * std::numbers::pi * UniformFrom(words[lane + 1]);
    values[lane] = scale * radius * std::cos(angle);
    values[lane + 1] = scale * radius * std::sin(angle);
  }
  return values;
}

}  // namespace

// Whether this rank holds an earlier parameter of the adjacent group to which this one belongs.
bool ParameterList::FollowsItsGroup(const Parameter& parameter) const {
  bool adjacent = parameter.adjacent;
  for (auto before = parameters_.rbegin(); adjacent && before != parameters_.rend(); ++before) {
    if (before->Held()) return true;
    adjacent = before->adjacent;
  }
  return false;
}

int ParameterList::BeginUnit(const std::string& name, bool block) {
  size_ = Aligned(size_);
  if (!units_.empty()) units_.back().range.end = size_;
  units_.push_back({name, {size_, size_}, block});
  return static_cast<int>(units_.size()) - 1;
}

ParameterId ParameterList::Add(Parameter parameter) {
  if (units_.empty()) BeginUnit("");
  if (parameter.end == kWhole) parameter.end = ElementCount(parameter.shape);
  if (parameter.begin < 0 || parameter.end < parameter.begin ||
      parameter.end > ElementCount(parameter.shape) || parameter.copy < 0 ||
      parameter.copy >= parameter.copies) {
    throw RunError("parameters: " + parameter.name + " has no such elements or no such copy",
                   "This is a bug in Trireme.");
  }
  if (parameter.Held() && !FollowsItsGroup(parameter)) size_ = Aligned(size_);
  parameter.offset = size_;
  if (!parameter.Held()) parameter.spare = 0;
  if (units_.back().block && parameter.decay) parameter.number = matrices_++;
  size_ += parameter.LocalSize() + parameter.spare;
  units_.back().range.end = size_;
  unit_of_.push_back(static_cast<int>(units_.size()) - 1);
  early_at_.push_back(early_size_);
  if (parameter.early) early_size_ += Aligned(parameter.LocalSize());
  parameters_.push_back(std::move(parameter));
  return static_cast<ParameterId>(parameters_.size()) - 1;
}

void ParameterList::AddSecondGradient(ParameterId id) {
  size_ = Aligned(size_);
  units_.back().range.end = size_;
  second_ = id;
  second_size_ = parameters_.at(static_cast<std::size_t>(id)).LocalSize();
}

// The mask is that of kernels::Dropout with the step in place of the sample and a matrix's number
// in place of layer and site. Whole rows are one call; a range may begin and end within a row.
void DropElements(const device::Stream& stream, const WeightDropout& by, const Parameter& matrix,
                  Part elements, const Matrix& from, const Matrix& to) {
  constexpr int kSiteBits = 12;
  const auto number = static_cast<std::uint32_t>(matrix.number);
  const std::int64_t columns = matrix.shape.back();
  Dropout dropout{by.probability, by.seed, Purpose::kWeightDropout, number >> kSiteBits,
                  number & ((1U << kSiteBits) - 1)};
  dropout.ordinal = static_cast<std::uint64_t>(by.step);
  dropout.length = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t at = elements.begin; at < elements.end;) {
    const std::int64_t left = elements.end - at;
    dropout.first_row = at / columns;
    dropout.first_feature = at % columns;
    const bool whole = dropout.first_feature == 0 && left >= columns;
    const std::int64_t rows = whole ? left / columns : 1;
    const std::int64_t width = std::min(columns - dropout.first_feature, left);
    const auto part = [&](const Matrix& flat) {
      const Matrix first = flat.Columns(at - elements.begin, rows * width);
      return Matrix{first.data, first.dtype, rows, width, width};
    };
    DropoutForward(stream, part(from), dropout, part(to));
    at += rows * width;
  }
}

Ownership OwnAll(std::int64_t size) {
  Ownership all;
  all.pieces = {{{0, size}, {0, size}}};
  all.values = all.gradients = all.moments = size;
  return all;
}

Registry::Registry(ParameterList list, Dtype dtype, Ownership ownership, bool gradients,
                   const device::Stream& stream)
    : list_(std::move(list)),
      dtype_(dtype),
      ownership_(std::move(ownership)),
      stream_(stream),
      value_base_(Units().size(), nullptr),
      gradient_base_(Units().size(), nullptr),
      gradient_level_(Units().size(), 0),
      early_(Units().size(), false) {
  const device::Kind where = stream_.Where();
  values_ = device::AllocateZeroed(Bytes(dtype_, ownership_.values), where);
  if (!gradients) return;
  const std::int64_t sums = ownership_.gradients * ownership_.gradient_levels;
  gradients_ = device::AllocateZeroed(Bytes(SumType(), sums), where);
  if (ownership_.gradients_sharded && list_.EarlySize() > 0) {
    early_gradients_ = device::AllocateZeroed(Bytes(SumType(), list_.EarlySize()), where);
  }
  if (SumType() != dtype_) {
    masters_ = device::AllocateZeroed(Bytes(SumType(), ownership_.moments), where);
  }
}

Registry::Registry(const ParameterList& list, Dtype dtype, bool gradients,
                   const device::Stream& stream)
    : Registry(list, dtype, OwnAll(list.Size()), gradients, stream) {}

std::int64_t Registry::ValueBytes() const {
  return device::BytesOf(values_) + device::BytesOf(masters_);
}

std::int64_t Registry::GradientBytes() const {
  return device::BytesOf(gradients_) + device::BytesOf(early_gradients_);
}

void* Registry::GradientLevel(int level) const {
  return ElementAt(gradients_.get(), SumType(), level * ownership_.gradients);
}

Owned Registry::OwnedOf(ParameterId id) const {
  const Parameter& parameter = Parameters().at(static_cast<std::size_t>(id));
  const Part flat{parameter.offset, parameter.offset + parameter.LocalSize()};
  Owned owned{{flat.begin, flat.begin}};
  for (const Piece& piece : ownership_.pieces) {
    const std::int64_t begin = std::max(flat.begin, piece.own.begin);
    const std::int64_t end = std::min(flat.end, piece.own.end);
    if (begin >= end) continue;
    if (owned.flat.Size() == 0) {
      const std::int64_t skipped = begin - piece.own.begin;
      owned = {
          {begin, end}, piece.value + skipped, piece.gradient + skipped, piece.moment + skipped};
    } else if (begin == owned.flat.end) {
      owned.flat.end = end;  // unsharded: a very large parameter in several consecutive pieces
    } else {
      throw RunError("registry: " + parameter.name + " is owned in several places");
    }
  }
  return owned;
}

std::pair<Matrix, std::int64_t> Registry::ViewOf(ParameterId id, int count, Dtype dtype) const {
  const Parameter& first = Parameters().at(static_cast<std::size_t>(id));
  const bool vector = first.shape.size() < 2;
  const std::int64_t columns = vector ? 1 : ElementCount(std::span(first.shape).subspan(1));
  std::int64_t elements = 0, offset = first.offset;
  for (int i = 0; i < count; ++i) {
    const Parameter& part = Parameters().at(static_cast<std::size_t>(id + i));
    if (i > 0 && !part.adjacent) throw RunError("registry: " + part.name + " is not adjacent");
    if (part.begin % columns != 0 || part.end % columns != 0) {
      throw RunError("registry: " + part.name + " is not held in whole rows");
    }
    if (elements == 0) offset = part.offset;
    elements += part.LocalSize();
  }
  Matrix view{nullptr, dtype, elements / columns, columns, columns};
  if (vector) view = {nullptr, dtype, elements > 0 ? 1 : 0, elements, elements};
  return {view, offset};
}

Matrix Registry::Value(ParameterId id, int count) const {
  auto [view, offset] = ViewOf(id, count, dtype_);
  if (view.rows == 0 || (values_ == nullptr && !ownership_.values_sharded)) return view;
  if (!ownership_.values_sharded) {
    view.data = ElementAt(values_.get(), dtype_, offset);
    return view;
  }
  const auto unit = static_cast<std::size_t>(UnitOf(id));
  RequireMemory(value_base_[unit], "values", Units()[unit].name);
  view.data = ElementAt(value_base_[unit], dtype_, offset - Units()[unit].range.begin);
  return view;
}

Matrix Registry::Gradient(ParameterId id, int count) const {
  auto [view, offset] = ViewOf(id, count, SumType());
  if (view.rows == 0 || gradients_ == nullptr) return view;
  const auto unit = static_cast<std::size_t>(UnitOf(id));
  if (!ownership_.gradients_sharded) {
    view.data = ElementAt(GradientLevel(gradient_level_[unit]), SumType(), offset);
    return view;
  }
  const auto at = static_cast<std::size_t>(id);
  if (early_[unit] && Parameters()[at].early) {
    view.data = ElementAt(early_gradients_.get(), SumType(), list_.EarlyOffset(id));
    return view;
  }
  RequireMemory(gradient_base_[unit], "gradients", Units()[unit].name);
  view.data = ElementAt(gradient_base_[unit], SumType(), offset - Units()[unit].range.begin);
  return view;
}

Matrix Registry::SecondGradient(ParameterId id) const {
  if (id != SecondOf()) return Gradient(id);
  auto [view, offset] = ViewOf(id, 1, SumType());
  if (view.rows == 0 || gradients_ == nullptr) return view;
  const auto unit = static_cast<std::size_t>(UnitOf(id));
  view.data = ElementAt(GradientLevel(gradient_level_[unit]), SumType(), Size());
  return view;
}

void Registry::BindValues(int unit, void* base) {
  value_base_.at(static_cast<std::size_t>(unit)) = base;
}

void Registry::BindGradients(int unit, void* base) {
  gradient_base_.at(static_cast<std::size_t>(unit)) = base;
}

void Registry::BindGradientLevel(int unit, int level) {
  gradient_level_.at(static_cast<std::size_t>(unit)) = level;
}

void Registry::BindEarly(int unit, bool early) {
  early_.at(static_cast<std::size_t>(unit)) = early;
}

void Registry::TakeEarly(int unit,
                         FunctionRef<void(void* from, void* to, std::int64_t count)> take) const {
  if (early_gradients_ == nullptr) return;
  for (std::size_t id = 0; id < Parameters().size(); ++id) {
    const Parameter& parameter = Parameters()[id];
    if (list_.UnitOf(static_cast<ParameterId>(id)) != unit || !parameter.early || !parameter.Held())
      continue;
    take(ElementAt(early_gradients_.get(), SumType(),
                   list_.EarlyOffset(static_cast<ParameterId>(id))),
         Gradient(static_cast<ParameterId>(id)).data, parameter.LocalSize());
  }
}

void Registry::ZeroGradients() {
  if (std::exchange(gradients_cleared_, false)) return;
  DropGradients();
  gradients_cleared_ = false;
}

void Registry::DropGradients() {
  const auto clear = [this](const device::Buffer& storage, std::int64_t elements) {
    if (storage == nullptr) return;
    device::SetZero(stream_, storage.get(), Bytes(SumType(), elements));
  };
  clear(gradients_, ownership_.gradients);  // other levels are zero: their readers clear them
  clear(early_gradients_, list_.EarlySize());
  GradientsCleared();
}

// Registry: the blocks of a checkpoint.

std::vector<StateBlock> Registry::ValueBlocks(int rank, int ranks, int sharers) const {
  if (masters_ != nullptr) {
    return OwnedBlocks(masters_.get(), SumType(), &Owned::moment, "", rank, ranks, sharers);
  }
  return StoredValueBlocks(rank, ranks, sharers);
}

std::vector<StateBlock> Registry::StoredValueBlocks(int rank, int ranks, int sharers) const {
  if (ownership_.values_sharded) {
    return OwnedBlocks(values_.get(), dtype_, &Owned::value, "", rank, ranks, sharers);
  }
  std::vector<StateBlock> blocks;
  blocks.reserve(Parameters().size());
  for (const Parameter& parameter : Parameters()) {
    void* data = parameter.Held() ? ElementAt(values_.get(), dtype_, parameter.offset) : nullptr;
    blocks.push_back({parameter.name, parameter.shape, dtype_, parameter.begin, parameter.end, data,
                      rank * parameter.copies + parameter.copy, ranks * parameter.copies});
  }
  return blocks;
}

std::vector<StateBlock> Registry::MomentBlocks(void* storage, const std::string& prefix, int rank,
                                               int ranks, int sharers) const {
  return OwnedBlocks(storage, SumType(), &Owned::moment, prefix, rank, ranks, sharers);
}

std::vector<StateBlock> Registry::GradientBlocks(int rank, int ranks, int sharers) const {
  return OwnedBlocks(gradients_.get(), SumType(), &Owned::gradient, "", rank, ranks, sharers);
}

// Replicas of a block: one owner in each group of sharers, times the parameter's copies.
std::vector<StateBlock> Registry::OwnedBlocks(void* storage, Dtype dtype,
                                              std::int64_t Owned::*place, const std::string& prefix,
                                              int rank, int ranks, int sharers) const {
  std::vector<StateBlock> blocks;
  blocks.reserve(Parameters().size());
  for (std::size_t id = 0; id < Parameters().size(); ++id) {
    const Parameter& parameter = Parameters()[id];
    const Owned owned = OwnedOf(static_cast<ParameterId>(id));
    const std::int64_t begin = parameter.begin + owned.flat.begin - parameter.offset;
    const std::int64_t size = owned.flat.Size();
    void* data = size > 0 ? ElementAt(storage, dtype, owned.*place) : nullptr;
    blocks.push_back({prefix + parameter.name, parameter.shape, dtype, begin, begin + size, data,
                      rank / sharers * parameter.copies + parameter.copy,
                      ranks / sharers * parameter.copies});
  }
  return blocks;
}

// Registry: initial weights, each element from its global coordinates (doc/reference/numerics.md).

// Writes these global elements of a parameter to `values`, the address of the first.
void Registry::Initialise(const Parameter& parameter, std::uint32_t seed, Part elements,
                          Dtype dtype, void* values) const {
  const std::uint64_t hash = XXH64(parameter.name.data(), parameter.name.size(), 0);
  const auto fill = [&](const Part& part, auto* out, auto&& round) {
#pragma omp parallel for schedule(static)
    for (std::int64_t block = part.begin / 4; block < CeilDivide(part.end, 4); ++block) {
      const auto four = InitialValues(parameter.initialiser, seed, hash, block);
      const std::int64_t begin = std::max(part.begin, 4 * block);
      for (std::int64_t i = begin; i < std::min(part.end, 4 * block + 4); ++i) {
        // Rounded through fp32: an fp64 verification then starts from the fp32 run's weights.
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
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;  // elements copied from the host at a time
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
  if (stream_.Planned()) return;                          // a planned stream has no memory
  constexpr std::int64_t kPiece = std::int64_t{1} << 24;  // elements: under a second of a thread
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
