// Attention by cuDNN against the CPU's.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "attention_testing.hpp"
#include "kernels/backends.hpp"
#include "kernels/cuda/attention.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::test {
namespace {

using kernels::AttentionShape;
using kernels::KeyValueBlock;

// cuDNN's attention against our own kernels, on a card: the choice between them must change no more
// than rounding. Conversions between the two, which need no cuDNN.

constexpr Dtype kAttentionCudnnType = Dtype::kBfloat16, kSum = Dtype::kFloat32;

struct Calls {
  decltype(kernels::AttentionForward)::Function* forward;
  decltype(kernels::AttentionBackward)::Function* backward;
};
using Chosen = kernels::AttentionBy<kernels::cuda::Attend>;
using Own = kernels::AttentionBy<kernels::cuda::OwnAttention>;
constexpr Calls kChosen = {&Chosen::Forward, &Chosen::Backward};
constexpr Calls kOwn = {&Own::Forward, &Own::Backward};

// A problem's operands on the card, in bf16 and without dropout.
class AttentionCudnnOperands {
 public:
  AttentionCudnnOperands(const device::Stream& stream, const AttentionProblem& p)
      : stream_(stream),
        begins_(stream, p.begins),
        shape_(p.shape),
        documents_(!p.begins.empty()),
        qkv_(stream, kAttentionCudnnType, p.Rows(), p.shape.Width(), p.qkv),
        dout_(stream, kAttentionCudnnType, p.Rows(), p.Queries(), p.dout),
        out_(stream, kAttentionCudnnType, p.Rows(), p.Queries(), NoNumbers(p.Rows() * p.Queries())),
        lse_(stream, kSum, p.Rows(), p.shape.heads, NoNumbers(p.Rows() * p.shape.heads)),
        dqkv_(stream, kAttentionCudnnType, p.Rows(), p.shape.Width(),
              NoNumbers(p.Rows() * p.shape.Width())),
        elements_(
            kernels::cuda::AttentionScratch(stream, WithBegins(), kAttentionCudnnType, false)),
        scratch_(stream, std::vector<float>(static_cast<std::size_t>(elements_))) {}

  // Queues both passes.
  void Run(const Calls& calls) const {
    const kernels::Matrix scratch = {scratch_.Data(), kSum, 1, elements_, elements_};
    calls.forward(stream_, shape_, qkv_.View(), {}, out_.View(), lse_.View(), scratch);
    calls.backward(stream_, shape_, qkv_.View(), {}, out_.View(), dout_.View(), lse_.View(),
                   dqkv_.View(), scratch);
  }
  AttentionResults Results() const { return {out_.Values(), lse_.Values(), dqkv_.Values()}; }
  void SetBegins(const std::vector<std::int32_t>& begins) const {
    device::CopyIn(stream_, begins.data(), begins_.Data(),
                   static_cast<std::int64_t>(begins.size() * sizeof begins[0]));
  }
  // Of out, lse and dqkv, one after another.
  std::vector<unsigned char> Bits() const {
    std::vector<unsigned char> all;
    for (const GpuMatrix* m : {&out_, &lse_, &dqkv_}) {
      const auto bits = m->Bits();
      all.insert(all.end(), bits.begin(), bits.end());
    }
    return all;
  }

 private:
  const AttentionShape& WithBegins() {
    if (documents_) shape_.begins = begins_.As<std::int32_t>();
    return shape_;
  }

  const device::Stream& stream_;
  test::OnGpu begins_;
  AttentionShape shape_;
  bool documents_;
  GpuMatrix qkv_, dout_, out_, lse_, dqkv_;
  std::int64_t elements_;
  test::OnGpu scratch_;
};

class CudnnAttentionTest : public CudnnOnGpu {
 protected:
  AttentionResults Run(const AttentionProblem& p, const Calls& calls) const {
    const AttentionCudnnOperands operands(Stream(), p);
    operands.Run(calls);
    return operands.Results();
  }
  // Otherwise our own kernels would be compared with themselves.
  void ExpectServed(const AttentionShape& shape) const {
    for (const bool backward : {false, true}) {
      EXPECT_TRUE(kernels::cuda::CudnnServes(Stream(), shape, kAttentionCudnnType, backward))
          << shape.heads << " heads, length " << shape.length
          << (backward ? ", backward" : ", forward");
    }
  }
};

TEST_F(CudnnAttentionTest, AgreesWithOurOwn) {
#ifdef TRIREME_EMULATED
  const AttentionShape shapes[] = {{2, 128, 2, 2, 64}, {3, 200, 2, 1, 64}, {1, 133, 3, 3, 80}};
#else
  const AttentionShape shapes[] = {{2, 128, 2, 2, 64},
                                   {2, 512, 4, 2, 64},
                                   {1, 1024, 4, 1, 128},
                                   {3, 200, 2, 1, 64},
                                   {1, 333, 3, 3, 80}};
#endif
  for (AttentionShape shape : shapes) {
    if (shape.sequences == 3) shape.divisor = 13;
    const AttentionProblem problem(shape, 0);
    ExpectServed(shape);
    // Weights meet values in bf16 there.
    AttentionTolerance tolerance = ToleranceOf(kAttentionCudnnType);
    tolerance.out *= 2, tolerance.lse = 1e-4, tolerance.gradient *= 2;
    ExpectNear(problem, Run(problem, kChosen), Run(problem, kOwn), tolerance,
               Describe(problem, kAttentionCudnnType));
  }
}

// The second cuts its batch into pieces; a race needs many blocks and several runs to show.
TEST_F(CudnnAttentionTest, TheSameBitsTenTimes) {
#ifdef TRIREME_EMULATED
  const AttentionShape shapes[] = {{2, 128, 4, 2, 32}};
#else
  const AttentionShape shapes[] = {
      {2, 512, 4, 2, 64}, {16, 1024, 12, 12, 64}, {2, 4096, 32, 8, 128}};
#endif
  for (const AttentionShape& shape : shapes) {
    ExpectServed(shape);
    const AttentionCudnnOperands operands(Stream(), AttentionProblem(shape, 0));
    operands.Run(kChosen);
    const auto first = operands.Bits();
    for (int i = 1; i < 10; ++i) {
      operands.Run(kChosen);
      // Not EXPECT_EQ, which would print them.
      EXPECT_TRUE(operands.Bits() == first) << "run " << i << ", length " << shape.length;
    }
  }
}

// Memory that a recorded graph reads must be there when it is launched later.
TEST_F(CudnnAttentionTest, TheSameBitsFromARecording) {
  const AttentionProblem problem({3, 200, 2, 1, 64}, 0);
  ExpectServed(problem.shape);
  const AttentionCudnnOperands at_once(Stream(), problem), recorded(Stream(), problem);
  at_once.Run(kChosen);
  const auto want = at_once.Bits();
  device::Graph graph;
  graph.Begin(Stream());
  recorded.Run(kChosen);
  graph.End(Stream());
  for (int i = 0; i < 3; ++i) {
    // The host's memory is used anew.
    const std::vector<std::vector<float>> others(1000, std::vector<float>(64 << i, 1e30F));
    graph.Launch(Stream());
    Synchronise();
    EXPECT_TRUE(recorded.Bits() == want) << "launch " << i;
  }
}

// A problem whose sequences are documents.
AttentionProblem WithDocuments(const AttentionShape& shape, std::vector<std::int32_t> begins) {
  AttentionProblem problem(shape, 0);
  problem.begins = std::move(begins);
  return problem;
}
AttentionProblem WithDocuments(const AttentionShape& shape, std::int64_t mean) {
  return WithDocuments(shape, RandomBegins(shape.sequences, shape.length, mean, 3));
}

class CudnnDocumentsTest : public CudnnAttentionTest {
 protected:
  // A card's cuDNN before 9.25 keeps [length, length] of every entry in its backward pass, and
  // serves short sequences alone.
  void ExpectServedByDocument(AttentionShape shape, bool backward = true) const {
    shape.begins = &some_begins_;
    for (const bool pass : {false, true}) {
      if (pass && !backward) continue;
      EXPECT_TRUE(kernels::cuda::CudnnServes(Stream(), shape, kAttentionCudnnType, pass))
          << "length " << shape.length << (pass ? ", backward" : ", forward");
    }
  }
  void ExpectLikeOthers(const AttentionProblem& problem) {
    const AttentionResults got = Run(problem, kChosen);
    AttentionTolerance tolerance = ToleranceOf(kAttentionCudnnType);
    tolerance.out *= 2, tolerance.lse = 1e-4, tolerance.gradient *= 2;
    const std::string what = Describe(problem, kAttentionCudnnType) + " by document";
    ExpectNear(problem, got, problem.OnCpu(), tolerance, what + ", fp64: ");
    ExpectNear(problem, got, Run(problem, kOwn), tolerance, what + ", our own: ");
  }

 private:
  std::int32_t some_begins_ = 0;
};

TEST_F(CudnnDocumentsTest, AgreeWithFp64AndOurOwn) {
  for (const AttentionShape& shape : {AttentionShape{2, 200, 4, 2, 32},
                                      {1, 130, 3, 3, 16},
                                      {3, 300, 2, 1, 64},
                                      {2, 96, 2, 2, 8}}) {
    ExpectServedByDocument(shape);
    ExpectLikeOthers(WithDocuments(shape, 70));
  }
}

// Four entries a sequence: the first has one document, the second four, the third five, the fourth
// one a token. The last two are our own kernels'.
TEST_F(CudnnDocumentsTest, TooManyAreLeftToOurOwn) {
  const AttentionShape shape = {4, 160, 4, 2, 32};
  std::vector<std::int32_t> begins;
  const auto add = [&](std::int32_t each) {
    for (std::int32_t t = 0; t < 160; ++t) begins.push_back(t / each * each);
  };
  add(160), add(40), add(32), add(1);
  const AttentionProblem problem = WithDocuments(shape, begins);
  ExpectServedByDocument(shape);
  ExpectLikeOthers(problem);
  const AttentionResults got = Run(problem, kChosen), own = Run(problem, kOwn);
  const std::int64_t columns = problem.Queries(), width = shape.Width();
  const auto differ = [&](const Values& a, const Values& b, std::int64_t sequence,
                          std::int64_t each) {
    const auto first = static_cast<std::ptrdiff_t>(sequence * shape.length * each);
    return !std::equal(a.begin() + first, a.begin() + first + shape.length * each,
                       b.begin() + first);
  };
  for (std::int64_t sequence = 0; sequence < 4; ++sequence) {
    EXPECT_EQ(differ(got.out, own.out, sequence, columns), sequence < 2) << sequence;
    EXPECT_EQ(differ(got.dqkv, own.dqkv, sequence, width), sequence < 2) << sequence;
  }
}

// Another batch has other documents, and the same graph: places and lengths are found when it runs.
TEST_F(CudnnDocumentsTest, ARecordingServesEveryBatch) {
  const AttentionShape shape = {2, 200, 2, 1, 64};
  const AttentionProblem first = WithDocuments(shape, 70);
  AttentionProblem second = first;
  second.begins = RandomBegins(2, 200, 50, 9);
  ASSERT_NE(first.begins, second.begins);
  const AttentionCudnnOperands want(Stream(), second), recorded(Stream(), first);
  want.Run(kChosen);
  device::Graph graph;
  graph.Begin(Stream());
  recorded.Run(kChosen);
  graph.End(Stream());
  graph.Launch(Stream());
  recorded.SetBegins(second.begins);
  graph.Launch(Stream());
  Synchronise();
  EXPECT_TRUE(recorded.Bits() == want.Bits());
}

TEST_F(CudnnDocumentsTest, WorkspaceAndRefusalsDecide) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  static constexpr std::int32_t kSome = 0;
  AttentionShape shape = {1, 4096, 8, 2, 64};
  shape.begins = &kSome;
  const auto serves = [&](bool backward) {
    RenewLibraries();
    return kernels::cuda::CudnnServes(Stream(), shape, kAttentionCudnnType, backward);
  };
  EXPECT_TRUE(serves(false));
  EXPECT_FALSE(serves(true));  // 32 entries * 8 heads * 32 MiB
  {
    const EmulatedCudnn newer("on,92500");
    EXPECT_TRUE(serves(true));
    // The workspace is in the scratch.
    const std::int64_t workspace = 4096 * 4 * (8 + 768 + 2 * 4 * 768);  // bytes
    EXPECT_GE(kernels::cuda::AttentionScratch(Stream(), shape, kAttentionCudnnType, false),
              kernels::gpu::AttentionScratch(Stream(), shape, kAttentionCudnnType, false) +
                  workspace / 4);
  }
  const EmulatedCudnn refusing("on,92500,no_backward");
  EXPECT_FALSE(serves(true));
  const AttentionProblem problem = WithDocuments({2, 200, 2, 1, 64}, 70);
  ExpectServedByDocument(problem.shape, false);
  ExpectLikeOthers(problem);
}

// Heads that share keys may want more than pieces usually may: a part of the card's memory, 16 GiB
// in the emulator, unless the workspace grows with the length alone.
TEST_F(CudnnAttentionTest, WorkspaceDecides) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  const auto serves = [&](std::int64_t shared) {
    return kernels::cuda::CudnnServes(Stream(), {1, 8192, shared, 1, 64}, kAttentionCudnnType,
                                      true);
  };
  EXPECT_TRUE(serves(4));    // 512 MiB
  EXPECT_TRUE(serves(5));    // 640
  EXPECT_FALSE(serves(16));  // 2,048
  EXPECT_TRUE(
      kernels::cuda::CudnnServes(Stream(), {1, 8192, 16, 1, 64}, kAttentionCudnnType, false));
}

TEST_F(CudnnAttentionTest, LinearWorkspaceServesAnyLength) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  const EmulatedCudnn linear("on,linear");
  EXPECT_TRUE(
      kernels::cuda::CudnnServes(Stream(), {1, 8192, 16, 1, 64}, kAttentionCudnnType, true));
}

// The emulator's cuDNN has other last bits in every such run; its workspace grows with the length
// alone.
TEST_F(CudnnAttentionTest, NoFixedOrderIfNoneIsAsked) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  auto& context = const_cast<device::GpuContext&>(*Stream().gpu);
  const AttentionShape shape = {2, 128, 4, 2, 32}, large = {1, 8192, 16, 1, 64};
  const AttentionCudnnOperands operands(Stream(), AttentionProblem(shape, 0));
  const auto bits = [&] {
    operands.Run(kChosen);
    return operands.Bits();
  };
  const auto ordered = bits();
  context.deterministic = false;
  const auto first = bits(), second = bits();
  const bool serves = kernels::cuda::CudnnServes(Stream(), large, kAttentionCudnnType, true);
  context.deterministic = true;
  EXPECT_FALSE(first == second);
  EXPECT_TRUE(serves);
  EXPECT_TRUE(bits() == ordered);
}

TEST_F(CudnnAttentionTest, OneRefusedPassIsLeftToOurOwn) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  const AttentionProblem problem({2, 128, 2, 1, 64}, 0);
  const AttentionResults own = Run(problem, kOwn), both = Run(problem, kChosen);
  const EmulatedCudnn forward_only("on,no_backward");
  RenewLibraries();
  const AttentionCudnnOperands operands(Stream(), problem);
  operands.Run(kChosen);
  const AttentionResults got = operands.Results();
  EXPECT_EQ(got.out, both.out);
  EXPECT_NE(got.out, own.out);
  EXPECT_NE(got.dqkv, both.dqkv);
  ExpectNear(problem, got, own, ToleranceOf(kAttentionCudnnType),
             Describe(problem, kAttentionCudnnType));
}

class DocumentIndexTest : public GpuTest {};

// Three entries a sequence, pieces of two sequences: one document; three, the last of one token;
// four, which is one too many; two.
TEST_F(DocumentIndexTest, ListsOfPieces) {
  constexpr std::int64_t kLength = 300, kEntries = 3, kPiece = 2, kOfPiece = kPiece * kEntries + 1;
  const std::vector<std::vector<std::int32_t>> firsts = {
      {0}, {0, 256, 299}, {0, 1, 2, 3}, {0, 257}};
  std::vector<std::int32_t> begins;
  for (const auto& of_sequence : firsts) {
    for (std::int32_t t = 0; t < kLength; ++t) {
      begins.push_back(*std::prev(std::upper_bound(of_sequence.begin(), of_sequence.end(), t)));
    }
  }
  const test::OnGpu begins_there(Stream(), begins);
  const test::OnGpu lengths(Stream(), std::vector<std::int32_t>(4 * kEntries, -1));
  const test::OnGpu served(Stream(), std::vector<std::int32_t>(4, -1));
  const test::OnGpu offsets(Stream(), std::vector<std::int64_t>(5 * 2 * kOfPiece, -1));
  kernels::cuda::DocumentIndex index = {
      lengths.As<std::int32_t>(), served.As<std::int32_t>(), {}, {1, 10, 100, 1000, 10000}};
  for (int i = 0; i < 5; ++i) index.offsets[i] = offsets.As<std::int64_t>() + i * 2 * kOfPiece;
  AttentionShape shape = {4, kLength, 2, 2, 8};
  shape.begins = begins_there.As<std::int32_t>();
  kernels::cuda::IndexDocuments(Stream(), shape, kEntries, kPiece, index);
  EXPECT_EQ(lengths.Out<std::int32_t>(),
            (std::vector<std::int32_t>{300, 0, 0, 256, 43, 1, 0, 0, 0, 257, 43, 0}));
  EXPECT_EQ(served.Out<std::int32_t>(), (std::vector<std::int32_t>{1, 1, 0, 1}));
  const std::vector<std::int64_t> rows = {0, 300, 300, 300, 556, 599, 600,
                                          0, 0,   0,   300, 557, 600, 600};
  std::vector<std::int64_t> want;
  for (const std::int64_t stride : {1, 10, 100, 1000, 10000}) {
    for (const std::int64_t row : rows) want.push_back(row * stride);
  }
  EXPECT_EQ(offsets.Out<std::int64_t>(), want);
}

class AttentionChoiceTest : public AttentionOnGpu {};

// No request to cuDNN, and no scratch planned for it, if it will not be called.
TEST_F(AttentionChoiceTest, PlansForWhatIsCalled) {
  const AttentionShape shape = {2, 128, 2, 2, 64}, short_one = {2, 64, 2, 2, 64};
  const auto scratch = [&](const AttentionShape& of, Dtype dtype) {
    return kernels::cuda::AttentionScratch(Stream(), of, dtype, false);
  };
  const auto own = [&](const AttentionShape& of) {
    return kernels::gpu::AttentionScratch(Stream(), of, kAttentionCudnnType, false);
  };
  EXPECT_EQ(scratch(shape, Dtype::kFloat32), own(shape));
  EXPECT_EQ(scratch(short_one, kAttentionCudnnType), own(short_one));
  for (const bool backward : {false, true}) {
    EXPECT_FALSE(kernels::cuda::CudnnServes(Stream(), shape, Dtype::kFloat32, backward));
    EXPECT_FALSE(kernels::cuda::CudnnServes(Stream(), short_one, kAttentionCudnnType, backward));
    if (kernels::cuda::CudnnName().empty()) {
      EXPECT_FALSE(kernels::cuda::CudnnServes(Stream(), shape, kAttentionCudnnType, backward));
    }
  }
}

class AttentionLseTest : public GpuTest {};

TEST_F(AttentionLseTest, PackedAndBack) {
  const AttentionShape shape = {2, 37, 3, 1, 8};
  const std::int64_t rows = shape.sequences * shape.length;
  Values values(static_cast<std::size_t>(rows * shape.heads));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  const auto lse = OnGpuAs(Stream(), Dtype::kFloat32, Layout::kOdd, shape.heads, values);
  const auto again =
      OnGpuAs(Stream(), Dtype::kFloat32, Layout::kOdd, shape.heads, NoNumbers(rows * shape.heads));
  const test::OnGpu packed(Stream(), std::vector<float>(values.size()));
  kernels::cuda::PackLse(Stream(), kernels::cuda::WholeWindow(shape), lse->View(),
                         packed.As<float>());
  kernels::cuda::UnpackLse(Stream(), kernels::cuda::WholeWindow(shape), packed.As<float>(),
                           again->View());
  EXPECT_EQ(again->Values(), values);
  EXPECT_TRUE(again->GapsUntouched());
  // Sequence 1, head 2, position 5.
  const std::size_t at = (1 * 3 + 2) * 37 + 5, from = (37 + 5) * 3 + 2;
  EXPECT_EQ(packed.Out<float>()[at], static_cast<float>(from));
}

// Blocks of ring attention by cuDNN, merged by our own kernels, against attention to whole
// sequences on the CPU in fp64. Calls are those of parallel::RingAttention.

constexpr Dtype kAttentionCudnnPartType = Dtype::kBfloat16;

// A rank's operands.
struct Rank {
  AttentionShape shape;
  std::unique_ptr<GpuMatrix> qkv, out, dout, lse, dqkv, scratch;
};

class CudnnPartTest : public CudnnOnGpu {
 protected:
  std::unique_ptr<GpuMatrix> Fresh(Dtype type, std::int64_t rows, std::int64_t columns) const {
    return std::make_unique<GpuMatrix>(Stream(), type, rows, columns, NoNumbers(rows * columns));
  }

  Rank MakeRank(const AttentionProblem& p, const Positions& at, bool dropout) const {
    Rank rank;
    AttentionShape& shape = rank.shape = p.shape;
    shape.length = at.Count(), shape.positions = at;
    const std::int64_t rows = shape.sequences * shape.length, width = shape.Width();
    const auto of = [&](const Values& whole, std::int64_t columns) {
      return std::make_unique<GpuMatrix>(Stream(), kAttentionCudnnPartType, rows, columns,
                                         RowsAt(whole, columns, p.shape, at));
    };
    rank.qkv = of(p.qkv, width), rank.dout = of(p.dout, p.Queries());
    rank.out = Fresh(kAttentionCudnnPartType, rows, p.Queries()),
    rank.dqkv = Fresh(kAttentionCudnnPartType, rows, width);
    rank.lse = Fresh(Dtype::kFloat32, rows, shape.heads);
    const std::int64_t elements = kernels::cuda::AttentionPartScratch(
        Stream(), shape, std::max(at.early.Size(), at.late.Size()), kAttentionCudnnPartType,
        dropout);
    rank.scratch =
        std::make_unique<GpuMatrix>(Stream(), Dtype::kFloat32, 1, elements, NoNumbers(elements));
    return rank;
  }

  void Forward(const Rank& r, const KeyValueBlock& block, const Part& tasks) const {
    Chosen::PartForward(Stream(), r.shape, tasks, r.qkv->View(), block, {}, r.out->View(),
                        r.lse->View(), r.scratch->View());
  }
  void Backward(const Rank& r, const KeyValueBlock& block, const kernels::Matrix& dblock,
                const Part& tasks) const {
    Chosen::PartBackward(Stream(), r.shape, tasks, r.qkv->View(), block, {}, r.out->View(),
                         r.dout->View(), r.lse->View(), r.dqkv->View(), dblock, r.scratch->View());
  }

  void AddRank(const AttentionProblem& p, const Cut& cut, std::size_t number, bool dropout,
               AttentionResults& sum) const {
    const Positions& own = cut[number];
    const Rank r = MakeRank(p, own, dropout);
    const std::int64_t queries = p.Queries(), width = p.shape.Width(), keys = width - queries;
    const Part all = {0, kernels::AttentionPartTasks(r.shape)};
    const auto packed = [&](std::size_t step) {
      const Positions& at = cut[(number + cut.size() - step) % cut.size()];
      const Values block = ColumnsOf(RowsAt(p.qkv, width, p.shape, at), width, queries, width);
      return std::pair(at,
                       std::make_unique<GpuMatrix>(Stream(), kAttentionCudnnPartType,
                                                   p.shape.sequences * at.Count(), keys, block));
    };
    kernels::cuda::AttentionPartStart(Stream(), r.out->View(), r.lse->View());
    for (std::size_t step = 0; step < cut.size(); ++step) {
      const auto [at, data] = packed(step);
      Forward(r, {at, data->View()}, all);
      Synchronise();
    }
    kernels::cuda::AttentionPartStartBackward(Stream(), r.shape, r.dqkv->View(), r.scratch->View());
    const KeyValueBlock mine = {own, r.qkv->View().Columns(queries, keys)};
    const kernels::Matrix my_gradient = r.dqkv->View().Columns(queries, keys);
    const std::int64_t middle = kernels::AttentionPartHalf(Stream(), r.shape);
    Backward(r, mine, my_gradient, {0, middle});
    for (std::size_t step = 1; step < cut.size(); ++step) {
      const auto [at, data] = packed(step);
      const auto gradient = Fresh(kAttentionCudnnPartType, data->View().rows, keys);
      Backward(r, {at, data->View()}, gradient->View(), all);
      AddRowsAt(gradient->Values(), keys, p.shape, at, queries, width, sum.dqkv);
    }
    Backward(r, mine, my_gradient, {middle, all.end});
    AddRowsAt(r.out->Values(), queries, p.shape, own, 0, queries, sum.out);
    AddRowsAt(r.lse->Values(), p.shape.heads, p.shape, own, 0, p.shape.heads, sum.lse);
    AddRowsAt(r.dqkv->Values(), width, p.shape, own, 0, width, sum.dqkv);
  }

  AttentionResults InParts(const AttentionProblem& p, int ranks, bool dropout = false) const {
    const auto zeros = [&](std::int64_t columns) {
      return Values(static_cast<std::size_t>(p.Rows() * columns));
    };
    AttentionResults sum = {zeros(p.Queries()), zeros(p.shape.heads), zeros(p.shape.Width())};
    const Cut cut = RingCut(p.shape.length, ranks);
    for (std::size_t rank = 0; rank < cut.size(); ++rank) AddRank(p, cut, rank, dropout, sum);
    return sum;
  }
  AttentionResults InPartsByOurOwn(const AttentionProblem& p, int ranks) {
    const auto before = std::exchange(Context().attention, device::AttentionKernels::kOwn);
    AttentionResults own = InParts(p, ranks);
    Context().attention = before;
    return own;
  }
  device::GpuContext& Context() { return const_cast<device::GpuContext&>(*Stream().gpu); }
};

TEST_F(CudnnPartTest, BlocksOfARingMakeTheWhole) {
  const AttentionShape shapes[] = {
      {2, 288, 4, 2, 32}, {1, 288, 6, 3, 16}, {3, 288, 2, 2, 8}, {1, 576, 2, 1, 64}};
  for (const AttentionShape& shape : shapes) {
    for (const int ranks : {2, 3, 4}) {
      if (shape.length / ranks <= 64) continue;
      const AttentionProblem problem(shape, 0);
      AttentionTolerance tolerance = ToleranceOf(kAttentionCudnnPartType);
      tolerance.out *= 2, tolerance.lse = 1e-4, tolerance.gradient *= 4;
      const AttentionResults got = InParts(problem, ranks);
      ExpectNear(
          problem, got, problem.OnCpu(), tolerance,
          Describe(problem, kAttentionCudnnPartType) + "in " + std::to_string(ranks) + " parts: ");
      // Otherwise our own kernels would be compared with the CPU.
      const AttentionResults own = InPartsByOurOwn(problem, ranks);
      EXPECT_NE(got.out, own.out);
      EXPECT_NE(got.dqkv, own.dqkv);
    }
  }
}

TEST_F(CudnnPartTest, TheSameBitsTwice) {
  const AttentionProblem problem({2, 264, 4, 2, 32}, 0);
  const AttentionResults first = InParts(problem, 2), second = InParts(problem, 2);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.lse, second.lse);
  EXPECT_EQ(first.dqkv, second.dqkv);
}

// Blocks of several sizes, of which some have no plan.
TEST_F(CudnnPartTest, UnequalBlocksAreRight) {
  const AttentionProblem problem({1, 269, 2, 1, 32}, 0);
  AttentionTolerance tolerance = ToleranceOf(kAttentionCudnnPartType);
  tolerance.out *= 2, tolerance.lse = 1e-4, tolerance.gradient *= 4;
  ExpectNear(problem, InParts(problem, 3), problem.OnCpu(), tolerance, "unequal blocks: ");
}

// Passes that have no dropout, as an evaluation's, beside some that have: no backward plan is asked
// for.
TEST_F(CudnnPartTest, WithDropoutOnlyForwardPassesAreServed) {
  const AttentionProblem problem({1, 264, 2, 1, 32}, 0);
  const AttentionResults both = InParts(problem, 2);
  RenewLibraries();
  const AttentionResults forward = InParts(problem, 2, true);
  EXPECT_EQ(forward.out, both.out);
  EXPECT_NE(forward.dqkv, both.dqkv);
}

// A plan that is refused leaves its blocks to our own kernels, in the middle of others.
TEST_F(CudnnPartTest, RefusedPassesAreLeftToOurOwn) {
#ifndef TRIREME_EMULATED
  GTEST_SKIP() << "for the emulator, whose cuDNN does as it is told";
#endif
  const EmulatedCudnn forward_only("on,no_backward");
  const AttentionProblem problem({2, 288, 4, 2, 32}, 0);
  AttentionTolerance tolerance = ToleranceOf(kAttentionCudnnPartType);
  tolerance.gradient *= 4;
  ExpectNear(problem, InParts(problem, 2), problem.OnCpu(), tolerance, "no backward pass: ");
}

}  // namespace
}  // namespace trireme::test
