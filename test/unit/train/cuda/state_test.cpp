// The state of a training on a GPU: masters, batches on their way, what lies on the host, chosen
// products.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "folders.hpp"
#include "gpu_testing.hpp"
#include "listening_libraries.hpp"
#include "one_rank.hpp"
#include "training_run.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/registry.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/train/optimizer.hpp"
#include "trireme/train/training_state.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// Parameters on a GPU: weights in bf16 are the roundings of masters in fp32, which the optimizer
// moves as the CPU moves its weights.

constexpr std::uint32_t kMastersSeed = 7;
constexpr std::int64_t kTargets = 50;
// Relative: a few roundings a step. The moments' roots and quotients are the CPU's to their last
// bits, and what is left is of the size of a rounding of the weights.
constexpr double kFp32 = 1e-6;

using Floats = std::vector<float>;

kernels::ParameterList Parameters() {
  kernels::ParameterList list;
  using kernels::InitialiserKind;
  list.BeginUnit("embedding");
  list.Add({.name = "embedding",
            .shape = {101, 5},
            .initialiser = {InitialiserKind::kNormal, 0.5},
            .decay = true});
  list.BeginUnit("block", true);
  list.Add({.name = "query",
            .shape = {17, 5},
            .initialiser = {InitialiserKind::kUniform, 0.25},
            .decay = true});
  list.Add({.name = "key",
            .shape = {17, 5},
            .initialiser = {InitialiserKind::kUniform, 0.25},
            .decay = true,
            .adjacent = true});
  list.Add({.name = "norm", .shape = {5}, .initialiser = {InitialiserKind::kConstant, 1}});
  return list;
}

// Elements [begin, end) of all parameters on this rank, as with ZeRO; sharded: nothing else is
// stored of the values.
kernels::Ownership Own(std::int64_t size, Part own, bool sharded) {
  kernels::Ownership owns;
  owns.pieces = {{.range = {0, size},
                  .own = own,
                  .value = sharded ? 0 : own.begin,
                  .gradient = own.begin,
                  .moment = 0}};
  owns.values_sharded = sharded;
  owns.values = sharded ? own.Size() : size;
  owns.gradients = size;
  owns.moments = own.Size();
  return owns;
}

// Bytes that a buffer takes.
std::int64_t BufferBytes(std::int64_t bytes) { return CeilDivide(bytes, 128) * 128; }

class Masters : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    cpu_ = kernels::Registry(Parameters(), Dtype::kFloat32);
    cpu_.Initialise(kMastersSeed);
  }
  // A registry of bf16 on the GPU with everything, or as the ownership says.
  void Allocate(kernels::Registry& registry, const kernels::Ownership* owns = nullptr) const {
    kernels::ParameterList list = Parameters();
    const kernels::Ownership all = kernels::OwnAll(list.Size());
    registry = kernels::Registry(std::move(list), Dtype::kBfloat16, owns == nullptr ? all : *owns,
                                 true, Stream());
    registry.Initialise(kMastersSeed);
  }
  template <typename T>
  std::vector<T> Out(const void* data, std::int64_t count) const {
    std::vector<T> host(static_cast<std::size_t>(count));
    device::CopyOut(Stream(), data, host.data(), count * static_cast<std::int64_t>(sizeof(T)));
    return host;
  }
  Floats Wanted(std::int64_t begin, std::int64_t end) const {
    const auto* const values = static_cast<const float*>(cpu_.Values());
    return {values + begin, values + end};
  }
  static std::vector<std::uint16_t> Rounded(const Floats& values) {
    std::vector<std::uint16_t> rounded(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), RoundToBfloat16);
    return rounded;
  }
  kernels::Registry cpu_;
};

TEST_F(Masters, ValuesAreTheirRoundings) {
  kernels::Registry gpu;
  Allocate(gpu);
  const std::int64_t size = gpu.Size();
  EXPECT_EQ(size, cpu_.Size());
  EXPECT_EQ(gpu.Type(), Dtype::kBfloat16);
  EXPECT_EQ(gpu.SumType(), Dtype::kFloat32);
  EXPECT_EQ(gpu.ValueBytes(), BufferBytes(size * 2) + BufferBytes(size * 4));
  EXPECT_EQ(gpu.GradientBytes(), BufferBytes(size * 4));
  EXPECT_EQ(gpu.Value(1).dtype, Dtype::kBfloat16);
  EXPECT_EQ(gpu.Gradient(1).dtype, Dtype::kFloat32);
  ASSERT_NE(gpu.Masters(), nullptr);
  EXPECT_EQ(Out<float>(gpu.Masters(), size), Wanted(0, size));
  EXPECT_EQ(Out<std::uint16_t>(gpu.Values(), size), Rounded(Wanted(0, size)));
}

// A checkpoint holds the masters: those of the CPU's run, bit for bit.
TEST_F(Masters, AreWhatBlocksHold) {
  kernels::Registry gpu;
  Allocate(gpu);
  const train::StateOnHost here = train::StateOnHost(Stream(), gpu.ValueBlocks(0, 1, 1)).Fetch();
  const auto wanted = cpu_.ValueBlocks(0, 1, 1);
  ASSERT_EQ(here.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(here[i].name, wanted[i].name);
    EXPECT_EQ(here[i].dtype, Dtype::kFloat32);
    ASSERT_EQ(here[i].end, wanted[i].end);
    EXPECT_TRUE(std::equal(static_cast<const float*>(here[i].data),
                           static_cast<const float*>(here[i].data) + here[i].end,
                           static_cast<const float*>(wanted[i].data)))
        << wanted[i].name;
  }
}

// Without gradients, as for an evaluation, nobody needs them.
TEST_F(Masters, AreForTrainingOnly) {
  kernels::Registry gpu(Parameters(), Dtype::kBfloat16, false, Stream());
  gpu.Initialise(kMastersSeed);
  EXPECT_EQ(gpu.Masters(), nullptr);
  EXPECT_EQ(Out<std::uint16_t>(gpu.Values(), gpu.Size()), Rounded(Wanted(0, gpu.Size())));
  EXPECT_EQ(gpu.ValueBlocks(0, 1, 1)[0].dtype, Dtype::kBfloat16);
}

TEST_F(Masters, AreOfTheOwnedElementsAlone) {
  const std::int64_t size = cpu_.Size();
  for (const bool sharded : {false, true}) {
    for (const Part own : {Part{0, size / 3}, Part{size / 3, size - 7}, Part{size - 7, size}}) {
      kernels::Registry gpu;
      const kernels::Ownership owns = Own(size, own, sharded);
      Allocate(gpu, &owns);
      EXPECT_EQ(gpu.ValueBytes(), BufferBytes(owns.values * 2) + BufferBytes(own.Size() * 4));
      EXPECT_EQ(Out<float>(gpu.Masters(), own.Size()), Wanted(own.begin, own.end));
      const Part stored = sharded ? own : Part{0, size};
      EXPECT_EQ(Out<std::uint16_t>(gpu.Values(), stored.Size()),
                Rounded(Wanted(stored.begin, stored.end)));
    }
  }
}

// Gradients of one size on both, of the size that a few hundred targets give.
Floats SomeGradients(std::int64_t size, int step) {
  Floats gradients(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = std::sin(static_cast<float>(i * 7 + static_cast<std::size_t>(step) * 13)) * 20;
  }
  return gradients;
}

double Worst(const Floats& got, const Floats& wanted) {
  double worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference =
        std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    worst = std::max(worst, difference / std::max(1e-2, std::abs(static_cast<double>(wanted[i]))));
  }
  return worst;
}

class MastersMove : public Masters, public testing::WithParamInterface<train::OptimizerKind> {};

// The elements of parameters, in their order; what lies between is nobody's.
TEST_P(MastersMove, AsTheWeightsOfTheCpu) {
  constexpr int kSteps = 6;
  const std::int64_t size = cpu_.Size();
  train::OptimizerOptions options{.kind = GetParam(), .weight_decay = 0.1, .clip_norm = 0.8};
  for (const Part own : {Part{0, size}, Part{61, size - 35}}) {
    options.average = own.begin == 0 ? 0 : 0.75;
    kernels::Registry gpu;
    const kernels::Ownership owns = Own(size, own, false);
    kernels::Registry reference(Parameters(), Dtype::kFloat32, owns);
    reference.Initialise(kMastersSeed);
    Allocate(gpu, &owns);
    train::Optimizer wanted(options, reference, {}), got(options, gpu, Stream());
    for (int step = 1; step <= kSteps; ++step) {
      const Floats gradients = SomeGradients(size, step);
      std::copy(gradients.begin(), gradients.end(), static_cast<float*>(reference.Gradients()));
      device::CopyIn(Stream(), gradients.data(), gpu.Gradients(), size * 4);
      const double squares = wanted.GradientSquares();
      got.QueueSquares();
      Synchronise();
      EXPECT_NEAR(got.GradientSquares() / squares, 1, 1e-6);
      const double norm = std::sqrt(squares) / static_cast<double>(kTargets);
      EXPECT_GT(norm, options.clip_norm);
      wanted.Step(step, 1e-2, norm, kTargets, step % 2 == 0);
      got.Step(step, 1e-2, norm, kTargets, step % 2 == 0);
      const Floats left = Out<float>(gpu.Gradients(), size);
      if (step % 2 == 0) {
        EXPECT_THAT(left, testing::Each(0.0F));
      } else {
        EXPECT_EQ(left, gradients);
      }
    }
    const auto* const values = static_cast<const float*>(reference.Values());
    const Floats masters = Out<float>(gpu.Masters(), own.Size());
    EXPECT_LT(Worst(masters, {values + own.begin, values + own.end}), kFp32);
    EXPECT_GT(Worst(masters, Wanted(own.begin, own.end)), 1e-2);  // moved
    // Copies are roundings of the masters where they are owned, and as they were elsewhere.
    const auto copies = Out<std::uint16_t>(gpu.Values(), size);
    auto expected = Rounded(Wanted(0, size));
    const auto moved = Rounded(masters);
    std::copy(moved.begin(), moved.end(), expected.begin() + own.begin);
    EXPECT_EQ(copies, expected);
    const train::StateOnHost moments = train::StateOnHost(Stream(), got.Blocks(0, 1, 1)).Fetch();
    const auto reference_moments = wanted.Blocks(0, 1, 1);
    ASSERT_EQ(moments.size(), reference_moments.size());
    for (std::size_t i = 0; i < moments.size(); ++i) {
      const auto count = static_cast<std::size_t>(moments[i].end - moments[i].begin);
      const auto* const a = static_cast<const float*>(moments[i].data);
      const auto* const b = static_cast<const float*>(reference_moments[i].data);
      EXPECT_EQ(moments[i].begin, reference_moments[i].begin);
      EXPECT_LT(Worst({a, a + count}, {b, b + count}), kFp32) << moments[i].name;
    }
    if (options.average == 0) continue;
    // Exchanged, masters are the averages, and copies their roundings; then all is as before.
    got.ExchangeAverage();
    const kernels::StateBlock& average = moments[0];
    const Floats exchanged = Out<float>(gpu.Masters(), own.Size());
    const auto rounded = Out<std::uint16_t>(gpu.Values(), size);
    for (std::int64_t i = average.begin; i < average.end; ++i) {
      const auto at = static_cast<std::size_t>(i - own.begin);
      const float mean = static_cast<const float*>(average.data)[i - average.begin];
      ASSERT_EQ(exchanged[at], mean) << i;
      ASSERT_NE(exchanged[at], masters[at]) << i;
      ASSERT_EQ(rounded[static_cast<std::size_t>(i)], RoundToBfloat16(mean)) << i;
    }
    got.ExchangeAverage();
    EXPECT_EQ(Out<float>(gpu.Masters(), own.Size()), masters);
    EXPECT_EQ(Out<std::uint16_t>(gpu.Values(), size), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, MastersMove,
                         testing::Values(train::OptimizerKind::kAdamW, train::OptimizerKind::kSgd),
                         [](const auto& info) {
                           return info.param == train::OptimizerKind::kSgd ? "Sgd" : "AdamW";
                         });

// Behind the reading of a checkpoint.
TEST_F(Masters, AreRoundedOnceMore) {
  kernels::Registry gpu;
  Allocate(gpu);
  train::Optimizer optimizer({}, gpu, Stream());
  Floats masters = Wanted(0, gpu.Size());
  for (float& master : masters) master = master * 1.7F + 0.01F;
  device::CopyIn(Stream(), masters.data(), gpu.Masters(), gpu.Size() * 4);
  optimizer.RoundMasters();
  const auto values = Out<std::uint16_t>(gpu.Values(), gpu.Size());
  for (const kernels::Parameter& parameter : gpu.Parameters()) {
    const auto begin = static_cast<std::size_t>(parameter.offset);
    for (std::size_t i = begin; i < begin + static_cast<std::size_t>(parameter.LocalSize()); ++i) {
      EXPECT_EQ(values[i], RoundToBfloat16(masters[i])) << parameter.name;
    }
  }
}

TEST_F(Masters, TheFirstGradientThatIsNotFiniteIsNamed) {
  kernels::Registry gpu;
  Allocate(gpu);
  train::Optimizer optimizer({}, gpu, Stream());
  EXPECT_EQ(optimizer.FirstNotFinite(), "");
  for (const float bad : {std::nanf(""), -HUGE_VALF}) {
    for (const int id : {3, 2, 0}) {
      const kernels::Matrix gradient = gpu.Gradient(id);
      device::CopyIn(Stream(), &bad, gradient.As<float>() + gradient.Size() - 1, 4);
      EXPECT_EQ(optimizer.FirstNotFinite(), gpu.Parameters()[static_cast<std::size_t>(id)].name);
      optimizer.QueueSquares();
      Synchronise();
      EXPECT_FALSE(std::isfinite(optimizer.GradientSquares()));
    }
    gpu.ZeroGradients();
    EXPECT_EQ(optimizer.FirstNotFinite(), "");
  }
}

// The file in which choices of products are kept: its name, what is taken from it, and what happens
// where it cannot be written.

constexpr const char* kChosen = R"({"card": "NVIDIA H100 80GB HBM3, 132 multiprocessors",
  "library": "cuBLASLt 130100", "products": []})";

// A variable of the environment for as long as this lives; null: unset.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* const old = std::getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  bool had_ = false;
  std::string old_;
};

std::string Read(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class ProductChoices : public testing::Test {
 protected:
  ProductChoices() : world_(World()) {}
  // Output of KeepChoices on stderr.
  std::string Keep(const std::string& file, const kernels::Libraries& products) const {
    testing::internal::CaptureStderr();
    train::KeepChoices(world_, file, products);
    return testing::internal::GetCapturedStderr();
  }
  std::size_t FilesIn(const std::string& folder) const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
  comm::Communicator world_;
  TemporaryFolder folder_;
};

TEST_F(ProductChoices, TheFileIsOfTheCardAndTheLibrary) {
  const std::string name =
      "/trireme/products_NVIDIA_H100_80GB_HBM3__132_multiprocessors_cuBLASLt_130100.json";
  {
    const Variable cache("XDG_CACHE_HOME", "/some/cache"), home("HOME", "/some/home");
    EXPECT_EQ(train::ChoicesFile(kChosen), "/some/cache" + name);
  }
  {
    const Variable cache("XDG_CACHE_HOME", nullptr), home("HOME", "/some/home");
    EXPECT_EQ(train::ChoicesFile(kChosen), "/some/home/.cache" + name);
  }
  {
    const Variable cache("XDG_CACHE_HOME", ""), home("HOME", "/some/home");
    EXPECT_EQ(train::ChoicesFile(kChosen), "/some/home/.cache" + name);
  }
  const Variable cache("XDG_CACHE_HOME", nullptr), home("HOME", nullptr);
  EXPECT_EQ(train::ChoicesFile(kChosen), "");
}

TEST_F(ProductChoices, KeptAndTaken) {
  const std::string file = folder_ / "a/b/products.json";
  EXPECT_EQ(Keep(file, Listening(kChosen)), "");
  EXPECT_EQ(Read(file), std::string(kChosen) + "\n");
  EXPECT_EQ(FilesIn(folder_ / "a/b"), 1u);  // the temporary one is gone
  Listening taking(kChosen);
  train::TakeKeptChoices(world_, file, taking);
  EXPECT_THAT(taking.Adopted(), ElementsAre(ElementsAre(std::string(kChosen) + "\n")));
  // Written anew.
  EXPECT_EQ(Keep(file, Listening("{}")), "");
  EXPECT_EQ(Read(file), "{}\n");
}

TEST_F(ProductChoices, NothingIsTakenOfNothing) {
  Listening taking(kChosen);
  train::TakeKeptChoices(world_, "", taking);
  train::TakeKeptChoices(world_, folder_ / "missing.json", taking);
  std::ofstream(folder_ / "empty.json").close();
  train::TakeKeptChoices(world_, folder_ / "empty.json", taking);
  EXPECT_TRUE(taking.Adopted().empty());
  EXPECT_EQ(Keep("", taking), "");
}

// run.products = products.json: where the job was started.
TEST_F(ProductChoices, AFileWithoutAFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_.Path());
  const std::string said = Keep("products.json", Listening(kChosen));
  const std::string written = Read("products.json");
  fs::current_path(before);
  EXPECT_EQ(said, "");
  EXPECT_EQ(written, std::string(kChosen) + "\n");
}

TEST_F(ProductChoices, WhatCannotBeKeptIsAWarning) {
  std::ofstream(folder_ / "file") << "no folder\n";
  const std::string file = folder_ / "file/products.json";
  const std::string said = Keep(file, Listening(kChosen));
  EXPECT_THAT(said, HasSubstr("warning: " + file +
                              ": the algorithms of the matrix products could not be kept ("));
  EXPECT_THAT(said, HasSubstr("(run.products)\n"));
  EXPECT_EQ(Read(folder_ / "file"), "no folder\n");
  // A folder has the file's name: nothing is left behind, and the folder stays.
  fs::create_directories(folder_ / "taken/products.json/full");
  EXPECT_THAT(Keep(folder_ / "taken/products.json", Listening(kChosen)),
              HasSubstr("could not be kept"));
  EXPECT_EQ(FilesIn(folder_ / "taken"), 1u);
  EXPECT_TRUE(fs::is_directory(folder_ / "taken/products.json/full"));
  Listening taking(kChosen);
  train::TakeKeptChoices(world_, folder_ / "taken/products.json", taking);
  EXPECT_TRUE(taking.Adopted().empty());
}

// Batches on their way to a GPU: staged ahead, used at once, others in between, of any sizes.

class StagedOnGpu : public GpuTest {
 protected:
  using Ticket = model::StagedBatches::Staged;
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const std::int64_t before = device::AllocatedBytes();
    staged_ = std::make_unique<model::StagedBatches>(Stream(), kStagedLimits);
    EXPECT_EQ(device::AllocatedBytes() - before, staged_->Bytes());
  }
  void TearDown() override {
    if (!IsSkipped()) Synchronise();
    staged_.reset();
  }
  void Use(const Batches& batches) { test::Use(*staged_, batches); }
  void Use(Ticket ticket) { staged_->Open(staged_->Take(std::move(ticket))); }
  bool Sees(const Batches& batches) const { return test::Sees(Stream(), *staged_, batches); }
  std::unique_ptr<model::StagedBatches> staged_;
};

TEST_F(StagedOnGpu, UsedAtOnce) {
  for (std::int32_t step = 1; step < 5; ++step) {
    const Batches batches = NumberedBatches(step, {4, 4, 1});
    Use(batches);
    EXPECT_TRUE(Sees(batches)) << step;
  }
}

// Training's way: the next batch is staged while this one is computed on.
TEST_F(StagedOnGpu, StagedAhead) {
  Batches now = NumberedBatches(1, {4, 4});
  std::optional<Ticket> ticket = staged_->Stage(now);
  for (std::int32_t step = 2; step < 12; ++step) {
    Use(std::move(*ticket));
    Batches next = NumberedBatches(step, {4, 4});
    ticket = staged_->Stage(next);
    EXPECT_TRUE(Sees(now)) << step;
    now = std::move(next);  // keeps its address
  }
  Use(std::move(*ticket));
  EXPECT_TRUE(Sees(now));
}

// An evaluation between two steps: the batches that were staged ahead are staged once more.
TEST_F(StagedOnGpu, OthersInBetween) {
  const Batches first = NumberedBatches(1, {4, 4}), second = NumberedBatches(2, {4, 4});
  Use(first);
  Ticket ticket = staged_->Stage(second);
  for (std::int32_t round = 3; round < 6; ++round) {
    const Batches other = NumberedBatches(round, {2, 4, 3});
    Use(other);
    EXPECT_TRUE(Sees(other));
  }
  Use(std::move(ticket));
  EXPECT_TRUE(Sees(second));
}

// The same vector holds another batch from step to step.
TEST_F(StagedOnGpu, TheSameVectorFilledAnew) {
  Batches batches = NumberedBatches(1, {4, 4});
  for (std::int32_t step = 2; step < 6; ++step) {
    Use(batches);
    EXPECT_TRUE(Sees(batches)) << step;
    Synchronise();
    const Batches next = NumberedBatches(step, {4, 4});
    std::copy(next.begin(), next.end(), batches.begin());
    if (step % 2 == 0) (void)staged_->Stage(batches);
  }
}

TEST_F(StagedOnGpu, StagedAnewWithoutUse) {
  const Batches first = NumberedBatches(1, {4}), second = NumberedBatches(2, {4});
  (void)staged_->Stage(first);
  (void)staged_->Stage(second);
  Use(first);
  EXPECT_TRUE(Sees(first));
  EXPECT_FALSE(Sees(second));
}

// A short last batch, an empty share, entries without sequences; then whole ones again.
TEST_F(StagedOnGpu, OfAnySizes) {
  const std::vector<std::vector<std::int64_t>> shapes = {{4, 4}, {4, 3},       {1}, {0},
                                                         {4, 0}, {0, 2, 0, 1}, {},  {4, 4}};
  std::int32_t step = 1;
  for (const auto& shape : shapes) {
    const Batches batches = NumberedBatches(step++, shape);
    Use(batches);
    EXPECT_TRUE(Sees(batches)) << step;
  }
}

// Graphs read the memory of the first batch.
TEST_F(StagedOnGpu, MemoryStaysWhereItIs) {
  const Batches first = NumberedBatches(1, {4, 4});
  Use(first);
  const model::StagedBatches::Entry at = staged_->At(1);
  const std::int64_t allocated = device::AllocatedBytes();
  for (std::int32_t step = 2; step < 6; ++step) {
    const Batches next = NumberedBatches(step, step == 3 ? std::vector<std::int64_t>{2, 1, 8, 8, 8}
                                                         : std::vector<std::int64_t>{4, 4});
    Use(next);
    EXPECT_TRUE(Sees(next));
    if (step == 3) continue;
    EXPECT_EQ(staged_->At(1).inputs, at.inputs);
    EXPECT_EQ(staged_->At(1).targets, at.targets);
    EXPECT_EQ(staged_->At(1).ordinals, at.ordinals);
  }
  EXPECT_EQ(device::AllocatedBytes(), allocated);
}

TEST_F(StagedOnGpu, NoMoreThanPlanned) {
  const Batches full = NumberedBatches(1, std::vector<std::int64_t>(8, 8));
  Use(full);
  EXPECT_TRUE(Sees(full));
  EXPECT_THROW((void)staged_->Stage(NumberedBatches(1, std::vector<std::int64_t>(9, 1))), Error);
  std::vector<std::int64_t> larger(8, 8);
  larger.back() = 16;
  EXPECT_THROW((void)staged_->Stage(NumberedBatches(1, larger)), Error);
}

// Blocks of training state that lie on a GPU, fetched to the host and stored again.

class StateOnGpu : public GpuTest {};

template <typename T>
kernels::StateBlock BlockOf(const std::string& name, const OnGpu& memory, std::int64_t begin,
                            std::int64_t end, Dtype dtype) {
  return {.name = name,
          .shape = {end + 3},
          .dtype = dtype,
          .begin = begin,
          .end = end,
          .data = memory.As<T>()};
}

template <typename T>
std::vector<T> ValuesOf(const kernels::StateBlock& block) {
  const auto* const data = static_cast<const T*>(block.data);
  return {data, data + (block.end - block.begin)};
}

const std::vector<float> kSingles = {
    1, -0.0F, 3e38F, 1e-45F, 0.1F, -7, std::numeric_limits<float>::infinity()};
const std::vector<double> kDoubles = {0.1, -1e300, 5e-324, 2};

TEST_F(StateOnGpu, IsFetchedAsItIs) {
  const OnGpu singles(Stream(), kSingles), doubles(Stream(), kDoubles);
  const std::vector<kernels::StateBlock> there = {
      BlockOf<float>("a", singles, 5, 12, Dtype::kFloat32),
      {.name = "elsewhere", .shape = {9, 2}, .dtype = Dtype::kFloat32},
      BlockOf<double>("b", doubles, 0, 4, Dtype::kFloat64)};
  const train::StateOnHost here = train::StateOnHost(Stream(), there).Fetch();
  ASSERT_EQ(here.size(), 3u);
  EXPECT_EQ(ValuesOf<float>(here[0]), kSingles);
  EXPECT_TRUE(std::signbit(ValuesOf<float>(here[0])[1]));
  EXPECT_EQ(ValuesOf<double>(here[2]), kDoubles);
  for (std::size_t i = 0; i < there.size(); ++i) {
    EXPECT_EQ(here[i].name, there[i].name);
    EXPECT_EQ(here[i].shape, there[i].shape);
    EXPECT_EQ(here[i].dtype, there[i].dtype);
    EXPECT_EQ(here[i].begin, there[i].begin);
    EXPECT_EQ(here[i].end, there[i].end);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(here[i].data) % 64, 0u);
  }
  EXPECT_EQ(here.Blocks().data(), &here[0]);
}

TEST_F(StateOnGpu, IsStoredWhereItWas) {
  const OnGpu singles(Stream(), kSingles), doubles(Stream(), kDoubles);
  // The middle of an array: what is around it stays.
  kernels::StateBlock middle = BlockOf<float>("a", singles, 10, 13, Dtype::kFloat32);
  middle.data = singles.As<float>() + 2;
  const train::StateOnHost here =
      train::StateOnHost(Stream(), {middle, BlockOf<double>("b", doubles, 0, 4, Dtype::kFloat64)});
  for (int i = 0; i < 3; ++i) static_cast<float*>(here[0].data)[i] = static_cast<float>(i) + 0.5F;
  for (int i = 0; i < 4; ++i) static_cast<double*>(here[1].data)[i] = i / 3.0;
  EXPECT_EQ(singles.Out<float>(), kSingles);
  here.Store();
  std::vector<float> wanted = kSingles;
  wanted[2] = 0.5F;
  wanted[3] = 1.5F;
  wanted[4] = 2.5F;
  EXPECT_EQ(singles.Out<float>(), wanted);
  EXPECT_EQ(doubles.Out<double>(), (std::vector<double>{0, 1 / 3.0, 2 / 3.0, 1}));
}

// bf16 is fp32 here: fetched exactly, stored rounded to nearest.
TEST_F(StateOnGpu, Bf16PassesThroughFp32) {
  const std::vector<std::uint16_t> bits = {RoundToBfloat16(1), RoundToBfloat16(-3.14F),
                                           RoundToBfloat16(1e-40F), RoundToBfloat16(3e38F),
                                           RoundToBfloat16(0)};
  const OnGpu narrow(Stream(), bits);
  train::StateOnHost here =
      train::StateOnHost(Stream(), {BlockOf<std::uint16_t>("a", narrow, 2, 7, Dtype::kBfloat16)})
          .Fetch();
  EXPECT_EQ(here[0].dtype, Dtype::kFloat32);
  auto* const values = static_cast<float*>(here[0].data);
  for (std::size_t i = 0; i < bits.size(); ++i) EXPECT_EQ(values[i], FromBfloat16(bits[i]));
  here.Store();
  EXPECT_EQ(narrow.Out<std::uint16_t>(), bits);
  values[1] = 1 + 0x1p-8F;             // halfway: to even
  values[2] = 1 + 3 * 0x1p-8F;         // halfway: to even, upwards
  values[3] = 1 + 0x1p-8F + 0x1p-20F;  // above
  here.Store();
  const auto got = narrow.Out<std::uint16_t>();
  EXPECT_EQ(FromBfloat16(got[1]), 1);
  EXPECT_EQ(FromBfloat16(got[2]), 1 + 0x1p-6F);
  EXPECT_EQ(FromBfloat16(got[3]), 1 + 0x1p-7F);
  here = std::move(here).Fetch();
  EXPECT_EQ(values[3], 1 + 0x1p-7F);
}

// Larger than what a copy of ordinary memory takes at once.
TEST_F(StateOnGpu, LargeBlocksPassThrough) {
  const auto size = static_cast<std::size_t>(Stream().gpu->bounce_bytes) / 4 + 1001;
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(i);
  const OnGpu memory(Stream(), values);
  const train::StateOnHost here =
      train::StateOnHost(Stream(),
                         {BlockOf<float>("a", memory, 0, std::ssize(values), Dtype::kFloat32)})
          .Fetch();
  EXPECT_TRUE(ValuesOf<float>(here[0]) == values);
}

// Blocks of a run on the CPU are unchanged.
TEST(StateOnCpu, IsWhereItWas) {
  std::vector<float> values = kSingles;
  const device::Stream cpu;
  const train::StateOnHost here =
      train::StateOnHost(cpu, {{.name = "a", .shape = {7}, .end = 7, .data = values.data()}})
          .Fetch();
  EXPECT_EQ(here[0].data, values.data());
  here.Store();
  EXPECT_EQ(values, kSingles);
}

}  // namespace
}  // namespace trireme::test
