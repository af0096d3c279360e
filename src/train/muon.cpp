// Muon: a momentum, its orthogonalisation by products of matrices, and AdamW for the rest.
#include <algorithm>
#include <cmath>

#include "trireme/device/memory.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/train/optimizer.hpp"

namespace trireme::train {

using kernels::Form;
using kernels::Matrix;
using kernels::MatrixMultiply;

namespace {

// Jordan et al. 2024: repeated, f(x) = a x + b x^3 + c x^5 brings singular values <= 1 near 1.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLikeAdamW = 0.2;  // root mean square of AdamW's updates (Liu et al. 2025)

bool IsHidden(const kernels::Registry& registry, kernels::ParameterId id) {
  return GroupOf(registry, id) == ParameterGroup::kMatrices &&
         registry.Parameters().at(static_cast<std::size_t>(id)).shape.size() == 2;
}

}  // namespace

Muon::Muon(const RuleParts& parts)
    : Rule(parts, {"first_moment."}),
      adam_{parts.options.beta1, parts.options.beta2, parts.options.epsilon},
      momentum_(parts.options.muon_momentum),
      iterations_(parts.options.muon_iterations),
      tensor_(parts.tensor.Carrying(comm::Payload::kGradients)) {
  const auto rest = [&](kernels::ParameterId id) { return !IsHidden(parts.registry, id); };
  AddMoment(parts, "second_moment.", rest);
  for (const OwnedParameter& part : parts.owned) {
    if (rest(part.id)) {
      others_.push_back(part.storage);
      others_.back().first = MomentAt(0, part);
      others_.back().second = MomentAt(1, part);
    } else {
      Add(part);
    }
  }
  Allocate(parts.registry.Type() == Dtype::kBfloat16);
}

void Muon::Add(const OwnedParameter& part) {
  const kernels::Parameter& parameter = *part.parameter;
  const kernels::UpdateRange& range = part.storage;
  Hidden hidden{.rows = parameter.shape[0],
                .columns = parameter.shape[1],
                .begin = part.elements.begin,
                .counts = parameter.copy == 0};
  const kernels::UpdateRange gradient{
      .count = range.count, .gradients = range.gradients, .scale = momentum_ - 1};
  hidden.momentum = gradient;
  hidden.momentum.decay = 1 - momentum_;
  hidden.momentum.values = MomentAt(0, part);
  hidden.rest = gradient;
  hidden.ahead = {.count = range.count, .gradients = hidden.momentum.values, .scale = -momentum_};
  hidden.move = range;
  const auto longer = static_cast<double>(std::max(hidden.rows, hidden.columns));
  hidden.move.scale = kLikeAdamW * std::sqrt(longer);
  hidden_.push_back(hidden);
}

void Muon::Allocate(bool rounds) {
  std::int64_t size = 0, shorter = 0;
  for (const Hidden& hidden : hidden_) {
    size = std::max(size, hidden.rows * hidden.columns);
    shorter = std::max(shorter, std::min(hidden.rows, hidden.columns));
  }
  if (size == 0) return;
  for (const std::int64_t count : {size, size, shorter * shorter, shorter * shorter}) {
    scratch_.push_back(device::AllocateZeroed(BytesOf(Type(), count), Stream().Where()));
  }
  squares_ = device::AllocateZeroed(static_cast<std::int64_t>(sizeof(double)), Stream().Where());
  if (!rounds) return;
  for (const std::int64_t count : {size, shorter * shorter}) {
    rounded_.push_back(device::AllocateZeroed(BytesOf(Dtype::kBfloat16, count), Stream().Where()));
  }
}

std::int64_t Muon::Bytes() const {
  std::int64_t bytes = Rule::Bytes() + device::BytesOf(squares_);
  for (const auto* buffers : {&scratch_, &rounded_}) {
    for (const device::Buffer& buffer : *buffers) bytes += device::BytesOf(buffer);
  }
  return bytes;
}

void Muon::SetScalars(std::int64_t step, std::span<kernels::UpdateScalars> scalars) const {
  adam_.Set(step, scalars[kAdam]);
  scalars[kMomentum].learning_rate = 1;
  scalars[kSums] = {.learning_rate = 1};
  scalars[kMove].gradient_scale = 1;
}

Matrix Muon::Scratch(std::size_t which, std::int64_t rows, std::int64_t columns) const {
  return {scratch_.at(which).get(), Type(), rows, columns, columns};
}

Matrix Muon::Operand(Copy which, const Matrix& matrix) const {
  if (rounded_.empty()) return matrix;
  const Matrix copy{rounded_.at(which).get(), Dtype::kBfloat16, matrix.rows, matrix.columns,
                    matrix.columns};
  kernels::Convert(Stream(), matrix.Size(), Type(), matrix.data, copy.dtype, copy.data);
  return copy;
}

// Scratch 0 = the whole matrix of mu momentum + (1 - mu) g, after the momentum's own update.
void Muon::Fill(const Hidden& hidden, const kernels::UpdateScalars* scalars, bool clear) const {
  const Matrix whole = Scratch(0, hidden.rows, hidden.columns);
  void* const slice = ElementAt(whole.data, Type(), hidden.begin);
  device::SetZero(Stream(), whole.data, BytesOf(Type(), whole.Size()));
  kernels::UpdateRange ahead = hidden.ahead, rest = hidden.rest;
  ahead.values = rest.values = slice;
  kernels::GradientDescent(Stream(), Type(), {&hidden.momentum, 1}, scalars + kMomentum, false);
  kernels::GradientDescent(Stream(), Type(), {&ahead, 1}, scalars + kSums, false);
  kernels::GradientDescent(Stream(), Type(), {&rest, 1}, scalars + kMomentum, clear);
  if (tensor_.Size() == 1) return;
  // Everything outside the slice is zero, so the sum puts the matrix together without rounding.
  if (!hidden.counts) {
    device::SetZero(Stream(), slice, BytesOf(Type(), ahead.count));
  }
  tensor_.AllReduce(Type(), whole.data, whole.Size());
}

void Muon::Combine(double decay, double scale, const Matrix& from, const Matrix& to,
                   const kernels::UpdateScalars* sums, const double* squares) const {
  const kernels::UpdateRange range{.count = from.Size(),
                                   .decay = decay,
                                   .gradients = from.data,
                                   .values = to.data,
                                   .scale = -scale,
                                   .squares = squares};
  kernels::GradientDescent(Stream(), Type(), {&range, 1}, sums, false);
}

Matrix Muon::Orthogonalise(const Hidden& hidden, const kernels::UpdateScalars* sums) const {
  const std::int64_t rows = hidden.rows, columns = hidden.columns, n = std::min(rows, columns);
  const bool wide = rows <= columns;
  Matrix x = Scratch(0, rows, columns), next = Scratch(1, rows, columns);
  const Matrix square = Scratch(2, n, n), fourth = Scratch(3, n, n);
  auto* const squares = static_cast<double*>(squares_.get());
  const kernels::FlatRange whole{x.Size(), x.data};
  kernels::SquareSums(Stream(), Type(), {&whole, 1}, squares);
  Combine(1, 1, x, x, sums, squares);
  for (int i = 0; i < iterations_; ++i) {
    // square = x x^T, or x^T x if that is smaller; next = a x + (b square + c square^2) x.
    const Matrix of_x = Operand(kX, x);
    MatrixMultiply(Stream(), wide ? Form::kPlain : Form::kTransposed, of_x,
                   wide ? Form::kTransposed : Form::kPlain, of_x, square, false);
    const Matrix of_square = Operand(kSquare, square);
    MatrixMultiply(Stream(), Form::kPlain, of_square, Form::kPlain, of_square, fourth, false);
    Combine(1 - kC, kB, square, fourth, sums);
    const Matrix of_fourth = Operand(kSquare, fourth);
    MatrixMultiply(Stream(), Form::kPlain, wide ? of_fourth : of_x, Form::kPlain,
                   wide ? of_x : of_fourth, next, false);
    Combine(0, kA, x, next, sums);
    std::swap(x, next);
  }
  return x;
}

void Muon::Update(const kernels::UpdateScalars* scalars, bool clear) {
  kernels::AdamW(Stream(), Type(), others_, scalars + kAdam, clear);
  for (const Hidden& hidden : hidden_) {
    Fill(hidden, scalars, clear);
    const Matrix update = Orthogonalise(hidden, scalars + kSums);
    kernels::UpdateRange move = hidden.move;
    move.gradients = ElementAt(update.data, Type(), hidden.begin);
    kernels::GradientDescent(Stream(), Type(), {&move, 1}, scalars + kMove, false);
  }
}

}  // namespace trireme::train
