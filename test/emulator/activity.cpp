// Told: the library that listens, the graph that is running, the times of a step.
#include "activity.hpp"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <utility>

#include "support/stub_cupti.h"

namespace emulator {
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

}  // namespace emulator
