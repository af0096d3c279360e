// Machine: descriptions as decks of their own schema, and the keys of that.
#include "trireme/predict/machine.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/deck/deck.hpp"

namespace trireme::predict {

namespace {

namespace fs = std::filesystem;

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6, kMilli = 1e-3;
constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kMost = 1e9;  // of any number below: no machine is that large

struct TypeKeys {
  const char* name;
  Products Machine::*products;
};
constexpr TypeKeys kTypes[] = {{"fp64", &Machine::fp64},
                               {"fp32", &Machine::fp32},
                               {"bf16", &Machine::bf16},
                               {"fp8", &Machine::fp8}};
struct LinkKeys {
  const char* name;
  const char* what;
  Link Machine::*link;
};
constexpr LinkKeys kLinks[] = {{"node", "the other ranks of its node", &Machine::node},
                               {"network", "ranks of other nodes", &Machine::network}};

void DeclareCompute(deck::Schema& schema) {
  schema.Section("compute", "A rank's speed: a GPU's, or that of its threads.");
  for (const TypeKeys& type : kTypes) {
    const std::string key = fmt::format("compute.{}", type.name);
    schema
        .Real(key + "_tflops", 0, deck::Between(0, kMost), "TFLOP/s",
              fmt::format("Peak of {} products. 0: none.", type.name))
        .Real(key + "_efficiency", 0.7, deck::Between(0, 1), "",
              "Share of the peak that large products reach.")
        .Real(key + "_half", 0, deck::Between(0, kMost), "elements",
              "Size of one dimension at which a product has half of that speed.");
  }
  schema
      .Real("compute.attention_efficiency", 0.4, deck::Between(0, 1), "",
            "Share of the peak that attention reaches, recomputed scores included.")
      .Real("compute.memory_gbs", 0, deck::Between(0, kMost), "GB/s",
            "Speed of passes over memory: norms, activations, the optimizer.")
      .Real("compute.kernel_us", 0, deck::Between(0, kMost), "us",
            "Time of a kernel that has nothing to do.")
      .Real("compute.step_ms", 0, deck::Between(0, kMost), "ms",
            "Time of a step besides its kernels and transfers.");
}

void DeclareLinks(deck::Schema& schema) {
  schema.Section("links", "What a rank sends, in one direction.");
  for (const LinkKeys& link : kLinks) {
    const std::string key = fmt::format("links.{}", link.name);
    schema
        .Real(key + "_gbs", 0, deck::Between(0, kMost), "GB/s",
              fmt::format("Speed to {}, as large transfers reach it.", link.what))
        .Real(key + "_reduction_gbs", 0, deck::Between(0, kMost), "GB/s",
              "The same for sums. 0: as other transfers.")
        .Real(key + "_latency_us", 0, deck::Between(0, kMost), "us",
              "Time of a step of a transfer's algorithm without bytes.");
  }
  schema.Switch("links.background", true, "Whether transfers go on while the rank computes.")
      .Real("links.interference", 0, deck::HalfOpen(0, 1), "",
            "Share of its speed that computation loses while transfers go on.")
      .Real("links.files_gbs", 0, deck::Between(0, kMost), "GB/s",
            "Speed of the file system for all ranks together. 0: not stated.");
}

}  // namespace

deck::Schema MachineSchema() {
  deck::Schema schema;
  schema.Section("machine", "A computer, for job.task = plan.")
      .Text("machine.title", "", "Name for people.")
      .Text("machine.source", "", "Where the numbers come from, with a date.")
      .Text("machine.assumption", "", "Numbers that nobody has measured, in words.")
      .Choice("machine.device", "cuda", {"cpu", "cuda"}, "What computes.")
      .Integer("machine.nodes", 0, deck::Between(0, kMost), "nodes",
               "Nodes that there are. 0: not stated.")
      .Integer("machine.ranks_per_node", 1, deck::Between(1, kMost), "ranks",
               "Ranks of a node: its GPUs.")
      .Integer("machine.threads", 1, deck::Between(1, kMost), "threads", "Threads of a CPU's rank.")
      .Real("machine.memory_gib", 80, deck::Above(0), "GiB",
            "Memory that a rank can take: of its GPU, or its part of the node's.")
      .Integer("machine.capability", 90, deck::Between(10, 1000), "",
               "Compute capability of the GPU, times ten.")
      .Integer("machine.multiprocessors", 132, deck::Between(1, kMost), "",
               "Multiprocessors of the GPU.");
  DeclareCompute(schema);
  DeclareLinks(schema);
  schema.Section("power", "Power under load.")
      .Real("power.rank_watts", 0, deck::Between(0, kMost), "W", "A rank's GPU. 0: not stated.")
      .Real("power.node_watts", 0, deck::Between(0, kMost), "W", "A node besides its GPUs.");
  return schema;
}

const Products& Machine::Of(Dtype type, bool fp8_products) const {
  if (fp8_products) return fp8;
  if (type == Dtype::kBfloat16) return bf16;
  return type == Dtype::kFloat64 ? fp64 : fp32;
}

device::GpuContext Machine::Card() const {
  device::GpuContext card;
  card.name = title;
  card.major = capability / 10;
  card.minor = capability % 10;
  card.multiprocessors = multiprocessors;
  card.memory_bytes = memory_bytes;
  return card;
}

std::vector<std::string> MachineNames(const std::string& shared) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(shared) / "input" / "machines", error)) {
    if (entry.path().extension() == ".in") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

namespace {

// Throws InputError that says which machines there are.
std::string MachineText(const std::string& file, const std::string& shared) {
  std::ifstream in(file);
  std::stringstream text;
  if (in) {
    text << in.rdbuf();
    return text.str();
  }
  const std::vector<std::string> known = MachineNames(shared);
  const std::string hint =
      known.empty()
          ? "This program lies without the files that come with it: cmake --install keeps "
            "them together."
          : fmt::format("Machines that come with Trireme: {}.", fmt::join(known, ", "));
  throw InputError(fmt::format("plan.machine: {} cannot be read", file),
                   hint + " A path names another one.");
}

}  // namespace

Machine ReadMachine(const std::string& name, const std::string& shared) {
  const bool path = name.find('/') != std::string::npos || name.ends_with(".in");
  const std::string file =
      path ? name : (fs::path(shared) / "input" / "machines" / (name + ".in")).string();
  const std::string text = MachineText(file, shared);
  const deck::Schema schema = MachineSchema();
  const deck::Deck deck = deck::Deck::Parse(schema, text, file, {});
  Machine machine;
  machine.name = fs::path(file).stem().string();
  machine.title = deck.Text("machine.title");
  if (machine.title.empty()) machine.title = machine.name;
  machine.source = deck.Text("machine.source");
  if (const std::string& words = deck.Text("machine.assumption"); !words.empty()) {
    machine.assumptions.push_back(words);
  }
  machine.gpu = deck.Text("machine.device") == "cuda";
  machine.nodes = static_cast<int>(deck.Integer("machine.nodes"));
  machine.ranks_per_node = static_cast<int>(deck.Integer("machine.ranks_per_node"));
  machine.threads = static_cast<int>(deck.Integer("machine.threads"));
  machine.memory_bytes = static_cast<std::int64_t>(deck.Real("machine.memory_gib") * kGib);
  machine.capability = static_cast<int>(deck.Integer("machine.capability"));
  machine.multiprocessors = static_cast<int>(deck.Integer("machine.multiprocessors"));
  const deck::Deck& families = deck;  // of keys whose names are made of parts
  for (const TypeKeys& type : kTypes) {
    const std::string key = fmt::format("compute.{}", type.name);
    machine.*type.products = {.peak = families.Real(key + "_tflops") * kTera,
                              .efficiency = families.Real(key + "_efficiency"),
                              .half = families.Real(key + "_half")};
  }
  machine.attention = deck.Real("compute.attention_efficiency");
  machine.memory = deck.Real("compute.memory_gbs") * kGiga;
  machine.kernel_seconds = deck.Real("compute.kernel_us") * kMicro;
  machine.step_seconds = deck.Real("compute.step_ms") * kMilli;
  for (const LinkKeys& link : kLinks) {
    const std::string key = fmt::format("links.{}", link.name);
    machine.*link.link = {.bandwidth = families.Real(key + "_gbs") * kGiga,
                          .reduction = families.Real(key + "_reduction_gbs") * kGiga,
                          .latency = families.Real(key + "_latency_us") * kMicro};
  }
  machine.background = deck.Switch("links.background");
  machine.interference = deck.Real("links.interference");
  machine.file_bandwidth = deck.Real("links.files_gbs") * kGiga;
  machine.watts_rank = deck.Real("power.rank_watts");
  machine.watts_node = deck.Real("power.node_watts");
  for (const auto& [key, value] : {std::pair{"compute.memory_gbs", machine.memory},
                                   std::pair{"links.node_gbs", machine.node.bandwidth},
                                   std::pair{"links.network_gbs", machine.network.bandwidth}}) {
    if (value <= 0) throw deck.Complain(key, "a prediction needs it", "State it, above 0.");
  }
  return machine;
}

std::string Write(const Machine& machine, const std::string& heading) {
  std::string text = fmt::format("# {}\n[machine]\ntitle = {}\nsource = {}\n", heading,
                                 machine.title, machine.source);
  if (!machine.assumptions.empty()) {
    text += fmt::format("assumption = {}\n", fmt::join(machine.assumptions, "; "));
  }
  text += fmt::format("device = {}\nnodes = {}\nranks_per_node = {}\nthreads = {}\n",
                      machine.gpu ? "cuda" : "cpu", machine.nodes, machine.ranks_per_node,
                      machine.threads);
  text += fmt::format("memory_gib = {}\n", static_cast<double>(machine.memory_bytes) / kGib);
  if (machine.gpu) {
    text += fmt::format("capability = {}\nmultiprocessors = {}\n", machine.capability,
                        machine.multiprocessors);
  }
  text += "\n[compute]\n";
  for (const TypeKeys& type : kTypes) {
    const Products& products = machine.*type.products;
    if (products.peak <= 0) continue;
    text += fmt::format("{0}_tflops = {1}\n{0}_efficiency = {2}\n{0}_half = {3}\n", type.name,
                        products.peak / kTera, products.efficiency, products.half);
  }
  text += fmt::format(
      "attention_efficiency = {}\nmemory_gbs = {}\nkernel_us = {}\nstep_ms = {}\n\n[links]\n",
      machine.attention, machine.memory / kGiga, machine.kernel_seconds / kMicro,
      machine.step_seconds / kMilli);
  for (const LinkKeys& link : kLinks) {
    const Link& one = machine.*link.link;
    text += fmt::format("{0}_gbs = {1}\n{0}_reduction_gbs = {2}\n{0}_latency_us = {3}\n", link.name,
                        one.bandwidth / kGiga, one.reduction / kGiga, one.latency / kMicro);
  }
  text += fmt::format("background = {}\ninterference = {}\nfiles_gbs = {}\n",
                      machine.background ? "yes" : "no", machine.interference,
                      machine.file_bandwidth / kGiga);
  text += fmt::format("\n[power]\nrank_watts = {}\nnode_watts = {}\n", machine.watts_rank,
                      machine.watts_node);
  return text;
}

}  // namespace trireme::predict
