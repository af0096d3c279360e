// TrainingData: describes files, pairs and mixtures in words and in JSON.
#include "training.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <filesystem>

#include "trireme/kernels/linear.hpp"

namespace trireme::tasks {

namespace {

std::string FileName(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// Name of a mixture's file: "books.h5", or its path if another file has the same name.
std::string NameIn(const std::vector<data::MixtureFile>& files, std::size_t place) {
  const std::string own = FileName(files[place].path);
  const auto same = std::count_if(files.begin(), files.end(),
                                  [&](const auto& file) { return FileName(file.path) == own; });
  return same == 1 ? own : files[place].path;
}

}  // namespace

TrainingData::TrainingData(const data::Options& options, const train::TrainingPlan& plan,
                           const data::Corpus& corpus, const train::TrainingStep& step)
    : options_(options),
      plan_(plan),
      corpus_(corpus),
      step_(step),
      vocabulary_(app::VocabularyJson(corpus.First())) {}

std::vector<data::MixtureFile> TrainingData::Files() const {
  if (!options_.mixture.empty()) return options_.mixture;
  if (plan_.options.samples.origin.sources.empty()) return {};
  return {{options_.file, {.weight = 1}}};
}

nlohmann::json TrainingData::Json(std::int64_t step) const {
  nlohmann::json run = {{"epoch", Epoch(step)},
                        {"next_sample", Order().NextSample(step)},
                        {"tokens", Order().TargetsBefore(step)},
                        {"source_sha256", Tokens().SourceSha256()},
                        {"vocabulary", vocabulary_},
                        {"sequence_length", plan_.model.length},
                        {"stride", plan_.options.samples.stride},
                        {"batch", Batch()},
                        {"batch_tokens", options_.batch_tokens},
                        {"document_mask", plan_.model.document_mask}};
  if (const std::vector<data::MixtureFile> files = Files(); !files.empty()) {
    run["mixture"] = app::MixtureJson(files, corpus_, Samples(), step);
  } else {
    run["train_tokens"] = Tokens().Size(data::Split::kTrain);
  }
  return run;
}

std::string TrainingData::DescribePairs() const {
  const auto pairs = [&](data::Split split) {
    return report::WithThousands(Pairs()->Pairs(split));
  };
  const data::PairBatches& batches = step_.Pairs();
  std::string text = fmt::format(
      "{}: {} / {} / {} pairs; {} per epoch, {:.1f}% padding", FileName(Tokens().Path()),
      pairs(data::Split::kTrain), pairs(data::Split::kValid), pairs(data::Split::kTest),
      report::Counted(batches.StepsPerEpoch(), "step"), 100 * batches.PaddedShare());
  if (batches.LeftOut() > 0) {
    text += fmt::format("; {} of more than {} tokens left out",
                        report::Counted(batches.LeftOut(), "pair"), plan_.model.length);
  }
  return text;
}

std::string TrainingData::Describe() const {
  if (Pairs() != nullptr) return DescribePairs();
  const std::vector<data::MixtureFile>& files = options_.mixture;
  const data::BatchRamp& ramp = plan_.options.samples.ramp;
  const std::string order = fmt::format(
      "{} of {}, {} per epoch{}{}", report::Counted(Samples().Windows(), "window"),
      plan_.model.length, report::Counted(Samples().StepsPerEpoch(), "step"),
      ramp.steps > 0 ? fmt::format("; batches grow from {} to {} windows over {}", ramp.start,
                                   plan_.Batch(), report::Counted(ramp.steps, "step"))
                     : "",
      train::DescribeMasks(plan_.model.document_mask, corpus_.HasMask(data::Split::kTrain)));
  const std::string valid = report::WithThousands(Tokens().Size(data::Split::kValid));
  const std::string test = report::WithThousands(Tokens().Size(data::Split::kTest));
  if (files.empty()) {
    return fmt::format("{}: {} / {} / {} tokens; {}", FileName(Tokens().Path()),
                       report::WithThousands(Tokens().Size(data::Split::kTrain)), valid, test,
                       order);
  }
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto source = static_cast<std::int64_t>(i);
    const auto quota = static_cast<double>(Samples().QuotaOf(source));
    text += fmt::format(
        "{} {:.3g}% ({} tokens, {:.3g} times per epoch) + ", NameIn(files, i),
        100 * quota / static_cast<double>(Samples().Windows()),
        report::WithThousands(corpus_.Of(static_cast<int>(i)).Size(data::Split::kTrain)),
        quota / static_cast<double>(Samples().WindowsOf(source)));
  }
  text.erase(text.size() - 3);
  return fmt::format("{}; {}; valid and test of {}: {} / {} tokens", text, order, NameIn(files, 0),
                     valid, test);
}

std::vector<std::pair<std::string, std::int64_t>> TrainingData::TokensOfSources(
    std::int64_t step) const {
  const std::vector<data::MixtureFile>& files = options_.mixture;
  if (files.empty()) return {};
  const std::vector<data::SourcePlace> places = Samples().Places(step);
  std::vector<std::pair<std::string, std::int64_t>> tokens;
  for (std::size_t i = 0; i < files.size(); ++i) {
    tokens.emplace_back(NameIn(files, i), places[i].targets);
  }
  return tokens;
}

std::string TrainingData::SourceSummary(std::int64_t step) const {
  const auto sources = TokensOfSources(step);
  if (sources.empty()) return {};
  const std::vector<data::SourcePlace> places = Samples().Places(step);
  double all = 0;
  for (const auto& [name, tokens] : sources) all += static_cast<double>(tokens);
  std::string text = "sources";
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto& [name, tokens] = sources[i];
    const auto windows = static_cast<double>(Samples().WindowsOf(static_cast<std::int64_t>(i)));
    text += fmt::format("{} {} {} tokens ({:.1f}%), {:.2f} epochs", i == 0 ? "" : ";", name,
                        report::WithThousands(tokens),
                        all > 0 ? 100 * static_cast<double>(tokens) / all : 0.0,
                        static_cast<double>(places[i].windows) / windows);
  }
  return text;
}

double TrainingData::FlopsPerToken(std::int64_t step, const train::StepResult& result) const {
  const model::ModelPlan& model = plan_.model;
  if (Pairs() != nullptr) {
    const data::PairBatchShape shape = step_.Pairs().Shape(step);
    return static_cast<double>(shape.pairs) *
           model::PairFlops(model.options, shape.source_length, shape.target_length) /
           static_cast<double>(result.tokens);
  }
  if (!model.document_mask) return model::FlopsPerToken(model.options, model.length);
  return model::FlopsPerTokenOf(
      model.options, static_cast<double>(result.visible_keys) / static_cast<double>(result.tokens));
}

nlohmann::json DescribeRun(const app::Request& request, const app::Ranks& ranks,
                           const app::Device& device, const model::ModelPlan& model,
                           const comm::ProcessGrid& grid) {
  nlohmann::json run = {{"seed", model.seed},
                        {"model", app::ModelJson(model.options)},
                        {"optimizer", app::SectionJson(request.deck, "optimizer")},
                        {"schedule", app::SectionJson(request.deck, "schedule")},
                        {"precision", device.Precision()},
                        {"deck", request.deck.Resolved()},
                        {"matrix_library", kernels::MatrixLibrary()},
                        {"instruction_set", device::InstructionSet()},
                        {"canonical", DescribeCanonical(model.canonical, device.Precision())},
                        {"ranks", ranks.World().Size()},
                        {"grid", comm::Describe(grid.Shape())},
                        {"sharding", comm::NameOf(grid.Shards())}};
  run.update(app::ProgramJson(ranks.Hosts().First()));
  if (device.stream.bf16) {
    run[app::kBf16Products] = device.stream.bf16_by_fp32 ? app::kByFp32 : app::kNative;
  }
  if (device.libraries == nullptr) return run;
  run["products"] = device.libraries->Chosen();
  const std::vector<float> scales = device.libraries->Scales();
  if (!scales.empty()) run["fp8_scales"] = scales;
  return run;
}

std::string DescribeCanonical(const parallel::Canonical& canonical, const char* precision) {
  if (!canonical.On()) return "none";
  return fmt::format("{}x{}, leaf {}, {}, {}", canonical.data_groups, canonical.slices,
                     canonical.leaf, precision, device::InstructionSet());
}

}  // namespace trireme::tasks
