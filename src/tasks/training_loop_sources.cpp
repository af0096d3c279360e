// TrainingLoop: the token files of its training, in the banner, in records and in run.json.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "trireme/tasks/training_loop.hpp"

namespace trireme::tasks {

namespace {

// "books.h5", or the path as in the deck if another file of the mixture has that name.
std::string NameIn(const std::vector<data::MixtureFile>& files, std::size_t place) {
  const auto name = [](const data::MixtureFile& file) {
    return std::filesystem::path(file.path).filename().string();
  };
  const std::string own = name(files[place]);
  const auto same = std::count_if(files.begin(), files.end(),
                                  [&](const auto& file) { return name(file) == own; });
  return same == 1 ? own : files[place].path;
}

}  // namespace

std::vector<data::MixtureFile> TrainingLoop::Mixture() const {
  const data::Options& options = job_.options.data;
  if (!options.mixture.empty()) return options.mixture;
  if (plan_.training.samples.origin.sources.empty()) return {};
  return {{options.file, {.weight = 1}}};
}

std::string TrainingLoop::DescribePairs() const {
  const auto pairs = [&](data::Split split) {
    return report::WithThousands(pairs_->Pairs(split));
  };
  const data::PairBatches& batches = training_step_.Pairs();
  std::string text =
      fmt::format("{}: {} / {} / {} pairs; {} an epoch, {:.1f}% padding",
                  std::filesystem::path(tokens_.Path()).filename().string(),
                  pairs(data::Split::kTrain), pairs(data::Split::kValid), pairs(data::Split::kTest),
                  report::Counted(batches.StepsPerEpoch(), "step"), 100 * batches.PaddedShare());
  if (batches.LeftOut() > 0) {
    text += fmt::format("; {} of more than {} tokens left out",
                        report::Counted(batches.LeftOut(), "pair"), plan_.training.model.length);
  }
  return text;
}

std::string TrainingLoop::DescribeData() const {
  if (pairs_ != nullptr) return DescribePairs();
  const std::vector<data::MixtureFile>& files = job_.options.data.mixture;
  const std::string order = fmt::format(
      "{} of {}, {} an epoch{}", report::Counted(training_step_.Samples().Windows(), "window"),
      plan_.training.model.length,
      report::Counted(training_step_.Samples().StepsPerEpoch(), "step"),
      train::DescribeMasks(plan_.training.model.document_mask,
                          corpus_.HasMask(data::Split::kTrain)));
  const std::string first = std::filesystem::path(tokens_.Path()).filename().string();
  const std::string valid = report::WithThousands(tokens_.Size(data::Split::kValid));
  const std::string test = report::WithThousands(tokens_.Size(data::Split::kTest));
  if (files.empty()) {
    return fmt::format("{}: {} / {} / {} tokens; {}", first,
                       report::WithThousands(tokens_.Size(data::Split::kTrain)), valid, test,
                       order);
  }
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto source = static_cast<std::int64_t>(i);
    const auto quota = static_cast<double>(training_step_.Samples().QuotaOf(source));
    text += fmt::format(
        "{} {:.3g}% ({} tokens, {:.3g} times an epoch) + ", NameIn(files, i),
        100 * quota / static_cast<double>(training_step_.Samples().Windows()),
        report::WithThousands(corpus_.Of(static_cast<int>(i)).Size(data::Split::kTrain)),
        quota / static_cast<double>(training_step_.Samples().WindowsOf(source)));
  }
  text.erase(text.size() - 3);
  return fmt::format("{}; {}; valid and test of {}: {} / {} tokens", text, order, NameIn(files, 0),
                     valid, test);
}

std::vector<std::pair<std::string, std::int64_t>> TrainingLoop::TokensOfSources() const {
  const std::vector<data::MixtureFile>& files = job_.options.data.mixture;
  if (files.empty()) return {};
  const std::vector<data::SourcePlace> places = training_step_.Samples().Places(step_);
  std::vector<std::pair<std::string, std::int64_t>> tokens;
  for (std::size_t i = 0; i < files.size(); ++i) {
    tokens.emplace_back(NameIn(files, i), places[i].targets);
  }
  return tokens;
}

// "sources books.h5 123,456 tokens (70.0%), 1.50 epochs; code.h5 ...".
std::string TrainingLoop::SourceSummary() const {
  const auto sources = TokensOfSources();
  if (sources.empty()) return {};
  const std::vector<data::SourcePlace> places = training_step_.Samples().Places(step_);
  double all = 0;
  for (const auto& [name, tokens] : sources) all += static_cast<double>(tokens);
  std::string text = "sources";
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto& [name, tokens] = sources[i];
    const auto windows =
        static_cast<double>(training_step_.Samples().WindowsOf(static_cast<std::int64_t>(i)));
    text += fmt::format("{} {} {} tokens ({:.1f}%), {:.2f} epochs", i == 0 ? "" : ";", name,
                        report::WithThousands(tokens),
                        all > 0 ? 100 * static_cast<double>(tokens) / all : 0.0,
                        static_cast<double>(places[i].windows) / windows);
  }
  return text;
}

// A batch of pairs follows from these settings and its step.
void TrainingLoop::SayOtherBatches(const nlohmann::json& run) {
  const nlohmann::json& record = job_.start.record->json;
  const std::array names = {"seed", "batch", "batch_tokens", "sequence_length"};
  if (std::ranges::none_of(names, [&](const char* name) {
        return record.contains(name) && record.at(name) != run.at(name);
      })) {
    return;
  }
  monitor_->Warn(
      fmt::format("the batches are others: epoch {} goes on at the same step, and repeats or "
                  "leaves out some of its pairs; later epochs are whole",
                  static_cast<std::int64_t>(Epoch()) + 1));
}

// The weights are those of the record's step, and with them the numbers of tokens that they have
// seen; the places in the files are those reached since.
data::Origin TrainingLoop::OriginAfterGoingBack(const app::RunRecord& record,
                                                const std::vector<data::SourcePlace>& reached,
                                                std::int64_t next_sample) const {
  data::Origin origin{.step = record.step,
                      .sample = next_sample,
                      .targets = record.origin ? record.origin->targets : 0};
  if (Mixture().empty()) return origin;
  std::vector<data::SourcePlace> then = plan_.training.samples.origin.sources;
  if (record.step != first_step_ && record.origin) then = record.origin->sources;
  then.resize(reached.size());
  for (std::size_t i = 0; i < reached.size(); ++i) {
    origin.sources.push_back({reached[i].windows, then[i].targets});
  }
  return origin;
}

}  // namespace trireme::tasks
