// Times the algorithms that cuBLASLt proposes for a product.
#include <algorithm>
#include <limits>

#include "cuda/algorithms.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::kernels::cuda {

namespace {

constexpr int kRuns = 4;  // timed together, behind one that is not
// The library's order of proposals is right more often than a difference below this is not noise,
// and runs should choose alike.
constexpr double kClearlyFaster = 0.95;

std::int64_t ResultBytes(const Product& product) {
  const std::int64_t size = product.c_type == CUDA_R_64F    ? 8
                            : product.c_type == CUDA_R_16BF ? 2
                                                            : 4;
  return ((product.rows - 1) * product.c_stride + product.columns) * size;
}

// Where the results of runs go that are only timed: c itself where it is overwritten anyway.
class Target {
 public:
  Target(const device::GpuContext& gpu, const Product& product) : data_(product.c) {
    if (!product.accumulate) return;
    const std::int64_t bytes = ResultBytes(product);
    data_ = gpu.scratch;
    if (bytes <= gpu.scratch_bytes) return;
    data_ = nullptr;
    if (cudaMalloc(&own_, static_cast<std::size_t>(bytes)) == cudaSuccess) data_ = own_;
    cudaGetLastError();  // too little memory is no error here: nothing is timed then
  }
  ~Target() {
    if (own_ != nullptr) cudaFree(own_);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  void* Data() const { return data_; }

 private:
  void* data_;
  void* own_ = nullptr;
};

}  // namespace

const cublasLtMatmulAlgo_t& Fastest(const device::Stream& stream, cublasLtHandle_t handle,
                                    const Plan& plan, const Product& product,
                                    std::span<const cublasLtMatmulHeuristicResult_t> proposals) {
  const Target target(*stream.gpu, product);
  if (target.Data() == nullptr) return proposals[0].algo;
  device::Event begin(stream, true), end(stream, true);
  const auto seconds = [&](const cublasLtMatmulAlgo_t& algorithm) {
    const auto run = [&] {
      return plan.Run(handle, *stream.gpu, product, algorithm, target.Data());
    };
    if (run() != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<double>::infinity();
    begin.Record(stream.gpu->queue);
    for (int i = 0; i < kRuns; ++i) Check(run(), "timing a matrix product");
    end.Record(stream.gpu->queue);
    end.Await();
    return end.SecondsSince(begin);
  };
  const cublasLtMatmulHeuristicResult_t* best = &proposals[0];
  double shortest = seconds(best->algo);
  for (const auto& proposal : proposals.subspan(1)) {
    const double time = seconds(proposal.algo);
    if (time >= kClearlyFaster * shortest) continue;
    shortest = time;
    best = &proposal;
  }
  return best->algo;
}

}  // namespace trireme::kernels::cuda
