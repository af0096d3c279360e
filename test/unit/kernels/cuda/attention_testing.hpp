// Common parts of the tests of attention on a GPU: a problem with operands that all types hold
// exactly, the CPU's results in fp64, and the same operands on the GPU.
#ifndef TRIREME_TEST_UNIT_KERNELS_CUDA_ATTENTION_TESTING_HPP_
#define TRIREME_TEST_UNIT_KERNELS_CUDA_ATTENTION_TESTING_HPP_

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "documents.hpp"
#include "gpu_testing.hpp"
#include "kernels/cuda/attention.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::test {

// A stream with libraries, of which cuDNN's plans are a part.
class AttentionOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) RenewLibraries();
  }
  // State of its own for what follows.
  void RenewLibraries() {
    libraries_ = kernels::MakeLibraries(Stream(), 0);
    Stream().libraries = libraries_.get();
  }

 private:
  std::unique_ptr<kernels::Libraries> libraries_;
};

// cuDNN of the emulator, as its words have it (test/emulator/cudnn.cpp), while this lives. A card's
// is there or not.
class EmulatedCudnn {
 public:
  explicit EmulatedCudnn(const char* words) { ::setenv("TRIREME_EMULATOR_CUDNN", words, 1); }
  ~EmulatedCudnn() { ::unsetenv("TRIREME_EMULATOR_CUDNN"); }
  EmulatedCudnn(const EmulatedCudnn&) = delete;
  EmulatedCudnn& operator=(const EmulatedCudnn&) = delete;
};

// The same with cuDNN: the emulator's, or a card's. Skipped where it is not built in.
class CudnnOnGpu : public AttentionOnGpu {
 protected:
  void SetUp() override {
    AttentionOnGpu::SetUp();
    if (!IsSkipped() && kernels::cuda::CudnnName().empty()) {
      GTEST_SKIP() << "skipped: this program was built without cuDNN";
    }
  }

 private:
  const EmulatedCudnn cudnn_{"on"};
};

using Values = std::vector<double>;  // of a dense row-major matrix

// Largest difference to fp64 on the CPU, relative to the largest element. fp64 and fp32: the order
// of sums; bf16: results and what the backward pass reads of them are rounded to 8 bits.
struct AttentionTolerance {
  double out, lse, gradient;
};
AttentionTolerance ToleranceOf(Dtype dtype);

// Layout of operands in memory: whole vectors, or one element at a time.
enum class Layout { kAligned, kOdd };

struct AttentionResults {
  Values out, lse, dqkv;  // [rows, heads head_dim], [rows, heads], [rows, Width()]
};

// Operands of attention to whole sequences.
struct AttentionProblem {
  AttentionProblem(const kernels::AttentionShape& shape_of_whole, double probability,
                   double scale = 2);

  std::int64_t Rows() const { return shape.sequences * shape.length; }
  std::int64_t Queries() const { return shape.heads * shape.head_dim; }
  kernels::Dropout DropoutWith(const std::uint64_t* sequence_ordinals) const;
  AttentionResults OnCpu() const;  // in fp64

  kernels::AttentionShape shape;
  double dropout_probability;
  std::vector<std::uint64_t> ordinals;
  std::vector<std::int32_t> begins;       // [rows] of documents; empty: none
  std::vector<std::int32_t> key_lengths;  // [sequences]; empty: no padding
  Values qkv, dout;                       // uniform, with few bits
};

std::string Describe(const AttentionProblem& problem, Dtype dtype);

struct AttentionRun {
  AttentionResults values;
  std::vector<unsigned char> bits;  // of all results
};
// Both passes by our own kernels on the GPU, into matrices of NaN. Checks besides that what lies
// between rows is left alone.
AttentionRun RunOwnAttention(const device::Stream& stream, const AttentionProblem& problem,
                             Dtype dtype, Layout layout);

Values NoNumbers(std::int64_t count);  // to be overwritten: whoever reads them gets NaN

// A matrix of `columns` on the GPU in that layout.
std::unique_ptr<GpuMatrix> OnGpuAs(const device::Stream& stream, Dtype dtype, Layout layout,
                                   std::int64_t columns, const Values& values);

// Columns [begin, end) of a matrix of `columns`.
Values ColumnsOf(const Values& values, std::int64_t columns, std::int64_t begin, std::int64_t end);

using Cut = std::vector<Positions>;  // parts of the ranks; together the sequence
Cut RingCut(std::int64_t length, int ranks);

// The rows of `whole`, a matrix of `columns`, that are at `at` of their sequences.
Values RowsAt(const Values& whole, std::int64_t columns, const kernels::AttentionShape& shape,
              const Positions& at);
// Adds `part`, of `count` columns, to the columns from `first` on.
void AddRowsAt(const Values& part, std::int64_t count, const kernels::AttentionShape& shape,
               const Positions& at, std::int64_t first, std::int64_t columns, Values& whole);

// Largest difference at most tolerance * max(largest |want|, floor); NaN never passes. A floor
// stands for terms that cancel.
void ExpectNear(const Values& got, const Values& want, double tolerance, const std::string& what,
                double floor = 0);
// All of it: queries', keys' and values' gradients each against their own largest element.
void ExpectNear(const AttentionProblem& problem, const AttentionResults& got,
                const AttentionResults& want, const AttentionTolerance& tolerance,
                const std::string& what);

}  // namespace trireme::test

#endif  // TRIREME_TEST_UNIT_KERNELS_CUDA_ATTENTION_TESTING_HPP_
