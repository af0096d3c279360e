// Document masks in whole steps: the numbers of the same documents as windows of their own, in
// every layout, with and without a mask of the loss.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "layout_fixture.hpp"
#include "masked_tokens.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::test {
namespace {

constexpr int kDocumentMaskRanks = 4;
constexpr double kDocumentMaskFp64 =
    1e-11;  // relative: losses, norm; gradients and weights in rule 4's norm
constexpr std::int64_t kMaskSteps = 6;  // more than an epoch, with its short batch

data::TokenData WithDocuments(bool loss_mask) {
  data::TokenData data = SyntheticTokens();
  AddDocuments(data);
  if (loss_mask) AddLossMask(data);
  return data;
}

struct DocumentMaskArchitecture {
  const char* name;
  const char* keys;
};
constexpr std::array kDocumentMaskArchitectures = {
    DocumentMaskArchitecture{"gpt", "position=learned\nnorm_position=pre\nactivation=gelu\n"},
    DocumentMaskArchitecture{"jsc", "position=sinusoidal\nnorm_position=post\ntie_embeddings=no\n"},
    DocumentMaskArchitecture{"llama", "position=rope\nnorm=rmsnorm\nactivation=swiglu\nbias=no\n"}};

std::string DocumentMaskDeckOf(const DocumentMaskArchitecture& architecture,
                               const std::string& layout, double dropout = 0.1) {
  return fmt::format(
      "[run]\nseed=11\n[data]\nsequence_length=7\nbatch=10\ndocument_mask=yes\n"
      "[model]\n{}heads=4\nkv_heads=2\n"
      "head_dim=4\ndim=12\nlayers=4\nffn=17\nmax_positions=7\ninit_deviation=0.2\n"
      "dropout={}\nattention_dropout={}\nffn_dropout={}\n"
      "[optimizer]\nlearning_rate=1e-2\nclip_norm=0.5\nlabel_smoothing=0.05\n"
      "[schedule]\nsteps=20\nwarmup_steps=3\n[grid]\nbucket_mib=0.001\n{}",
      architecture.keys, dropout, dropout, dropout, layout);
}

// Parameter: also a mask of the loss.
class DocumentMask : public LayoutTest, public testing::WithParamInterface<bool> {
 protected:
  DocumentMask() : LayoutTest(WithDocuments(GetParam())) {}
  void SetUp() override { ASSERT_EQ(world_.Size(), kDocumentMaskRanks); }

  // Parts of documents in the windows, each a window of its own with the targets that count.
  std::vector<data::Entry> Apart(const std::vector<data::Sample>& windows) const {
    const data::TokenData data = WithDocuments(GetParam());
    std::vector<bool> begins(data.tokens[0].size() + 1);
    for (const std::int64_t at : data.documents[0]) begins[static_cast<std::size_t>(at)] = true;
    std::vector<data::Entry> entries;
    for (const data::Sample& window : windows) {
      for (std::int64_t t = 0; t < window.targets; ++t) {
        const auto at = static_cast<std::size_t>(window.start + t);
        if (t == 0 || begins[at]) entries.emplace_back().ordinals = {0};
        data::Entry& entry = entries.back();
        entry.sequences = 1;
        const bool counts = !begins[at + 1] && (!GetParam() || data.counted[0][at + 1] != 0);
        entry.inputs.push_back(data.tokens[0][at]);
        entry.targets.push_back(counts ? data.tokens[0][at + 1] : data::kMasked);
        entry.valid += counts ? 1 : 0;
        entry.positions = {{0, ++entry.length}, {entry.length, entry.length}};
      }
    }
    return entries;
  }
};

TEST_P(DocumentMask, AStepIsThatOfSeparateDocuments) {
  for (const DocumentMaskArchitecture& architecture : kDocumentMaskArchitectures) {
    const RunSettings settings =
        SettingsOf(DocumentMaskDeckOf(architecture, "", 0), tokens_, 1, Dtype::kFloat64);
    TrainingRun run(self_, tokens_, settings);
    const std::vector<data::Entry> apart = Apart(run.Step().Samples().Share(0, 0, 1));
    std::int64_t targets = 0;
    for (const data::Entry& entry : apart) targets += entry.valid;
    // As many entries as there are parts, without masks of documents.
    RunSettings plain = settings;
    plain.model.document_mask = false;
    plain.stride = 1;  // many windows: as large a batch
    plain.batch = std::ssize(apart);
    plain.model.micro_batch = 1;
    TrainingRun separate(self_, tokens_, plain);
    train::TrainingState& state = separate.All();
    state.QueueGradients(state.Net().Batches().Take(apart));
    const double loss = state.Net().FinishLoss().Value() / static_cast<double>(targets);
    state.QueueSums();
    const double norm = state.GradientNorm(targets);
    run.Train(1);
    EXPECT_EQ(run.Last().targets, targets) << architecture.name;
    EXPECT_NEAR(run.Last().loss, loss, kDocumentMaskFp64 * loss) << architecture.name;
    EXPECT_NEAR(run.Last().gradient_norm, norm, kDocumentMaskFp64 * norm) << architecture.name;
    EXPECT_LT(RuleFourDifference(run.Gradients(), separate.Gradients()).relative, kDocumentMaskFp64)
        << architecture.name;
  }
}

constexpr std::array kDocumentMaskLayouts = {
    "data=4\n[data]\nmicro_batch=1\n",
    "data=2\ntensor=2\n",
    "context=4\n",
    "data=2\ncontext=2\nsharding=gradients\n[data]\nmicro_batch=2\n",
    "pipeline=2\n[data]\nmicro_batch=2\n",
    "pipeline=2\ndata=1\ncontext=2\n[pipeline]\nschedule=zero_bubble\n[data]\nmicro_batch=2\n",
    "data=2\ntensor=2\nsequence_parallel=yes\nsharding=parameters\n[model]\nrecompute=full\n",
};

TEST_P(DocumentMask, EveryLayoutComputesTheSerialRunsNumbers) {
  for (const DocumentMaskArchitecture& architecture : kDocumentMaskArchitectures) {
    const RunSettings alone =
        SettingsOf(DocumentMaskDeckOf(architecture, ""), tokens_, 1, Dtype::kFloat64);
    TrainingRun serial(self_, tokens_, alone);
    const std::vector<double> losses = serial.Train(kMaskSteps);
    const double valid = train::Evaluate(serial.Net(), tokens_, data::Split::kValid).loss;
    for (const char* layout : kDocumentMaskLayouts) {
      const std::string what = fmt::format("{}, {}", architecture.name, layout);
      TrainingRun run(world_, tokens_,
                      SettingsOf(DocumentMaskDeckOf(architecture, layout), tokens_,
                                 kDocumentMaskRanks, Dtype::kFloat64));
      EXPECT_LT(WorstRelative(run.Train(kMaskSteps), losses), kDocumentMaskFp64) << what;
      EXPECT_LT(RuleFourDifference(run.Weights(), serial.Weights()).relative, kDocumentMaskFp64)
          << what;
      EXPECT_EQ(run.Last().targets, serial.Last().targets) << what;
      EXPECT_EQ(run.Last().visible_keys, serial.Last().visible_keys) << what;
      EXPECT_LT(
          WorstRelative({train::Evaluate(run.Net(), tokens_, data::Split::kValid).loss}, {valid}),
          kDocumentMaskFp64)
          << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(LossMask, DocumentMask, testing::Bool(),
                         [](const auto& info) { return info.param ? "Too" : "None"; });

TEST(DocumentMaskPlan, NeedsTheDocumentsOfTheTokens) {
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  const data::TokenFile tokens(self, SyntheticTokens());
  try {
    PlanOf(DocumentMaskDeckOf(kDocumentMaskArchitectures[0], ""), tokens, 1, Dtype::kFloat32);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_THAT(
        error.what(),
        testing::HasSubstr("data.document_mask = yes: tokens in memory have no /train/documents"));
  }
}

TEST(DocumentMaskEvaluation, NeedsTheDocumentsOfTheSplit) {
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  data::TokenData data = WithDocuments(false);
  data.documents[1].clear();
  const data::TokenFile tokens(self, data);
  TrainingRun run(self, tokens,
                  SettingsOf(DocumentMaskDeckOf(kDocumentMaskArchitectures[0], ""), tokens, 1,
                             Dtype::kFloat32));
  EXPECT_GT(train::Evaluate(run.Net(), tokens, data::Split::kTest).targets, 0);
  try {
    train::Evaluate(run.Net(), tokens, data::Split::kValid);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), testing::HasSubstr("there is no /valid/documents"));
  }
}

}  // namespace
}  // namespace trireme::test
