// Recorder: adds the host's slices as they end, and a GPU queue's slices from pairs of events.
#include "trireme/device/recorder.hpp"

#include <cxxabi.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <map>

#include "trireme/base/clock.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/trace_file.hpp"

namespace trireme::device {

// Names of categories, phases and slices in the trace file.

const char* NameOf(SliceCategory category) {
  constexpr std::array<const char*, kCategories> kTexts = {
      "step", "compute", "data", "wait", "transfer", "checkpoint", "validation", "kernel"};
  return kTexts.at(static_cast<std::size_t>(category));
}

const char* NameOf(Phase phase) {
  constexpr std::array<const char*, kPhases> kTexts = {
      "",          "forward", "backward", "input gradient", "weight gradient",
      "recompute", "update",  "evaluate"};
  return kTexts.at(static_cast<std::size_t>(phase));
}

const char* NameOf(SliceName name) {
  constexpr std::array<const char*, kNames> kTexts = {
      "step",          "load batch", "gradients",  "await gradients", "sum gradients",
      "count targets", "norm",       "agreement",  "update",          "task",
      "layer",         "embedding",  "head",       "recompute",       "transfer",
      "wait",          "bubble",     "checkpoint", "validation",      "histograms"};
  return kTexts.at(static_cast<std::size_t>(name));
}

Recorder::Recorder(std::int64_t most, const device::Stream& stream,
                   std::unique_ptr<device::Activities> activities)
    : most_(static_cast<std::size_t>(std::max<std::int64_t>(most, 0))),
      since_(Seconds()),
      stream_(stream),
      activities_(std::move(activities)) {
  slices_.reserve(most_);  // the system provides the pages when they are written
  if (!OnGpu()) return;
  origin_ = device::Event(stream_, true);
  CompareClocks();
}

void Recorder::Put(const Slice& slice) {
  if (slices_.size() == most_) return LeaveOut(slice.step);
  slices_.push_back(slice);
}

Slice Recorder::Stamped(Slice slice) const {
  slice.step = step_;
  slice.micro_batch = micro_batch_;
  slice.chunk = chunk_;
  return slice;
}

void Recorder::LeaveOut(std::int64_t step) {
  if (left_out_++ == 0) full_at_ = step;
}

void Recorder::SetStep(std::int64_t step) {
  step_ = static_cast<std::int32_t>(step);
  if (TellsKernels()) steps_.emplace_back(Seconds(), step_);
}

// When there is no room for more tags, queued work counts for the enclosing slice.
void Recorder::Enter(const Slice& slice) {
  if (!TellsKernels()) return;
  std::uint64_t tag = open_.empty() ? 0 : open_.back();
  if (tagged_.size() < most_) {
    tagged_.push_back(Stamped(slice));
    tag = tagged_.size();
  }
  open_.push_back(tag);
  activities_->Push(tag);
}

void Recorder::Leave() {
  if (open_.empty()) return;
  open_.pop_back();
  if (TellsKernels()) activities_->Pop();
}

bool Recorder::TakesQueued() {
  if (!OnGpu()) return false;
  if (slices_.size() + queued_.size() < most_) return true;
  LeaveOut(step_);
  return false;
}

void Recorder::Add(Slice slice) {
  slice.begin = std::max(slice.begin, since_);
  slice.step = step_;
  Put(slice.queue == SliceQueue::kHost ? Stamped(slice) : slice);
}

std::size_t Recorder::Mark() {
  if (marked_ == marks_.size()) marks_.emplace_back(stream_, true);
  marks_[marked_].Record(stream_.gpu->queue);
  return marked_++;
}

void Recorder::AddQueued(const Slice& slice, std::size_t begin, std::size_t end) {
  queued_.push_back({Stamped(slice), begin, end});
  queued_.back().slice.queue = SliceQueue::kGpu;
}

// The origin event is between two readings of the host's clock: takes their middle.
void Recorder::CompareClocks() {
  device::Synchronise(stream_);
  const double before = Seconds();
  origin_.Record(stream_.gpu->queue);
  origin_.Await();
  const double after = Seconds();
  origin_time_ = (before + after) / 2;
  gpu_clock_error_ = std::max(gpu_clock_error_, (after - before) / 2);
}

void Recorder::Place(Slice& slice, const device::Event& begin, const device::Event& end) const {
  slice.begin = origin_time_ + begin.SecondsSince(origin_);
  slice.end = origin_time_ + end.SecondsSince(origin_);
}

void Recorder::Settle() {
  if (!OnGpu()) return;
  device::Synchronise(stream_);
  for (Queued& queued : queued_) {
    Place(queued.slice, marks_[queued.begin], marks_[queued.end]);
    Put(queued.slice);
  }
  queued_.clear();
  marked_ = 0;
  CompareClocks();
}

std::int32_t Recorder::StepAt(double time) const {
  const auto next =
      std::ranges::upper_bound(steps_, time, {}, &decltype(steps_)::value_type::first);
  if (next == steps_.begin()) return steps_.empty() ? step_ : steps_.front().second;
  return std::prev(next)->second;
}

Kernel Recorder::KernelOf(const device::Activity& activity) const {
  const bool tagged = activity.tag >= 1 && activity.tag <= tagged_.size();
  const Slice slice = tagged ? tagged_[activity.tag - 1] : Slice{.step = StepAt(activity.begin)};
  return {.begin = activity.begin,
          .end = activity.end,
          .bytes = activity.bytes,
          .step = slice.step,
          .layer = slice.layer,
          .micro_batch = slice.micro_batch,
          .chunk = slice.chunk,
          .name = activity.name,
          .graph = activity.graph,
          .kind = activity.kind,
          .task = slice.name,
          .phase = slice.phase,
          .tagged = tagged};
}

void Recorder::Finish() {
  Settle();
  if (!TellsKernels()) return;
  const device::ActivityRecord record = activities_->Finish();
  kernels_.library = activities_->Library();
  activities_.reset();
  std::map<std::uint32_t, std::int16_t> queues = {{record.queue, 0}, {record.input_queue, 1}};
  for (const device::Activity& activity : record.all) {
    if (activity.begin < since_) continue;
    const auto next = static_cast<std::int16_t>(queues.size());
    kernels_.all.push_back(KernelOf(activity));
    kernels_.all.back().queue = queues.try_emplace(activity.queue, next).first->second;
  }
  for (const std::string& symbol : record.names) kernels_.names.push_back(ShortName(symbol));
  kernels_.clock_error = record.clock_error;
  kernels_.left_out = record.left_out;
  if (record.left_out > 0) kernels_.first_step_left_out = StepAt(record.full_at);
}

void Scope::Begin(const What& what) {
  what_ = what;
  what_.queues = what_.queues && recorder_->TakesQueued();
  if (what_.queues) mark_ = recorder_->Mark();
  if (recorder_->TellsKernels()) recorder_->Enter(SliceOf());
  begin_ = Seconds();
}

Slice Scope::SliceOf() const {
  return {
      .layer = what_.layer, .name = what_.name, .category = what_.category, .phase = what_.phase};
}

void Scope::End() {
  Slice slice = SliceOf();
  slice.begin = begin_;
  slice.end = Seconds();
  recorder_->Leave();
  recorder_->Add(slice);
  if (what_.queues) recorder_->AddQueued(slice, mark_, recorder_->Mark());
}

// Greedy colouring of intervals: needs no more lanes than slices overlap at any time.

std::vector<int> Lanes(const std::vector<Slice>& slices) {
  std::vector<int> lanes;
  lanes.reserve(slices.size());
  std::vector<double> ends;
  for (const Slice& slice : slices) {
    const auto free =
        std::find_if(ends.begin(), ends.end(), [&](double end) { return end <= slice.begin; });
    lanes.push_back(static_cast<int>(free - ends.begin()));
    if (free == ends.end()) {
      ends.push_back(slice.end);
    } else {
      *free = slice.end;
    }
  }
  return lanes;
}

// Short names of kernels from their symbols.

namespace {

constexpr std::size_t kLongest = 80;  // bytes
constexpr const char* kCut = "...";

std::string Demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? text.get() : symbol;
}

void EraseAll(std::string& text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.erase(at, part.size());
  }
}

// Erases the arguments (the last outermost parentheses) and what follows them.
void EraseArguments(std::string& text) {
  int depth = 0;
  for (std::size_t at = text.rfind(')'); at != std::string::npos && at > 0; --at) {
    if (text[at] == ')') ++depth;
    if (text[at] == '(' && --depth == 0) {
      text.erase(at);
      return;
    }
  }
}

// Erases the result: everything up to the last space outside all brackets.
void EraseResult(std::string& text) {
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '<' || text[at] == '(') ++depth;
    if (text[at] == '>' || text[at] == ')') --depth;
    if (text[at] == ' ' && depth == 0) begin = at + 1;
  }
  text.erase(0, begin);
}

// Erases name spaces and classes, in template arguments too.
void EraseScopes(std::string& text) {
  const auto in_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (std::size_t at = text.find("::"); at != std::string::npos; at = text.find("::", at)) {
    std::size_t begin = at;
    while (begin > 0 && in_name(text[begin - 1])) --begin;
    text.erase(begin, at + 2 - begin);
    at = begin;
  }
}

}  // namespace

std::string ShortName(const std::string& symbol) {
  std::string text = Demangled(symbol);
  if (text != symbol) {
    EraseAll(text, "(anonymous namespace)::");
    EraseArguments(text);
    EraseResult(text);
    EraseScopes(text);
  }
  if (text.empty()) text = symbol;
  if (text.size() > kLongest) text = text.substr(0, kLongest - std::string(kCut).size()) + kCut;
  return text;
}

}  // namespace trireme::device
