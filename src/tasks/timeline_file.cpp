// TimelineFile: slices and kernels of one rank after another, and the members of otherData.
#include "timeline_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "timeline.hpp"

namespace trireme::tasks {

namespace {
constexpr std::size_t kWhy = 0, kLibrary = 1, kFirstName = 2;  // of RankTexts
}  // namespace

RankTexts TextsOf(const device::Recorder& recorder, const std::string& why) {
  const device::Recorder::Kernels& kernels = recorder.AllKernels();
  RankTexts texts = {why, kernels.library};
  texts.insert(texts.end(), kernels.names.begin(), kernels.names.end());
  return texts;
}

// RankTexts that end with a zero byte each.
std::string JoinedTexts(const RankTexts& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + '\0';
  return all;
}

RankTexts Split(const std::string& joined) {
  RankTexts texts;
  for (std::size_t begin = 0; begin < joined.size(); begin += texts.back().size() + 1) {
    texts.push_back(joined.substr(begin, joined.find('\0', begin) - begin));
  }
  return texts;
}

RankSummary SummaryOf(const device::Recorder& recorder, const comm::ClockComparison& first,
                      const comm::ClockComparison& last) {
  return {first,
          last,
          recorder.GpuClockError(),
          std::ssize(recorder.Slices()),
          recorder.LeftOut(),
          recorder.FirstStepLeftOut(),
          recorder.AllKernels().clock_error,
          std::ssize(recorder.AllKernels().all),
          recorder.AllKernels().left_out,
          recorder.AllKernels().first_step_left_out};
}

void TimelineFile::Add(int rank, const RankSummary& summary, std::vector<device::Slice> slices,
                       std::vector<device::Kernel> kernels, const RankTexts& texts) {
  count_ += summary.slices;
  AddKernels(rank, summary, texts);
  const double error = std::max(summary.first.error, summary.last.error);
  clock_error_ = std::max(clock_error_, error);
  gpu_clock_error_ = std::max(gpu_clock_error_, summary.gpu_clock_error);
  clocks_.push_back({{"rank", rank},
                     {"offset_us", kMicro * summary.first.offset},
                     {"drift_us_per_second", kMicro * comm::Drift(summary.first, summary.last)},
                     {"error_us", kMicro * error}});
  if (summary.left_out > 0) {
    left_out_.push_back(
        {{"rank", rank}, {"slices", summary.left_out}, {"from_step", summary.first_step_left_out}});
  }
  const device::RankFacts facts = {
      .rank = rank,
      .host = setup_.runtime.Hosts().Of(rank),
      .group = [](int group) { return NameOf(static_cast<comm::Group>(group)); },
      .transfer = [](int each) { return NameOf(static_cast<comm::Transfer>(each)); },
      .peer = [&](const device::Slice& slice) { return PeerOf(slice, rank, setup_.shape); },
      .aligned =
          [&](double seconds) {
            return comm::Aligned(seconds, summary.first, summary.last) - setup_.origin;
          }};
  file_.Add(facts, std::move(slices));
  file_.Add(facts, std::move(kernels), {texts.begin() + kFirstName, texts.end()});
}

std::error_code TimelineFile::Place(nlohmann::json other) {
  other["clock_error_us"] = kMicro * clock_error_;
  if (setup_.on_gpu) other["gpu_clock_error_us"] = kMicro * gpu_clock_error_;
  if (setup_.on_gpu) other["kernels"] = Kernels();
  other["clocks"] = clocks_;
  other["slices"] = count_;
  other["slices_left_out"] = left_out_;
  return file_.Place(other);
}

void TimelineFile::AddKernels(int rank, const RankSummary& summary, const RankTexts& texts) {
  kernel_count_ += summary.kernels;
  kernel_clock_error_ = std::max(kernel_clock_error_, summary.kernel_clock_error);
  if (why_.empty() && !texts[kWhy].empty()) why_ = fmt::format("rank {}: {}", rank, texts[kWhy]);
  if (library_.empty()) library_ = texts[kLibrary];
  if (summary.kernels_left_out == 0) return;
  kernels_left_out_.push_back({{"rank", rank},
                               {"kernels", summary.kernels_left_out},
                               {"from_step", summary.kernels_first_step_left_out}});
}
nlohmann::json TimelineFile::Kernels() const {
  nlohmann::json kernels = {{"count", kernel_count_}, {"left_out", kernels_left_out_}};
  if (!why_.empty()) kernels["why_not"] = why_;
  if (library_.empty()) return kernels;
  kernels["library"] = library_;
  kernels["clock_error_us"] = kMicro * kernel_clock_error_;
  return kernels;
}

}  // namespace trireme::tasks
