// The map of names holds each parameter once, and plans cut it as transformers does.
#include "tensor_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "trireme/hf/weights.hpp"

namespace trireme::hf {
namespace {

model::Options Small(Family family) {
  model::Options o;
  o.vocabulary = 50;
  o.dim = 8;
  o.heads = 4;
  o.kv_heads = family == Family::kGpt2 ? 4 : 2;
  o.head_dim = family == Family::kQwen3 ? 6 : 2;
  o.layers = 3;
  o.ffn = 12;
  o.max_positions = 16;
  if (family == Family::kGpt2) return o;
  o.norm = model::Norm::kRmsNorm;
  o.activation = model::Activation::kSwiglu;
  o.position = model::Position::kRope;
  o.bias = false;
  o.qkv_bias = family == Family::kQwen2;
  o.qk_norm = family == Family::kQwen3;
  return o;
}

class HfTensorMap : public testing::TestWithParam<Family> {};

TEST_P(HfTensorMap, HoldsEachParameterOnce) {
  for (const bool tied : {true, false}) {
    model::Options options = Small(GetParam());
    options.tie_embeddings = tied;
    std::set<std::string> names, parameters;
    std::int64_t elements = 0;
    for (const MappedTensor& tensor : MapTensors(GetParam(), options)) {
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
      EXPECT_EQ(tensor.copy, tied && tensor.name == "lm_head.weight");
      std::int64_t rows = 0;
      for (const MappedPart& part : tensor.parts) {
        EXPECT_EQ(part.begin, rows) << part.name;
        rows += part.shape.front();
        EXPECT_EQ(kernels::ElementCount(part.shape), part.shape.front() * tensor.Columns());
        const bool first = parameters.insert(part.name).second;
        EXPECT_NE(first, tensor.copy) << part.name;
      }
      EXPECT_EQ(rows, tensor.Rows()) << tensor.name;
      if (!tensor.copy) elements += tensor.Elements();
    }
    EXPECT_EQ(elements, model::ParameterCount(options));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HfTensorMap,
                         testing::Values(Family::kGpt2, Family::kLlama, Family::kMistral,
                                         Family::kQwen2, Family::kQwen3),
                         [](const auto& family) { return std::string(NameOf(family.param)); });

TEST(HfTensorMapNames, Buffers) {
  EXPECT_TRUE(IsBuffer(Family::kGpt2, "h.3.attn.bias"));
  EXPECT_TRUE(IsBuffer(Family::kGpt2, "transformer.h.3.attn.masked_bias"));
  EXPECT_FALSE(IsBuffer(Family::kGpt2, "h.3.attn.c_attn.bias"));
  EXPECT_TRUE(IsBuffer(Family::kLlama, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsBuffer(Family::kLlama, "model.layers.0.self_attn.q_proj.weight"));
}

// Tensors in the model's order, as many in a file as its size allows; by name within a file.
TEST(HfExportPlan, CutsIntoFiles) {
  const model::Options options = Small(Family::kLlama);
  const Options whole{.path = "out", .dtype = Storage::kBf16, .shard_bytes = 1'000'000};
  const ExportPlan one = PlanAfresh(Family::kLlama, options, whole);
  ASSERT_EQ(one.listing.files.size(), 1);
  EXPECT_FALSE(one.listing.indexed);
  EXPECT_EQ(one.listing.files.front().name, "model.safetensors");
  Options cut = whole;
  cut.shard_bytes = 1000;
  const ExportPlan several = PlanAfresh(Family::kLlama, options, cut);
  ASSERT_GT(several.listing.files.size(), 2);
  EXPECT_TRUE(several.listing.indexed);
  std::size_t tensors = 0;
  for (const ListedFile& file : several.listing.files) {
    std::int64_t bytes = 0;
    std::string before;
    for (const checkpoint::StoredTensor& tensor : file.contents.tensors) {
      EXPECT_EQ(tensor.dtype, "BF16");
      EXPECT_LT(before, tensor.name);
      before = tensor.name;
      bytes += tensor.bytes;
    }
    EXPECT_LE(bytes, cut.shard_bytes);
    tensors += file.contents.tensors.size();
  }
  EXPECT_EQ(tensors, one.listing.files.front().contents.tensors.size());
  EXPECT_EQ(several.listing.files[0].name,
            "model-00001-of-0000" + std::to_string(several.listing.files.size()) + ".safetensors");
  EXPECT_EQ(several.listing.files[0].contents.tensors.front().name, "model.embed_tokens.weight");
}

TEST(HfListing, TextAndBack) {
  const Options options{.path = "out", .dtype = Storage::kFp16, .shard_bytes = 1000};
  const Listing listing = PlanAfresh(Family::kQwen3, Small(Family::kQwen3), options).listing;
  EXPECT_EQ(ToText(FromText(ToText(listing), "listing")), ToText(listing));
  EXPECT_THAT(IndexText(listing), testing::HasSubstr("\"total_size\": "));
}

}  // namespace
}  // namespace trireme::hf
