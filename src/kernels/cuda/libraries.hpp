// State of a GPU's math libraries (kernels/libraries.hpp): algorithms of products, fp8 scales and
// memory, cuDNN's plans.
#ifndef TRIREME_SRC_KERNELS_CUDA_LIBRARIES_HPP_
#define TRIREME_SRC_KERNELS_CUDA_LIBRARIES_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/algorithms.hpp"
#include "cuda/fp8.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::kernels::cuda {

class GpuLibraries final : public Libraries {
 public:
  GpuLibraries(const device::Stream& stream, int sites);

  std::string Chosen() const override { return algorithms_.Chosen(); }
  bool Adopt(const std::vector<std::string>& texts) override { return algorithms_.Adopt(texts); }
  void Seal() override { algorithms_.Seal(); }
  bool Sealed() const override { return algorithms_.Sealed(); }
  void Reserve(std::int64_t fp8_elements) override { fp8_.Reserve(fp8_elements); }
  void SetTraining(bool training) override { fp8_.SetTraining(training); }
  void QueueLargest(const device::Stream& stream) override { fp8_.QueueLargest(stream); }
  std::span<float> Largest() override { return fp8_.Largest(); }
  void UpdateScales(const device::Stream& stream) override { fp8_.UpdateScales(stream); }
  bool Scaled() const override { return fp8_.Scaled(); }
  std::vector<float> Scales() const override { return fp8_.State(); }
  bool SetScales(const device::Stream& stream, std::span<const float> scales) override {
    return fp8_.SetState(stream, scales);
  }

  // As Algorithms::Run.
  bool Run(const device::Stream& stream, const Product& product,
           const FunctionRef<void()>* apart = nullptr) {
    return algorithms_.Run(stream, product, apart);
  }
  Fp8& Quantiser() { return fp8_; }
  // State of cuDNN, made by its first caller (cudnn_plan.hpp); null before, and without cuDNN.
  std::unique_ptr<device::LibraryState>& Attention() { return attention_; }

 private:
  Algorithms algorithms_;
  Fp8 fp8_;
  std::unique_ptr<device::LibraryState> attention_;
};

// Libraries of the stream. RunError if it has none.
GpuLibraries& GpuLibrariesOf(const device::Stream& stream);

// Queues a product. RunError if cuBLASLt has no algorithm for it.
void Multiply(const device::Stream& stream, const Product& product);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_LIBRARIES_HPP_
