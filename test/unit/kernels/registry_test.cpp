// The parameter registry where a rank holds slices of parameters, or none of them.
#include "trireme/kernels/registry.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::kernels {
namespace {

constexpr std::uint32_t kSeed = 7;
constexpr Initialiser kNormal{InitialiserKind::kNormal, 0.5};
constexpr Initialiser kUniform{InitialiserKind::kUniform, 0.25};
constexpr std::int64_t kAligned = 32;  // elements

std::vector<double> Elements(const Registry& registry, std::int64_t offset, std::int64_t count) {
  std::vector<double> values;
  DispatchDtype(registry.Type(), [&](auto zero) {
    const auto* data = static_cast<const decltype(zero)*>(registry.Values()) + offset;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(data[i]));
  });
  return values;
}
std::vector<double> Elements(const Registry& registry, ParameterId id) {
  const Parameter& parameter = registry.Parameters()[static_cast<std::size_t>(id)];
  return Elements(registry, parameter.offset, parameter.LocalSize());
}

// Rows of axis 0 that part `part` of `parts` holds.
Parameter Cut(Parameter parameter, int part, int parts) {
  const Part rows = PartOf(parameter.shape[0], part, parts);
  const std::int64_t columns = ElementCount(parameter.shape) / parameter.shape[0];
  parameter.begin = rows.begin * columns;
  parameter.end = rows.end * columns;
  return parameter;
}
// Held by other ranks.
Parameter Elsewhere(Parameter parameter) {
  parameter.begin = parameter.end = 0;
  return parameter;
}

const Parameter kEmbedding{.name = "embedding", .shape = {101, 5}, .initialiser = kNormal};
const Parameter kQuery{.name = "query", .shape = {17, 5}, .initialiser = kUniform};
const Parameter kKey{
    .name = "key", .shape = {17, 5}, .initialiser = kUniform, .decay = false, .adjacent = true};
const Parameter kBias{.name = "bias", .shape = {17}, .initialiser = kNormal};
const Parameter kNorm{.name = "norm", .shape = {5}, .initialiser = {InitialiserKind::kConstant, 1}};

// Bytes that a buffer takes.
std::int64_t Rounded(std::int64_t bytes) { return CeilDivide(bytes, 128) * 128; }

template <typename Body>
std::string MessageOf(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Registry, AWholeParameterByDefault) {
  ParameterList list;
  const ParameterId id = list.Add(kEmbedding);
  EXPECT_EQ(list.Parameters()[0].begin, 0);
  EXPECT_EQ(list.Parameters()[0].end, 505);
  EXPECT_TRUE(list.Parameters()[0].Held());
  Registry registry(list, Dtype::kFloat32);
  EXPECT_EQ(registry.Value(id).rows, 101);
  EXPECT_EQ(registry.Value(id).columns, 5);
}

TEST(Registry, SlicesOfEveryCutHoldTheWholesElements) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    const std::vector<Parameter> parameters = {kEmbedding, kQuery, kKey, kBias, kNorm};
    ParameterList whole_list;
    for (const Parameter& each : parameters) whole_list.Add(each);
    Registry whole(whole_list, dtype);
    whole.Initialise(kSeed);
    for (int parts = 1; parts <= 8; ++parts) {
      std::vector<std::vector<double>> joined(parameters.size());
      for (int part = 0; part < parts; ++part) {
        ParameterList list;
        for (const Parameter& each : parameters) list.Add(Cut(each, part, parts));
        Registry registry(list, dtype);
        registry.Initialise(kSeed);
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const std::vector<double> slice = Elements(registry, static_cast<ParameterId>(i));
          joined[i].insert(joined[i].end(), slice.begin(), slice.end());
        }
      }
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_EQ(joined[i], Elements(whole, static_cast<ParameterId>(i)))
            << parameters[i].name << " in " << parts << " parts";
      }
    }
  }
}

TEST(Registry, TheViewOfASliceIsItsRows) {
  ParameterList list;
  const ParameterId query = list.Add(Cut(kQuery, 1, 4));  // rows 4 to 8
  const ParameterId key = list.Add(Cut(kKey, 3, 4));      // rows 12 to 17
  const ParameterId bias = list.Add(Cut(kBias, 3, 4));    // elements 12 to 17
  Registry registry(list, Dtype::kFloat64);
  registry.Initialise(kSeed);
  const Matrix value = registry.Value(query);
  EXPECT_EQ(value.rows, 4);
  EXPECT_EQ(value.columns, 5);
  EXPECT_EQ(value.stride, 5);
  const Matrix both = registry.Value(query, 2);
  EXPECT_EQ(both.data, value.data);
  EXPECT_EQ(both.rows, 4 + 5);
  EXPECT_EQ(both.Rows(4, 5).data, registry.Value(key).data) << "nothing lies between";
  EXPECT_EQ(registry.Gradient(query, 2).rows, 9);
  const Matrix vector = registry.Value(bias);
  EXPECT_EQ(vector.rows, 1);
  EXPECT_EQ(vector.columns, 5);
}

// Products may run over them; they are nobody's elements, and stay zero.
TEST(Registry, SpareElementsLieBehindTheirParameter) {
  Parameter table = kEmbedding, elsewhere = kQuery;
  table.spare = 30 * 5;
  elsewhere.spare = 1000;
  elsewhere.begin = elsewhere.end = 0;
  ParameterList list;
  const ParameterId first = list.Add(table);
  list.Add(elsewhere);
  const ParameterId next = list.Add(kNorm);
  Registry registry(list, Dtype::kFloat32);
  registry.Initialise(kSeed);
  EXPECT_EQ(registry.Value(first).rows, 101);
  EXPECT_EQ(registry.OwnedOf(first).flat.Size(), 505);
  const std::int64_t end = registry.Parameters()[static_cast<std::size_t>(next)].offset;
  EXPECT_GE(end, 505 + 150);
  EXPECT_LT(end, 505 + 150 + 32);
  EXPECT_EQ(Elements(registry, 505, end - 505), std::vector<double>(end - 505));
  ASSERT_EQ(registry.ValueBlocks(0, 1, 1)[0].end, 505);
}

// The storage of a rank that holds some parameters is that of a registry of these alone.
TEST(Registry, ParametersOfOtherRanksTakeNoPart) {
  const Parameter value{
      .name = "value", .shape = {17, 5}, .initialiser = kNormal, .decay = false, .adjacent = true};
  ParameterList alone_list;
  for (const Parameter& each : {kBias, kQuery, kKey, value, kNorm}) alone_list.Add(each);
  ParameterList list;
  list.Add(Elsewhere(kEmbedding));
  const ParameterId bias = list.Add(kBias);
  list.Add(Elsewhere(kEmbedding));
  const ParameterId query = list.Add(kQuery);
  const ParameterId between = list.Add(Elsewhere(kKey));
  const ParameterId key = list.Add(kKey);
  list.Add(value);
  list.Add(Elsewhere(kBias));
  const ParameterId norm = list.Add(kNorm);
  list.Add(Elsewhere(kEmbedding));
  EXPECT_EQ(list.Size(), alone_list.Size());
  const auto offset = [](const ParameterList& of, ParameterId id) {
    return of.Parameters()[static_cast<std::size_t>(id)].offset;
  };
  EXPECT_EQ(offset(list, bias), offset(alone_list, 0));
  EXPECT_EQ(offset(list, query), offset(alone_list, 1));
  EXPECT_EQ(offset(list, key), offset(alone_list, 2));
  EXPECT_EQ(offset(list, norm), offset(alone_list, 4));
  EXPECT_EQ(offset(list, query) % kAligned, 0);
  EXPECT_EQ(offset(list, norm) % kAligned, 0);
  for (std::size_t i = 1; i < list.Parameters().size(); ++i) {
    EXPECT_GE(list.Parameters()[i].offset, list.Parameters()[i - 1].offset) << i;
  }
  Registry registry(list, Dtype::kFloat32);
  registry.Initialise(kSeed);
  Registry alone(alone_list, Dtype::kFloat32);
  alone.Initialise(kSeed);
  EXPECT_EQ(Elements(registry, 0, registry.Size()), Elements(alone, 0, alone.Size()));
  EXPECT_EQ(registry.Value(query, 4).rows, 3 * 17) << "the empty one between adds nothing";
  for (const ParameterId none : {ParameterId{0}, between, ParameterId{7}}) {
    EXPECT_FALSE(registry.Parameters()[static_cast<std::size_t>(none)].Held());
    EXPECT_TRUE(registry.Value(none).Empty());
    EXPECT_EQ(registry.Value(none).rows, 0);
    EXPECT_EQ(registry.Gradient(none).rows, 0);
  }
}

// If another rank holds the first of an adjacent group, the next one begins the group here.
TEST(Registry, AGroupWhoseFirstIsElsewhere) {
  ParameterList list;
  list.Add(kNorm);  // 5 elements: what follows has to be aligned
  const ParameterId query = list.Add(Elsewhere(kQuery));
  const ParameterId key = list.Add(kKey);
  EXPECT_EQ(list.Parameters()[2].offset, kAligned);
  Registry registry(list, Dtype::kFloat32);
  const Matrix group = registry.Value(query, 2);
  EXPECT_EQ(group.rows, 17);
  EXPECT_EQ(group.data, registry.Value(key).data);
}

TEST(Registry, ARankThatHoldsNothing) {
  ParameterList list;
  const ParameterId id = list.Add(Elsewhere(kEmbedding));
  EXPECT_EQ(list.Size(), 0);
  Registry registry(list, Dtype::kFloat32);
  registry.Initialise(kSeed);
  registry.ZeroGradients();
  EXPECT_EQ(registry.Value(id).rows, 0);
  EXPECT_EQ(registry.Value(id).columns, 5);
}

TEST(Registry, BlocksNameEverythingAndCountAllCopies) {
  ParameterList list;
  Parameter shared = Cut(kKey, 1, 2);
  shared.adjacent = false;
  shared.copies = 3;
  shared.copy = 2;
  list.Add(Cut(kEmbedding, 2, 3));
  list.Add(shared);
  list.Add(Elsewhere(kNorm));
  Registry registry(list, Dtype::kFloat32);
  const std::vector<StateBlock> blocks =
      registry.MomentBlocks(registry.Values(), "moment.", 4, 5, 1);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].name, "moment.embedding");
  EXPECT_EQ(blocks[0].shape, kEmbedding.shape);
  EXPECT_EQ(blocks[0].begin, 67 * 5);
  EXPECT_EQ(blocks[0].end, 505);
  EXPECT_EQ(blocks[0].data, registry.Value(0).data);
  EXPECT_EQ(blocks[0].replica, 4);
  EXPECT_EQ(blocks[0].replicas, 5);
  EXPECT_EQ(blocks[1].begin, 8 * 5);
  EXPECT_EQ(blocks[1].data, registry.Value(1).data);
  EXPECT_EQ(blocks[1].replicas, 15);
  EXPECT_EQ(blocks[2].name, "moment.norm");
  EXPECT_EQ(blocks[2].begin, blocks[2].end);
  EXPECT_EQ(blocks[2].data, nullptr);
  // Ranks that hold the same elements have different numbers, from 0 without gaps.
  std::vector<bool> seen(15, false);
  for (int copy = 0; copy < 3; ++copy) {
    for (int replica = 0; replica < 5; ++replica) {
      ParameterList other_list;
      shared.copy = copy;
      other_list.Add(shared);
      Registry other(other_list, Dtype::kFloat32);
      const int number = other.ValueBlocks(replica, 5, 1)[0].replica;
      ASSERT_LT(static_cast<std::size_t>(number), seen.size());
      EXPECT_FALSE(seen[static_cast<std::size_t>(number)]) << number << " twice";
      seen[static_cast<std::size_t>(number)] = true;
    }
  }
}

// Two units, of which this rank, one of two sharers, owns the second half of each.
Ownership Halves(const ParameterList& list) {
  Ownership halves;
  for (const Unit& unit : list.Units()) {
    const Part own{unit.range.begin + unit.range.Size() / 2, unit.range.end};
    halves.pieces.push_back({unit.range, own, halves.values, halves.values, halves.values});
    halves.values += own.Size();
  }
  halves.gradients = halves.moments = halves.values;
  halves.values_sharded = halves.gradients_sharded = true;
  return halves;
}

TEST(Registry, AShardedRankHoldsWhatItOwns) {
  ParameterList whole_list, list;
  for (ParameterList* each : {&whole_list, &list}) {
    EXPECT_EQ(each->BeginUnit("table"), 0);
    each->Add(kEmbedding);
    EXPECT_EQ(each->BeginUnit("block"), 1);
    each->Add(kNorm);
    each->Add(kBias);
  }
  Registry whole(whole_list, Dtype::kFloat32);
  whole.Initialise(7);
  Registry registry(list, Dtype::kFloat32, Halves(list));
  registry.Initialise(7);
  EXPECT_EQ(registry.ValueBytes(), Rounded(4 * registry.Owns().values));
  const auto blocks = registry.ValueBlocks(3, 4, 2);  // the second pair's second
  for (std::size_t id = 0; id < blocks.size(); ++id) {
    const StateBlock& block = blocks[id];
    EXPECT_EQ(block.replica, 1);
    EXPECT_EQ(block.replicas, 2);
    const auto* got = static_cast<const float*>(block.data);
    const auto* wanted = whole.Value(static_cast<ParameterId>(id)).As<float>() + block.begin;
    for (std::int64_t i = 0; i < block.end - block.begin; ++i) ASSERT_EQ(got[i], wanted[i]) << id;
  }
  // Of 505 elements in a range of 512, those from 256 on.
  EXPECT_EQ(blocks[0].begin, 256);
  EXPECT_EQ(blocks[0].end, 505);
  // Whole values are there only while somebody has bound them.
  EXPECT_THAT(MessageOf([&] { registry.Value(0); }), testing::HasSubstr("table are not there"));
  EXPECT_THAT(MessageOf([&] { registry.Gradient(1); }), testing::HasSubstr("block are not there"));
  std::vector<float> memory(1024);
  registry.BindValues(0, memory.data());
  registry.BindGradients(1, memory.data());
  EXPECT_EQ(registry.Value(0).data, memory.data());
  EXPECT_EQ(registry.Gradient(1).data, memory.data());
  registry.BindValues(0, nullptr);
  EXPECT_FALSE(MessageOf([&] { registry.Value(0); }).empty());
}

TEST(Registry, EarlyGradientsWaitForTheirUnit) {
  ParameterList list;
  list.BeginUnit("block");
  Parameter norm = kNorm;
  norm.early = true;
  list.Add(kEmbedding);
  list.Add(norm);
  Registry registry(list, Dtype::kFloat32, Halves(list));
  registry.BindEarly(0, true);
  registry.Gradient(1).As<float>()[0] = 3;
  EXPECT_FALSE(MessageOf([&] { registry.Gradient(0); }).empty());
  registry.BindEarly(0, false);
  std::vector<float> memory(1024, 1.0f);
  registry.BindGradients(0, memory.data());
  const auto take = [](void* from, void* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      static_cast<float*>(to)[i] += std::exchange(static_cast<float*>(from)[i], 0.0F);
    }
  };
  registry.TakeEarly(0, take);
  EXPECT_EQ(registry.Gradient(1).As<float>()[0], 4);
  registry.TakeEarly(0, take);  // taken once
  EXPECT_EQ(registry.Gradient(1).As<float>()[0], 4);
}

TEST(Registry, SecondGradientsAndLevels) {
  ParameterList list;
  list.Add(kEmbedding);
  list.AddSecondGradient(0);
  Ownership ownership = OwnAll(list.Size());
  ownership.gradients = list.GradientSize();
  ownership.gradient_levels = 3;
  Registry registry(list, Dtype::kFloat32, ownership);
  EXPECT_EQ(registry.SecondRange().Size(), 505);
  float* first = registry.Gradient(0).As<float>();
  EXPECT_EQ(registry.SecondGradient(0).As<float>(), first + registry.Size());
  registry.BindGradientLevel(0, 2);
  EXPECT_EQ(registry.Gradient(0).data, registry.GradientLevel(2));
  EXPECT_EQ(registry.Gradient(0).As<float>(), first + 2 * registry.GradientSize());
}

TEST(Registry, RefusesWhatCannotBe) {
  for (const Part range : {Part{-5, 5}, Part{5, 510}, Part{10, 5}}) {
    ParameterList list;
    Parameter bad = kEmbedding;
    bad.begin = range.begin;
    bad.end = range.end;
    EXPECT_THAT(MessageOf([&] { list.Add(bad); }), testing::HasSubstr("embedding"));
  }
  for (const int copy : {-1, 2}) {
    ParameterList list;
    Parameter bad = kEmbedding;
    bad.copies = 2;
    bad.copy = copy;
    EXPECT_THAT(MessageOf([&] { list.Add(bad); }), testing::HasSubstr("embedding"));
  }
  ParameterList list;
  Parameter torn = kEmbedding;
  torn.begin = 3;
  list.Add(torn);
  list.Add(kBias);
  list.Add(kNorm);
  Registry registry(list, Dtype::kFloat32);
  EXPECT_THAT(MessageOf([&] { registry.Value(0); }), testing::HasSubstr("whole rows"));
  EXPECT_THAT(MessageOf([&] { registry.Value(0, 2); }), testing::HasSubstr("whole rows"));
  EXPECT_THAT(MessageOf([&] { registry.Value(1, 2); }), testing::HasSubstr("norm is not adjacent"));
}

}  // namespace
}  // namespace trireme::kernels
