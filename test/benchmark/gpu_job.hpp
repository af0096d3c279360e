// Shared by the benchmarks on GPUs: the ranks' cards, opened as the program opens them, without a
// deck's file.
#ifndef TRIREME_TEST_BENCHMARK_GPU_JOB_HPP_
#define TRIREME_TEST_BENCHMARK_GPU_JOB_HPP_

#include <functional>
#include <string>
#include <vector>

#include "trireme/app/job.hpp"

namespace trireme::benchmark {

inline constexpr int kSkipped = 77;  // exit code where a rank sees no GPU

// main(): starts MPI and runs `body` on all ranks, whose exit code is returned. Where a rank sees
// no GPU: says "skipped: no CUDA device" and why, and returns kSkipped.
int OnGpus(int* argc, char*** argv, const std::function<void(const comm::Runtime&)>& body);

// Collective. A job on GPUs: one card a rank (run.share_device=yes: or fewer). deck: lines of the
// form key = value, of [run] first; overrides beat them. AgreedError (exit code 2). `schema` is
// tasks::DeclareAll's and outlives the job.
app::Job MakeGpuJob(const comm::Runtime& runtime, const deck::Schema& schema,
                    const std::string& deck, const std::vector<std::string>& overrides);

// Card, libraries and program, a line each. (The emulator's card says what it is.)
std::string DescribeGpu(const device::GpuContext& gpu);

// The middle one of several times.
double MedianOf(std::vector<double> values);

}  // namespace trireme::benchmark

#endif  // TRIREME_TEST_BENCHMARK_GPU_JOB_HPP_
