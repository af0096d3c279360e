// Runs queues as late as possible: an operation runs when it is awaited, when a later one is
// awaited, or when the dice decide so.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/stub_cupti.h"
#include "memory.hpp"
#include "settings.hpp"
#include "stream.hpp"

namespace emulator {

namespace {

std::vector<CUstream_st*>& Streams() {
  static std::vector<CUstream_st*> streams;
  return streams;
}

std::uint64_t operations = 0;
bool in_step = false;

bool RunStep(const std::function<bool()>& step, std::uint64_t number) {
  in_step = true;
  running = {.what = "an operation", .number = number};
  const bool done = step();
  running = {};
  in_step = false;
  return done;
}

// Streams whose work is done after they were destroyed.
void Forget(CUstream_st* stream) {
  if (!stream->destroyed || !stream->queue.empty()) return;
  std::erase(Streams(), stream);
  delete stream;
}

// Runs the beginning of another stream's queue now and then.
void Stir(const CUstream_st* except) {
  Dice& dice = TheDice();
  const auto count = static_cast<std::uint32_t>(Streams().size());
  if (count < 2 || !dice.Eager()) return;
  CUstream_st* other = Streams()[dice.Below(count)];
  if (other == except || other->queue.empty()) return;
  DeviceAccess access;
  auto steps = 1 + dice.Below(static_cast<std::uint32_t>(other->queue.size()));
  while (steps > 0 && !other->queue.empty() && Advance(other)) --steps;
  Forget(other);
}

// The same while the host waits for a stream: another one gets ahead by an operation.
void StirMeanwhile(const CUstream_st* awaited) {
  Dice& dice = TheDice();
  if (!dice.Eager()) return;
  const auto& streams = Streams();
  const auto first = dice.Below(static_cast<std::uint32_t>(streams.size()));
  for (std::size_t i = 0; i < streams.size(); ++i) {
    CUstream_st* other = streams[(first + i) % streams.size()];
    if (other == awaited || other->queue.empty()) continue;
    Advance(other);
    Forget(other);
    return;
  }
}

// Nothing to be done in the stream that is waited for: others go on, or other processes.
void GoRound() {
  if (!RunALittle()) sched_yield();
}

}  // namespace

CUstream_st* NewStream(int priority) {
  WatchFaults();
  auto* stream = new CUstream_st;
  stream->device = CurrentDevice();
  stream->priority = priority;
  Streams().push_back(stream);
  return stream;
}

void DestroyStream(CUstream_st* stream) {
  stream->destroyed = true;
  Forget(stream);
}

CUstream_st* LegacyStream() {
  static CUstream_st* stream = NewStream(0);
  return stream;
}

std::vector<CUstream_st*> AllStreams() { return Streams(); }

bool IsStream(cudaStream_t stream) {
  if (stream == nullptr) return false;
  const auto& all = Streams();
  return std::find(all.begin(), all.end(), stream) != all.end() && !stream->destroyed;
}

bool IsCapturing(cudaStream_t stream) { return IsStream(stream) && stream->capture != nullptr; }

std::uint64_t CaptureOf(cudaStream_t stream) {
  return IsCapturing(stream) ? stream->capture->number : 0;
}

void Push(CUstream_st* stream, Operation operation) {
  stream->queue.push_back(std::move(operation));
  Stir(stream);
}

cudaError_t Enqueue(cudaStream_t stream, std::function<bool()> step, const Label& label) {
  RefuseAfterFinalize("a kernel, a copy or another operation of a stream");
  if (in_step) Die("an operation of a stream calls the runtime's API");
  if (stream == nullptr) {
    return Refuse(cudaErrorInvalidResourceHandle,
                  "an operation is queued on the legacy default stream; name a stream");
  }
  if (!IsStream(stream)) {
    return Refuse(cudaErrorInvalidResourceHandle, "an operation is queued on what is no stream");
  }
  if (stream->device != CurrentDevice()) {
    return Refuse(cudaErrorInvalidResourceHandle,
                  "an operation is queued on a stream of another card than the current one");
  }
  step = Told(std::move(step), label, stream, stream->capture != nullptr);
  if (stream->capture != nullptr) return RecordNode(stream, std::move(step));
  Push(stream, {.kind = Operation::Kind::kStep, .step = std::move(step), .moment = nullptr});
  return cudaSuccess;
}

cudaError_t EnqueueInTurn(cudaStream_t stream, std::function<bool()> step, const Label& label) {
  if (!IsCapturing(stream)) return Enqueue(stream, std::move(step), label);
  const std::shared_ptr<Capture> capture = stream->capture;
  for (const int node : capture->last_in_turn) stream->tail.push_back(node);
  const cudaError_t code = Enqueue(stream, std::move(step), label);
  if (code == cudaSuccess) capture->last_in_turn = stream->tail;
  return code;
}

bool Advance(CUstream_st* stream) {
  if (stream->queue.empty()) return false;
  // The reference stays valid: nothing is queued while operations run.
  Operation& first = stream->queue.front();
  switch (first.kind) {
    case Operation::Kind::kStep:
      if (!RunStep(first.step, operations)) return false;
      ++operations;
      break;
    case Operation::Kind::kRecord:
      first.moment->time = std::chrono::steady_clock::now();
      first.moment->happened = true;
      break;
    case Operation::Kind::kWait:
      if (!first.moment->happened) return Advance(first.moment->stream);
      break;
  }
  stream->queue.pop_front();
  return true;
}

void RunAll(CUstream_st* stream) {
  DeviceAccess access;
  while (!stream->queue.empty()) {
    if (!Advance(stream)) GoRound();
    StirMeanwhile(stream);
  }
}

void RunUntil(const std::shared_ptr<Moment>& moment) {
  DeviceAccess access;
  while (!moment->happened) {
    if (!Advance(moment->stream)) GoRound();
    StirMeanwhile(moment->stream);
  }
}

void RunSome(CUstream_st* stream) {
  DeviceAccess access;
  for (auto steps = 1 + TheDice().Below(3); steps > 0 && !stream->queue.empty(); --steps) {
    const bool advanced = Advance(stream);
    StirMeanwhile(stream);
    if (advanced) continue;
    GoRound();
    break;
  }
}

bool RunALittle() {
  DeviceAccess access;
  const std::vector<CUstream_st*> streams = Streams();
  const auto count = streams.size();
  const auto first = TheDice().Below(static_cast<std::uint32_t>(count));
  bool any = false;
  for (std::size_t i = 0; i < count; ++i) {
    CUstream_st* stream = streams[(first + i) % count];
    any = Advance(stream) || any;
  }
  for (CUstream_st* stream : streams) Forget(stream);
  return any;
}

void RunWhatCanBeRun() {
  while (RunALittle()) {
  }
}

// Captures streams into graphs and runs graphs.

namespace {

std::vector<std::shared_ptr<Capture>>& Active() {
  static std::vector<std::shared_ptr<Capture>> active;
  return active;
}

void AddAll(std::vector<int>& set, const std::vector<int>& more) {
  for (const int node : more) {
    if (std::find(set.begin(), set.end(), node) == set.end()) set.push_back(node);
  }
}

// Whether everything that was recorded comes before the end of the stream where it began.
bool Joined(const Capture& capture) {
  std::vector<char> reached(capture.nodes.size(), 0);
  for (const int node : capture.origin->tail) reached[static_cast<std::size_t>(node)] = 1;
  for (std::size_t i = capture.nodes.size(); i-- > 0;) {
    if (reached[i] == 0) return false;
    for (const int node : capture.nodes[i].behind) reached[static_cast<std::size_t>(node)] = 1;
  }
  return true;
}

void Detach(const std::shared_ptr<Capture>& capture) {
  for (CUstream_st* member : capture->streams) {
    member->capture = nullptr;
    member->tail.clear();
  }
  std::erase(Active(), capture);
}

// The state of one run: which nodes may run, and which have been called but are not yet done.
class Run {
 public:
  explicit Run(std::shared_ptr<const Nodes> nodes) : nodes_(std::move(nodes)) {}

  // Runs what can be run; true: all is done.
  bool operator()() {
    if (!begun_) Begin();
    while (RunOne()) {
    }
    return left_ == 0;
  }

 private:
  struct Started {
    int node;
    std::function<bool()> step;
  };

  void Begin() {
    begun_ = true;
    left_ = nodes_->size();
    missing_.resize(left_);
    followers_.resize(left_);
    for (std::size_t i = 0; i < left_; ++i) {
      const auto& behind = (*nodes_)[i].behind;
      missing_[i] = behind.size();
      for (const int node : behind) followers_[static_cast<std::size_t>(node)].push_back(i);
      if (behind.empty()) Start(i);
    }
  }

  void Start(std::size_t node) { open_.push_back({static_cast<int>(node), (*nodes_)[node].step}); }

  // Any open node that can be finished; false: none.
  bool RunOne() {
    if (open_.empty()) return false;
    const auto first = TheDice().Below(static_cast<std::uint32_t>(open_.size()));
    for (std::size_t i = 0; i < open_.size(); ++i) {
      const auto place = (first + i) % open_.size();
      if (!open_[place].step()) continue;
      const int done = open_[place].node;
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(place));
      --left_;
      for (const std::size_t next : followers_[static_cast<std::size_t>(done)]) {
        if (--missing_[next] == 0) Start(next);
      }
      return true;
    }
    return false;
  }

  std::shared_ptr<const Nodes> nodes_;
  bool begun_ = false;
  std::size_t left_ = 0;
  std::vector<std::size_t> missing_;
  std::vector<std::vector<std::size_t>> followers_;
  std::vector<Started> open_;
};

}  // namespace

bool CaptureForbids() {
  return std::any_of(Active().begin(), Active().end(), [](const auto& capture) {
    return capture->mode != cudaStreamCaptureModeRelaxed;
  });
}

cudaError_t SpoilCaptures(const char* call) {
  for (const auto& capture : Active()) {
    if (capture->mode != cudaStreamCaptureModeRelaxed) capture->invalid = true;
  }
  return Refuse(cudaErrorStreamCaptureUnsupported,
                std::string(call) + " while a stream is being captured");
}

cudaError_t BeginCapture(CUstream_st* stream, cudaStreamCaptureMode mode) {
  if (stream->capture != nullptr) {
    return Refuse(cudaErrorIllegalState, "the stream is being captured already");
  }
  static std::uint64_t captures = 0;
  auto capture = std::make_shared<Capture>();
  capture->number = ++captures;
  capture->origin = stream;
  capture->mode = mode;
  capture->streams = {stream};
  Active().push_back(capture);
  stream->capture = std::move(capture);
  stream->tail.clear();
  return cudaSuccess;
}

std::shared_ptr<const Nodes> EndCapture(CUstream_st* stream, cudaError_t& error) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) {
    error = Refuse(cudaErrorStreamCaptureUnmatched, "no capture began in this stream");
    return nullptr;
  }
  error = cudaSuccess;
  if (capture->invalid) {
    error = Refuse(cudaErrorStreamCaptureInvalidated, "an earlier call spoilt the capture");
  } else if (!Joined(*capture)) {
    error = Refuse(cudaErrorStreamCaptureUnjoined,
                   "a stream that took part was not joined to the one where the capture began");
  }
  Detach(capture);
  if (error != cudaSuccess) return nullptr;
  return std::make_shared<const Nodes>(std::move(capture->nodes));
}

void DropCapture(CUstream_st* stream) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin == stream) {
    Detach(capture);
    return;
  }
  capture->invalid = true;
  std::erase(capture->streams, stream);
  stream->capture = nullptr;
}

cudaError_t RecordNode(CUstream_st* stream, std::function<bool()> step) {
  Capture& capture = *stream->capture;
  if (capture.invalid) {
    return Refuse(cudaErrorStreamCaptureInvalidated, "an earlier call spoilt the capture");
  }
  capture.nodes.push_back({std::move(step), stream->tail});
  stream->tail = {static_cast<int>(capture.nodes.size()) - 1};
  return cudaSuccess;
}

void RecordEvent(CUstream_st* stream, CUevent_st* event) {
  event->captured = true;
  event->capture = stream->capture;
  event->nodes = stream->tail;
}

cudaError_t WaitInCapture(CUstream_st* stream, CUevent_st* event) {
  const std::shared_ptr<Capture> of_event = event->captured ? event->capture.lock() : nullptr;
  const bool active = of_event != nullptr &&
                      std::find(Active().begin(), Active().end(), of_event) != Active().end();
  if (!active) {
    if (stream->capture != nullptr) stream->capture->invalid = true;
    return Refuse(cudaErrorStreamCaptureIsolation,
                  stream->capture != nullptr
                      ? "a stream that is being captured waits for an event from outside"
                      : "a stream waits for an event of a capture that is over");
  }
  if (stream->capture == nullptr) {
    stream->capture = of_event;
    stream->tail.clear();
    of_event->streams.push_back(stream);
  } else if (stream->capture != of_event) {
    stream->capture->invalid = of_event->invalid = true;
    return Refuse(cudaErrorStreamCaptureMerge, "an event leads from one capture to another");
  }
  AddAll(stream->tail, event->nodes);
  return cudaSuccess;
}

std::function<bool()> RunOf(std::shared_ptr<const Nodes> nodes) { return Run(std::move(nodes)); }

// RefuseAfterFinalize: the end of MPI as the end of all work on cards.

void RefuseAfterFinalize(const char* call) {
  int ended = 0;
  PMPI_Finalized(&ended);
  if (ended != 0) Die(std::string(call) + " after MPI_Finalize");
}

// Told: the library that listens, the graph that is running, the times of a step.

namespace {

struct Listener {
  StubCuptiCallFunction call = nullptr;
  StubCuptiWorkFunction work = nullptr;
};

// The library that the program has loaded by now; without functions if it has not.
Listener TheListener() {
  static const char* const path = std::getenv("TRIREME_CUPTI");
  static Listener listener;
  if (path == nullptr || listener.work != nullptr) return listener;
  void* const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return listener;
  listener.call = reinterpret_cast<StubCuptiCallFunction>(dlsym(library, "StubCuptiCall"));
  listener.work = reinterpret_cast<StubCuptiWorkFunction>(dlsym(library, "StubCuptiWork"));
  return listener;
}

std::uint64_t Now() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

// The graph whose nodes run.
struct Launch {
  std::uint32_t call = 0, graph = 0, node = 0;
};
Launch running_graph;

const char* NameOf(const Label& label) {
  if (label.kernel == nullptr) return label.name;
  static std::map<const void*, std::string> names;
  const auto [found, added] = names.try_emplace(label.kernel);
  if (added) found->second = SymbolOf(label.kernel);
  return found->second.c_str();
}

struct Telling {
  std::function<bool()> step;
  Label label;
  cudaStream_t stream;
  std::uint32_t call, graph;
  std::uint64_t begun = 0;

  bool operator()() {
    if (begun == 0) begun = Now();
    if (label.kind == Label::Kind::kGraph) {
      running_graph = {.call = call, .graph = graph, .node = 0};
      const bool done = step();
      running_graph = {};
      return done;
    }
    if (!step()) return false;
    const bool in_graph = running_graph.graph != 0;
    const StubWork work = {.kind = static_cast<std::int32_t>(label.kind),
                           .call = in_graph ? running_graph.call : call,
                           .graph = running_graph.graph,
                           .node = in_graph ? ++running_graph.node : 0,
                           .stream = stream,
                           .name = NameOf(label),
                           .bytes = label.bytes,
                           .begin = std::exchange(begun, 0),
                           .end = Now()};
    if (const Listener listener = TheListener(); listener.work != nullptr) listener.work(&work);
    return true;
  }
};
static_assert(static_cast<int>(Label::Kind::kKernel) == kStubKernel &&
              static_cast<int>(Label::Kind::kCopy) == kStubCopy &&
              static_cast<int>(Label::Kind::kFill) == kStubFill);

}  // namespace

std::function<bool()> Told(std::function<bool()> step, const Label& label, cudaStream_t stream,
                           bool captured) {
  static const bool wanted = std::getenv("TRIREME_CUPTI") != nullptr;
  if (!wanted || label.kind == Label::Kind::kNone) return step;
  static std::uint32_t graphs = 0;
  const Listener listener = TheListener();
  if (captured && listener.call == nullptr) return step;  // a graph from before is not seen
  const std::uint32_t call = captured || listener.call == nullptr ? 0 : listener.call();
  const std::uint32_t graph = label.kind == Label::Kind::kGraph ? ++graphs : 0;
  return Telling{std::move(step), label, stream, call, graph};
}

// SymbolOf: the table of symbols in the program's own file, which has static functions too.

namespace {

struct Symbol {
  std::uintptr_t address;  // within the file
  std::string name;
};

template <typename T>
const T* At(const std::string& file, std::size_t offset, std::size_t count = 1) {
  if (offset + count * sizeof(T) > file.size()) return nullptr;
  return reinterpret_cast<const T*>(file.data() + offset);
}

// Functions of the program, by address; none if its table was stripped.
std::vector<Symbol> ReadSymbols() {
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  std::vector<Symbol> symbols;
  const auto* const header = At<ElfW(Ehdr)>(file, 0);
  if (header == nullptr) return symbols;
  const auto* const sections = At<ElfW(Shdr)>(file, header->e_shoff, header->e_shnum);
  for (int i = 0; sections != nullptr && i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const std::size_t count = sections[i].sh_size / sizeof(ElfW(Sym));
    const auto* const table = At<ElfW(Sym)>(file, sections[i].sh_offset, count);
    const std::size_t names = sections[sections[i].sh_link].sh_offset;
    for (std::size_t k = 0; table != nullptr && k < count; ++k) {
      if (ELF64_ST_TYPE(table[k].st_info) != STT_FUNC || table[k].st_value == 0) continue;
      symbols.push_back({table[k].st_value, file.data() + names + table[k].st_name});
    }
  }
  std::ranges::sort(symbols, {}, &Symbol::address);
  return symbols;
}

// Address at which the program's file, the first object, lies in memory.
std::uintptr_t Base() {
  std::uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* out) {
        *static_cast<std::uintptr_t*>(out) = object->dlpi_addr;
        return 1;
      },
      &base);
  return base;
}

}  // namespace

std::string SymbolOf(const void* function) {
  static const std::vector<Symbol> symbols = ReadSymbols();
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(function) - Base();
  const auto found = std::ranges::lower_bound(symbols, address, {}, &Symbol::address);
  return found != symbols.end() && found->address == address ? found->name : "";
}

}  // namespace emulator
