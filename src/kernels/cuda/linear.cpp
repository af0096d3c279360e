// Linear layers on the GPU: LinearWeightGradient accumulates, everything else overwrites. Only
// types, shapes and addresses decide whether a product includes its bias or activation and whether
// it uses fp8 operands; whether it includes GELU is chosen once and kept with the product's
// algorithm. So runs repeat. The library's GELU is the same tanh form as ours.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>

#include "backends.hpp"
#include "libraries.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::kernels::cuda {

// Scales and memory of fp8 operands.

namespace {

constexpr std::size_t kState = 1 + kFp8History;  // per tensor: its scale, then the history
constexpr std::int64_t kBytes = 4;               // bytes of such a number

}  // namespace

Fp8::Fp8(const device::Stream& stream, int sites) {
  constexpr int kHopper = 9;
  if (sites == 0) return;
  if (stream.gpu->major < kHopper) {
    throw RunError(fmt::format("{} (compute capability {}.{}) multiplies no fp8.", stream.gpu->name,
                               stream.gpu->major, stream.gpu->minor),
                   "Choose run.precision = bf16, or a card of compute capability 9.0 or newer.");
  }
  const std::int64_t tensors = std::int64_t{sites} * kFp8Roles;
  const std::int64_t all = tensors + kFp8Places * kFp8Roles;
  memory_ = device::AllocateZeroed(gpu::Fp8ScaleBytes(sites), device::Kind::kCuda);
  largest_ = device::AllocatePinned(tensors * kBytes, device::Kind::kCuda);
  uploaded_ = device::AllocatePinned((1 + kFp8InverseStep) * tensors * kBytes, device::Kind::kCuda);
  scales_.tensors = static_cast<int>(tensors);
  scales_.inverse = static_cast<float*>(memory_.get());
  scales_.scale = scales_.inverse + kFp8InverseStep * all;
  scales_.largest = reinterpret_cast<unsigned*>(scales_.scale + all);
  met_.assign(static_cast<std::size_t>(tensors), 0);
  state_.assign(static_cast<std::size_t>(tensors) * kState, 0.0f);
}

void Fp8::Reserve(std::int64_t bytes) {
  if (scales_.tensors == 0 || bytes <= reserved_) return;
  for (device::Buffer& room : rooms_) {
    if (room != nullptr) outgrown_.push_back(std::move(room));
    room = device::AllocateZeroed(bytes, device::Kind::kCuda);
  }
  reserved_ = bytes;
}

std::byte* Fp8::Place(int place, std::int64_t bytes) const {
  if (bytes > reserved_) {
    throw RunError(
        fmt::format("an fp8 operand of {} bytes, where {} are reserved", bytes, reserved_),
        "This is a bug in Trireme.");
  }
  return static_cast<std::byte*>(rooms_[place].get());
}

int Fp8::FindScale(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                   int place) {
  int tensor = site * kFp8Roles + static_cast<int>(role);
  if (site < 0 || tensor >= scales_.tensors || x.dtype != Dtype::kBfloat16) {
    throw RunError(fmt::format("an fp8 operand of linear layer {} of {}, in {}", site,
                               scales_.tensors / kFp8Roles, trireme::NameOf(x.dtype)),
                   "This is a bug in Trireme.");
  }
  if (training_) {
    // The scale comes from earlier steps; only a tensor seen for the first time is measured now.
    if (std::exchange(met_[static_cast<std::size_t>(tensor)], 1) != 0) return tensor;
  } else {
    tensor = scales_.tensors + place * kFp8Roles + static_cast<int>(role);
    device::SetZero(stream, scales_.largest + tensor, sizeof *scales_.largest);
  }
  Fp8Largest(stream, x, scales_.largest + tensor);
  Fp8FirstScale(stream, scales_, tensor);
  return tensor;
}

Operand Fp8::OperandOf(int tensor, const std::byte* data, std::int64_t stride) const {
  Operand operand;
  operand.data = data;
  operand.type = RoleOf(tensor) == Fp8Role::kGradient ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
  operand.stride = stride;
  operand.scale = scales_.inverse + std::ptrdiff_t{tensor} * kFp8InverseStep;
  return operand;
}

Operand Fp8::Quantise(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                      bool transposed, int place) {
  std::byte* const out = Place(place, x.Size());
  const int tensor = FindScale(stream, site, role, x, place);
  Fp8Round(stream, x, scales_, tensor,
           transposed ? Fp8Forms{.transposed = out} : Fp8Forms{.plain = out});
  return OperandOf(tensor, out, transposed ? x.rows : x.columns);
}

Operand Fp8::QuantiseBoth(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                          const Fp8Transpose& transpose) {
  constexpr int kPlace = 0;
  auto* const turned = static_cast<std::byte*>(transpose.memory);
  if (turned == nullptr || !training_) return Quantise(stream, site, role, x, false, kPlace);
  std::byte* const out = Place(kPlace, x.Size());
  const int tensor = FindScale(stream, site, role, x, kPlace);
  Fp8Round(stream, x, scales_, tensor, {out, turned});
  transpose.written = true;
  return OperandOf(tensor, out, x.columns);
}

Operand Fp8::Transposed(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                        const Fp8Transpose& transpose) {
  const int place = role == Fp8Role::kGradient ? 1 : 0;
  if (!transpose.written) return Quantise(stream, site, role, x, true, place);
  return OperandOf(FindScale(stream, site, role, x, place),
                   static_cast<const std::byte*>(transpose.memory), x.rows);
}

void Fp8::KeepWeights(std::span<const Linear> layers) {
  if (scales_.tensors == 0) return;
  weights_.resize(static_cast<std::size_t>(scales_.tensors / kFp8Roles));
  bool grows = false;
  std::int64_t all = 0;
  for (const Linear& linear : layers) {
    const std::int64_t bytes = gpu::Fp8WeightElements(linear);
    if (bytes == 0) continue;
    KeptWeight& kept = weights_.at(static_cast<std::size_t>(linear.site));
    grows = grows || bytes > kept.bytes;
    kept.bytes = std::max(kept.bytes, bytes);
  }
  if (!grows) return;
  for (const KeptWeight& kept : weights_) all += kept.bytes;
  if (kept_ != nullptr) outgrown_.push_back(std::move(kept_));
  kept_ = device::AllocateZeroed(all, device::Kind::kCuda);
  auto* next = static_cast<std::byte*>(kept_.get());
  for (KeptWeight& kept : weights_) kept.memory = std::exchange(next, next + kept.bytes);
  ForgetWeights();
}

void Fp8::SetTraining(bool training) {
  training_ = training;
  ForgetWeights();
}

void Fp8::ForgetWeights() {
  for (KeptWeight& kept : weights_) kept.weight = {};
}

Operand Fp8::Weight(const device::Stream& stream, const Linear& linear, bool transposed) {
  constexpr int kPlace = 1;
  const Matrix& weight = linear.weight;
  const auto site = static_cast<std::size_t>(linear.site);
  if (!training_ || site >= weights_.size() || 2 * weight.Size() > weights_[site].bytes) {
    return Quantise(stream, linear.site, Fp8Role::kWeight, weight, transposed, kPlace);
  }
  KeptWeight& kept = weights_[site];
  const int tensor = FindScale(stream, linear.site, Fp8Role::kWeight, weight, kPlace);
  std::byte* const turned = kept.memory + weight.Size();
  if (kept.weight.data != weight.data || kept.weight.rows != weight.rows ||
      kept.weight.columns != weight.columns || kept.weight.stride != weight.stride) {
    Fp8Round(stream, weight, scales_, tensor, {kept.memory, turned});
    kept.weight = weight;
  }
  return OperandOf(tensor, transposed ? turned : kept.memory,
                   transposed ? weight.rows : weight.columns);
}

void Fp8::QueueLargest(const device::Stream& stream) {
  if (scales_.tensors == 0) return;
  const std::int64_t bytes = scales_.tensors * kBytes;
  device::StartCopyOut(stream, scales_.largest, largest_.get(), bytes);
  device::SetZero(stream, scales_.largest, bytes);
}

std::span<float> Fp8::Largest() {
  auto* const first = static_cast<float*>(largest_.get());
  const std::span<float> all(first, static_cast<std::size_t>(scales_.tensors));
  for (float& one : all) one = std::isfinite(one) ? one : 0.0f;
  return all;
}

void Fp8::UpdateScales(const device::Stream& stream) {
  const std::span<const float> seen = Largest();
  for (std::size_t tensor = 0; tensor < seen.size(); ++tensor) {
    const std::span<float> state = std::span(state_).subspan(tensor * kState, kState);
    const std::span<float> history = state.subspan(1);
    std::shift_right(history.begin(), history.end(), 1);
    history[0] = seen[tensor];
    const float largest = *std::ranges::max_element(history);
    if (largest > 0) {
      state[0] = std::min(LargestOf(RoleOf(static_cast<int>(tensor))) / largest, kFp8LargestScale);
    } else if (met_[tensor] != 0 && state[0] == 0) {
      state[0] = 1;  // the scale that Fp8FirstScale chose without a maximum
    }
  }
  Upload(stream);
  scaled_ = true;
  ForgetWeights();
}

bool Fp8::SetState(const device::Stream& stream, std::span<const float> state) {
  scaled_ = !state.empty() && state.size() == state_.size();
  if (scaled_) {
    std::ranges::copy(state, state_.begin());
  } else {
    std::ranges::fill(state_, 0.0f);
  }
  device::Synchronise(stream);  // an earlier upload may still be under way
  Upload(stream);
  ForgetWeights();
  return scaled_;
}

void Fp8::Upload(const device::Stream& stream) {
  const auto tensors = static_cast<std::size_t>(scales_.tensors);
  if (tensors == 0) return;
  auto* const scale = static_cast<float*>(uploaded_.get());
  float* const inverse = scale + tensors;
  for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
    scale[tensor] = state_[tensor * kState];
    met_[tensor] = scale[tensor] > 0 ? 1 : 0;
    inverse[tensor * kFp8InverseStep] = met_[tensor] != 0 ? 1.0f / scale[tensor] : 0.0f;
  }
  const std::int64_t bytes = scales_.tensors * kBytes;
  device::StartCopyIn(stream, scale, scales_.scale, bytes);
  device::StartCopyIn(stream, inverse, scales_.inverse, kFp8InverseStep * bytes);
}

// Products of a linear layer with fp8 operands. The library multiplies fp8 only if the inner index
// is contiguous in both operands, so operands are rounded and, where necessary, transposed in one
// pass. Functions that return bool return false, and do nothing, if the product cannot use fp8.

namespace {

// c = a b^T, or c += with `accumulate`; the inner index is contiguous in both.
Product ProductOf(const Operand& a, Operand b, const Matrix& c, std::int64_t inner,
                  bool accumulate = false) {
  b.form = Form::kTransposed;
  return MakeProduct(a, b, c, inner, accumulate);
}

// Whether fp8 suits a product of x with a matrix of `columns` columns, wherever its result goes.
bool IsForFp8(const device::Stream& stream, const Linear& linear, const Matrix& x,
              std::int64_t columns) {
  const auto whole = [](std::int64_t size) { return size > 0 && size % kFp8Unit == 0; };
  return stream.fp8 && linear.site >= 0 && x.dtype == Dtype::kBfloat16 && whole(x.rows) &&
         whole(x.columns) && whole(columns);
}

const Fp8Transposes& TransposesOf(const Linear& linear) {
  static const Fp8Transposes none;
  return linear.transposes == nullptr ? none : *linear.transposes;
}

// Whether a product of x [rows, inner] into y [rows, columns] of this layer uses fp8: the stream
// asks for it, the layer has a site, types are bf16, all dimensions are multiples of 16, and the
// rows of y are aligned to 16 bytes.
bool Fp8Takes(const device::Stream& stream, const Linear& linear, const Matrix& x,
              const Matrix& y) {
  return IsForFp8(stream, linear, x, y.columns) && y.dtype == x.dtype && gpu::RowsAligned(y);
}

// y = x form(weight) + bias; bias may be Empty().
bool Fp8Forward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                const Matrix& bias, const Matrix& y) {
  if (!Fp8Takes(stream, linear, x, y)) return false;
  Fp8& fp8 = GpuLibrariesOf(stream).Quantiser();
  const bool transposed = linear.form == Form::kPlain;
  const Operand a =
      fp8.QuantiseBoth(stream, linear.site, Fp8Role::kValue, x, TransposesOf(linear).x);
  const Operand b = fp8.Weight(stream, linear, transposed);
  Product product = ProductOf(a, b, y, x.columns);
  product.fast_sums = true;  // as is usual: only gradients need the more precise sums
  if (!bias.Empty() && bias.dtype == y.dtype) {
    Product biased = product;
    biased.epilogue = Epilogue::kBias, biased.bias = bias.data;
    if (GpuLibrariesOf(stream).Run(stream, biased)) return true;
  }
  Multiply(stream, product);
  if (!bias.Empty()) AddBias(stream, y, bias);
  return true;
}

// dx = dy form(weight)^T.
bool Fp8InputGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                      const Matrix& dx) {
  if (!Fp8Takes(stream, linear, dy, dx)) return false;
  Fp8& fp8 = GpuLibrariesOf(stream).Quantiser();
  const bool transposed = linear.form == Form::kTransposed;
  const Operand a =
      fp8.QuantiseBoth(stream, linear.site, Fp8Role::kGradient, dy, TransposesOf(linear).dy);
  const Operand b = fp8.Weight(stream, linear, transposed);
  Multiply(stream, ProductOf(a, b, dx, dy.columns));
  return true;
}

// dweight += x^T dy, or its transpose if linear.form is kTransposed.
bool Fp8WeightGradient(const device::Stream& stream, const Linear& linear, const Matrix& x,
                       const Matrix& dy, const Matrix& dweight) {
  if (!IsForFp8(stream, linear, x, dy.columns) || dy.dtype != x.dtype ||
      !gpu::RowsAligned(dweight)) {
    return false;
  }
  Fp8& fp8 = GpuLibrariesOf(stream).Quantiser();
  const Operand values =
      fp8.Transposed(stream, linear.site, Fp8Role::kValue, x, TransposesOf(linear).x);
  const Operand gradients =
      fp8.Transposed(stream, linear.site, Fp8Role::kGradient, dy, TransposesOf(linear).dy);
  const bool transposed = linear.form == Form::kTransposed;
  Multiply(stream, ProductOf(transposed ? gradients : values, transposed ? values : gradients,
                             dweight, x.rows, true));
  return true;
}

// Linear layers.

Form Opposite(Form form) { return form == Form::kPlain ? Form::kTransposed : Form::kPlain; }

// Whether the library may offer an epilogue for the product: not in fp64, nor for empty products.
bool HasEpilogues(const Matrix& x, const Matrix& out) {
  return out.dtype == x.dtype && x.dtype != Dtype::kFloat64 && x.columns > 0 && out.columns > 0;
}

// Whether `aux` can hold the values before an activation, as the library requires.
bool IsAux(const Matrix& aux, const Matrix& out) {
  constexpr std::int64_t kMultiple = 8;  // the stride must be a multiple of this
  constexpr std::uintptr_t kAligned = 16;
  return aux.dtype == Dtype::kBfloat16 && aux.dtype == out.dtype && aux.data != out.data &&
         aux.stride % kMultiple == 0 && reinterpret_cast<std::uintptr_t>(aux.data) % kAligned == 0;
}

// y = x form(weight) with an epilogue, in one kernel. Returns false, and does nothing, if the
// library has no such kernel or if `apart` is faster (Algorithms::Run).
bool Fused(const device::Stream& stream, const Matrix& x, Form form, const Matrix& weight,
           const Matrix& y, Epilogue epilogue, const Matrix& bias, const Matrix& aux,
           const FunctionRef<void()>* apart = nullptr) {
  Product product = MakeProduct(Form::kPlain, x, form, weight, y, false);
  product.epilogue = epilogue;
  product.bias = bias.data;
  product.aux = aux.data;
  product.aux_stride = aux.Empty() ? 0 : aux.stride;
  return GpuLibrariesOf(stream).Run(stream, product, apart);
}

// y = x form(weight) + bias. bias: Empty() or [1, out].
void BiasedProduct(const device::Stream& stream, const Linear& linear, const Matrix& x,
                   const Matrix& bias, const Matrix& y) {
  if (Fp8Forward(stream, linear, x, bias, y)) return;
  if (!bias.Empty() && bias.dtype == y.dtype && HasEpilogues(x, y) &&
      Fused(stream, x, linear.form, linear.weight, y, Epilogue::kBias, bias, {})) {
    return;
  }
  MatrixMultiply(stream, Form::kPlain, x, linear.form, linear.weight, y, false);
  if (!bias.Empty()) AddBias(stream, y, bias);
}

// Product with the activation in its epilogue. Returns false, and does nothing, if that is
// impossible or `apart` is faster.
bool FusedActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                     const Matrix& bias, ActivationKind kind, const Matrix& pre, const Matrix& out,
                     FunctionRef<void()> apart) {
  if (!HasEpilogues(x, out) || (!bias.Empty() && bias.dtype != out.dtype)) return false;
  if (kind == ActivationKind::kRelu && pre.data == out.data) {
    const Epilogue epilogue = bias.Empty() ? Epilogue::kRelu : Epilogue::kReluBias;
    return Fused(stream, x, linear.form, linear.weight, out, epilogue, bias, {});
  }
  if (kind != ActivationKind::kGelu || !IsAux(pre, out)) return false;
  const Epilogue epilogue = bias.Empty() ? Epilogue::kGelu : Epilogue::kGeluBias;
  return Fused(stream, x, linear.form, linear.weight, out, epilogue, bias, pre, &apart);
}

// dweight += x^T dy (or its transpose), with an epilogue that sums dy for the layer's biases.
// Returns false, and does nothing, if that is impossible or slower than separate passes.
bool FusedBiasGradients(const device::Stream& stream, const Linear& linear, const Matrix& x,
                        const Matrix& dy, const Matrix& dweight) {
  const bool transposed = linear.form == Form::kTransposed;
  const std::int64_t bytes = dy.columns * std::int64_t{sizeof(float)};
  if (linear.biases == nullptr || linear.biases->alike || linear.biases->parts[0].sums.Empty() ||
      x.Size() == 0 || dy.Size() == 0 || dweight.dtype != Dtype::kFloat32 ||
      2 * bytes > stream.gpu->scratch_bytes) {
    return false;
  }
  const Product plain = MakeProduct(Form::kTransposed, transposed ? dy : x, Form::kPlain,
                                    transposed ? x : dy, dweight, true);
  Product product = plain;
  product.epilogue = transposed ? Epilogue::kSumsOfA : Epilogue::kSumsOfB;
  product.bias = stream.gpu->scratch;
  // The two calls that the epilogue replaces, to compare times; nobody reads their sums in `end`.
  std::byte* const end = stream.gpu->scratch + stream.gpu->scratch_bytes - bytes;
  const auto apart = [&] {
    GpuLibrariesOf(stream).Try(stream, plain);
    ColumnSum(stream, dy, {end, Dtype::kFloat32, 1, dy.columns, dy.columns}, {});
  };
  const FunctionRef<void()> timed = apart;
  if (!GpuLibrariesOf(stream).Run(stream, product, &timed)) return false;
  for (const BiasGradients::Sum& part : linear.biases->parts) {
    if (part.sums.Empty()) continue;
    Accumulate(stream, Dtype::kFloat32, part.sums.columns,
               ElementAt(stream.gpu->scratch, Dtype::kFloat32, part.first), part.sums.data);
  }
  return true;
}

}  // namespace

void LinearForward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                   const Matrix& bias, const Matrix& y, FunctionRef<void(const Part& rows)> then) {
  if (y.rows == 0) return;
  BiasedProduct(stream, linear, x, bias, y);
  then({0, y.rows});
}

void LinearActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                      const Matrix& bias, ActivationKind kind, const Dropout& dropout,
                      const Matrix& pre, const Matrix& out) {
  if (pre.rows == 0) return;
  // The activation's pass also adds the bias.
  const auto apart = [&] {
    MatrixMultiply(stream, Form::kPlain, x, linear.form, linear.weight, pre, false);
    ActivationForward(stream, kind, pre, bias, dropout, out);
  };
  if (Fp8Forward(stream, linear, x, {}, pre)) {
    return ActivationForward(stream, kind, pre, bias, dropout, out);
  }
  if (!dropout.Active() && FusedActivation(stream, linear, x, bias, kind, pre, out, apart)) return;
  apart();
}

void LinearInputGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                         const Matrix& dx) {
  if (dx.rows == 0 || Fp8InputGradient(stream, linear, dy, dx)) return;
  MatrixMultiply(stream, Form::kPlain, dy, Opposite(linear.form), linear.weight, dx, false);
}

void LinearActivationGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                              ActivationKind kind, const Matrix& from, const Dropout& dropout,
                              const Matrix& dhidden, const Matrix& dpre) {
  if (dhidden.rows == 0) return;
  // The fused kernel writes only dpre: if dhidden is wanted too, two kernels are needed.
  const bool fused = kind == ActivationKind::kGelu && !dropout.Active() &&
                     dpre.data == dhidden.data && dpre.stride == dhidden.stride &&
                     HasEpilogues(dy, dpre) && IsAux(from, dpre) &&
                     !Fp8Takes(stream, linear, dy, dhidden);
  const auto in_two = [&] {
    LinearInputGradient(stream, linear, dy, dhidden);
    ActivationBackward(stream, kind, from, dropout, dhidden, dpre);
  };
  const FunctionRef<void()> apart = in_two;
  if (fused && Fused(stream, dy, Opposite(linear.form), linear.weight, dpre,
                     Epilogue::kGeluGradient, {}, from, &apart)) {
    return;
  }
  in_two();
}

void LinearWeightGradient(const device::Stream& stream, const Linear& linear, const Matrix& x,
                          const Matrix& dy, const Matrix& dweight) {
  const bool fp8 = Fp8WeightGradient(stream, linear, x, dy, dweight);
  if (!fp8 && FusedBiasGradients(stream, linear, x, dy, dweight)) return;
  const bool transposed = linear.form == Form::kTransposed;
  if (!fp8) {
    MatrixMultiply(stream, Form::kTransposed, transposed ? dy : x, Form::kPlain,
                   transposed ? x : dy, dweight, true);
  }
  AddBiasGradients(stream, linear, dy, ColumnSum);
}

// On the GPU: overwrites c, or adds to it with `accumulate`.

void MatrixMultiply(const device::Stream& stream, Form form_a, const Matrix& a, Form form_b,
                    const Matrix& b, const Matrix& c, bool accumulate) {
  if (stream.canonical) {
    throw RunError("There is no canonical product on a GPU.",
                   "Choose run.device = cpu with run.canonical.");
  }
  if (c.rows == 0 || c.columns == 0) return;
  const Product product = MakeProduct(form_a, a, form_b, b, c, accumulate);
  if (product.inner > 0) return Multiply(stream, product);
  if (!accumulate) Clear(stream, c);
}

}  // namespace trireme::kernels::cuda
