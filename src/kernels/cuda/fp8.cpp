// Scales and memory of fp8 operands.
#include "cuda/fp8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::kernels::cuda {

namespace {

constexpr std::size_t kState = 1 + kFp8History;  // numbers of a tensor
constexpr std::int64_t kBytes = 4;               // of a number

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

// Known from the last steps, but for a tensor that is met first.
void Fp8::FindDelayedScale(const device::Stream& stream, const Matrix& x, int tensor) {
  char& met = met_[static_cast<std::size_t>(tensor)];
  if (met != 0) return;
  Fp8Largest(stream, x, scales_.largest + tensor);
  Fp8FirstScale(stream, scales_, tensor);
  met = 1;
}

void Fp8::FindCurrentScale(const device::Stream& stream, const Matrix& x,
                           int tensor) const {
  unsigned* const largest = scales_.largest + tensor;
  device::SetZero(stream, largest, sizeof(*largest));
  Fp8Largest(stream, x, largest);
  Fp8FirstScale(stream, scales_, tensor);
}

Operand Fp8::Quantise(const device::Stream& stream, int site, Fp8Role role, const Matrix& x,
                      bool transposed, int place) {
  int tensor = site * kFp8Roles + static_cast<int>(role);
  if (site < 0 || tensor >= scales_.tensors || x.dtype != Dtype::kBfloat16) {
    throw RunError(fmt::format("an fp8 operand of linear layer {} of {}, in {}", site,
                               scales_.tensors / kFp8Roles, trireme::NameOf(x.dtype)),
                   "This is a bug in Trireme.");
  }
  std::byte* out = Place(place, x.Size());
  if (training_) {
    FindDelayedScale(stream, x, tensor);
  } else {
    tensor = scales_.tensors + place * kFp8Roles + static_cast<int>(role);
    FindCurrentScale(stream, x, tensor);
  }
  Fp8Round(stream, x, scales_, tensor, transposed, reinterpret_cast<unsigned char*>(out));
  Operand operand;
  operand.data = out;
  operand.type = role == Fp8Role::kGradient ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
  operand.stride = transposed ? x.rows : x.columns;
  operand.scale = scales_.inverse + std::ptrdiff_t{tensor} * kFp8InverseStep;
  return operand;
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
      state[0] = 1;  // as Fp8FirstScale had to leave it
    }
  }
  Upload(stream);
  scaled_ = true;
}

bool Fp8::SetState(const device::Stream& stream, std::span<const float> state) {
  scaled_ = !state.empty() && state.size() == state_.size();
  if (scaled_) {
    std::ranges::copy(state, state_.begin());
  } else {
    std::ranges::fill(state_, 0.0f);
  }
  device::Synchronise(stream);  // an upload may be under way
  Upload(stream);
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

}  // namespace trireme::kernels::cuda
