// Times the algorithms that cuBLASLt proposes for a product.
#include <algorithm>
#include <limits>

#include "cuda/algorithms.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::kernels::cuda {

namespace {

// The library's order of proposals is right more often than a difference below this is not noise,
// and runs should choose alike.
constexpr double kClearlyFaster = 0.95;
constexpr int kLeastRuns = 4, kMostRuns = 16;  // timed together, after one that is not
constexpr double kRunsSeconds = 1e-3;          // longer than this: no more than kLeastRuns
// While the GPU is busy for so long with something else the host queues all runs: a short product
// takes the GPU less time than the host's call.
constexpr double kLeadSeconds = 250e-6;

class Stopwatch {
 public:
  explicit Stopwatch(const device::Stream& stream)
      : libraries_(LibrariesOf(stream)),
        queue_(stream.gpu->queue),
        begin_(stream, true),
        end_(stream, true) {}
  // Of the GPU, for what `queue_work` queues.
  template <typename QueueWork>
  double Seconds(const QueueWork& queue_work) {
    begin_.Record(queue_);
    queue_work();
    end_.Record(queue_);
    libraries_ != nullptr ? libraries_->Await(end_) : end_.Await();
    return end_.SecondsSince(begin_);
  }

 private:
  const Libraries* libraries_;
  void* queue_;
  device::Event begin_, end_;
};

// Work for kLeadSeconds: zeros for the library's workspace, of which nothing is kept, in pieces
// that cost the host far less time than the GPU.
class Lead {
 public:
  Lead(const device::Stream& stream, Stopwatch& stopwatch) : stream_(stream) {
    constexpr int kPieces = 8, kMostPieces = 64;
    const std::int64_t room = stream.gpu->workspace_bytes;
    bytes_ = std::min(std::int64_t{1} << 20, room);
    QueuePiece();  // may have to be loaded
    double seconds = stopwatch.Seconds([&] { QueuePiece(); });
    while (bytes_ < room && 4 * bytes_ <= room && seconds < kLeadSeconds / kPieces) {
      bytes_ *= 4;
      seconds = stopwatch.Seconds([&] { QueuePiece(); });
    }
    pieces_ = static_cast<int>(std::clamp(kLeadSeconds / seconds, 1.0, double{kMostPieces}));
  }
  void Queue() const {
    for (int i = 0; i < pieces_; ++i) QueuePiece();
  }

 private:
  void QueuePiece() const { device::SetZero(stream_, stream_.gpu->workspace, bytes_); }

  const device::Stream& stream_;
  std::int64_t bytes_ = 0;
  int pieces_ = 1;
};

// How many runs to time together, by the seconds of one.
int RunsFor(double seconds) {
  const double once = std::max(seconds, std::numeric_limits<double>::min());
  return std::clamp(static_cast<int>(std::min(kRunsSeconds / once, double{kMostRuns})), kLeastRuns,
                    kMostRuns);
}

// Times what a call queues, one run on average.
class Timing {
 public:
  explicit Timing(const device::Stream& stream) : stopwatch_(stream), lead_(stream, stopwatch_) {}
  template <typename Run>
  double Seconds(const Run& run, int runs) {
    run();  // may have to be loaded
    lead_.Queue();
    return stopwatch_.Seconds([&] {
      for (int i = 0; i < runs; ++i) run();
    }) / runs;
  }

 private:
  Stopwatch stopwatch_;
  Lead lead_;
};

}  // namespace

const cublasLtMatmulAlgo_t& Fastest(const device::Stream& stream, cublasLtHandle_t handle,
                                    const Plan& plan, const Product& product,
                                    std::span<const cublasLtMatmulHeuristicResult_t> proposals) {
  Timing timing(stream);
  // Seconds of one run, on average; infinite if the library refuses.
  const auto seconds = [&](const cublasLtMatmulAlgo_t& algorithm, int runs) {
    const auto run = [&] {
      return plan.Run(handle, *stream.gpu, product, algorithm, /*trial=*/true);
    };
    if (run() != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<double>::infinity();
    return timing.Seconds([&] { Check(run(), "timing a matrix product"); }, runs);
  };
  const cublasLtMatmulHeuristicResult_t* best = &proposals[0];
  const int runs = RunsFor(seconds(best->algo, 1));
  double shortest = seconds(best->algo, runs);
  for (const auto& proposal : proposals.subspan(1)) {
    const double time = seconds(proposal.algo, runs);
    if (time >= kClearlyFaster * shortest) continue;
    shortest = time;
    best = &proposal;
  }
  return best->algo;
}

bool FasterApart(const device::Stream& stream, cublasLtHandle_t handle, const Plan& plan,
                 const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                 FunctionRef<void()> apart) {
  Timing timing(stream);
  const auto together = [&] {
    Check(plan.Run(handle, *stream.gpu, product, algorithm, /*trial=*/true),
          "timing a matrix product");
  };
  apart();  // its own product may have to be chosen
  const int runs = RunsFor(timing.Seconds(together, 1));
  return timing.Seconds(apart, runs) < kClearlyFaster * timing.Seconds(together, runs);
}

}  // namespace trireme::kernels::cuda
