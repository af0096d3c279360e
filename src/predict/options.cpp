// Machine: descriptions are decks with a schema of their own; its keys.
#include "trireme/predict/machine.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/deck/keys.hpp"

namespace trireme::predict {

namespace {

namespace fs = std::filesystem;

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6, kMilli = 1e-3;
constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kMost = 1e9;  // limit of the numbers below: no machine is that large

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

void BindCompute(deck::Keys keys, Machine& o) {
  keys.Section("compute", "A rank's speed: a GPU's, or that of its threads.");
  for (const TypeKeys& type : kTypes) {
    const std::string key = fmt::format("compute.{}", type.name);
    Products& products = o.*type.products;
    keys.Real(key + "_tflops", products.peak, deck::Between(0, kMost), {"TFLOP/s", kTera},
              fmt::format("Peak of {} products. 0: none.", type.name))
        .Real(key + "_efficiency", products.efficiency, deck::Between(0, 1), "",
              "Share of the peak that large products reach.")
        .Real(key + "_half", products.half, deck::Between(0, kMost), "elements",
              "Size of one dimension at which a product has half of that speed.");
  }
  keys.Real("compute.attention_efficiency", o.attention, deck::Between(0, 1), "",
            "Share of the peak that attention reaches, recomputed scores included.")
      .Real("compute.memory_gbs", o.memory, deck::Between(0, kMost), {"GB/s", kGiga},
            "Speed of passes over memory: norms, activations, the optimizer.")
      .Real("compute.kernel_us", o.kernel_seconds, deck::Between(0, kMost), {"us", kMicro},
            "Time of a kernel that has nothing to do.")
      .Real("compute.step_ms", o.step_seconds, deck::Between(0, kMost), {"ms", kMilli},
            "Time of a step besides its kernels and transfers.");
}

void BindLinks(deck::Keys keys, Machine& o) {
  keys.Section("links", "What a rank sends, in one direction.");
  for (const LinkKeys& link : kLinks) {
    const std::string key = fmt::format("links.{}", link.name);
    Link& one = o.*link.link;
    keys.Real(key + "_gbs", one.bandwidth, deck::Between(0, kMost), {"GB/s", kGiga},
              fmt::format("Speed to {}, as large transfers reach it.", link.what))
        .Real(key + "_reduction_gbs", one.reduction, deck::Between(0, kMost), {"GB/s", kGiga},
              "The same for sums. 0: as other transfers.")
        .Real(key + "_latency_us", one.latency, deck::Between(0, kMost), {"us", kMicro},
              "Time of a step of a transfer's algorithm without bytes.");
  }
  keys.Switch("links.background", o.background, "Whether transfers go on while the rank computes.")
      .Real("links.interference", o.interference, deck::HalfOpen(0, 1), "",
            "Share of its speed that computation loses while transfers go on.")
      .Real("links.files_gbs", o.file_bandwidth, deck::Between(0, kMost), {"GB/s", kGiga},
            "Speed of the file system for all ranks together. 0: not stated.");
}

constexpr deck::Names<2> kDevices = {"cpu", "cuda"};

// A description as bound to keys: the machine, and members that the deck states in another form.
struct Description : Machine {
  std::string assumption;
  double memory_gib = 80;
};

void Bind(deck::Keys keys, Description& o) {
  keys.Section("machine", "A computer, for job.task = plan.")
      .Text("machine.title", o.title, "Name for people.")
      .Text("machine.source", o.source, "Where the numbers come from, with a date.")
      .Text("machine.assumption", o.assumption, "Numbers that nobody has measured, in words.")
      .Choice("machine.device", o.gpu, kDevices, "What computes.")
      .Integer("machine.nodes", o.nodes, deck::Between(0, kMost), "nodes",
               "Nodes that there are. 0: not stated.")
      .Integer("machine.ranks_per_node", o.ranks_per_node, deck::Between(1, kMost), "ranks",
               "Ranks of a node: its GPUs.")
      .Integer("machine.threads", o.threads, deck::Between(1, kMost), "threads",
               "Threads of a CPU's rank.")
      .Real("machine.memory_gib", o.memory_gib, deck::Above(0), "GiB",
            "Memory that a rank can take: of its GPU, or its part of the node's.")
      .Integer("machine.capability", o.capability, deck::Between(10, 1000), "",
               "Compute capability of the GPU, times ten.")
      .Integer("machine.multiprocessors", o.multiprocessors, deck::Between(1, kMost), "",
               "Multiprocessors of the GPU.");
  BindCompute(keys, o);
  BindLinks(keys, o);
  keys.Section("power", "Power under load.")
      .Real("power.rank_watts", o.watts_rank, deck::Between(0, kMost), "W",
            "A rank's GPU. 0: not stated.")
      .Real("power.node_watts", o.watts_node, deck::Between(0, kMost), "W",
            "A node besides its GPUs.");
}

}  // namespace

deck::Schema MachineSchema() {
  Description defaults;  // keys that a description leaves out get an H100's values
  defaults.gpu = true;
  defaults.capability = 90;
  defaults.multiprocessors = 132;
  defaults.attention = 0.4;
  for (const TypeKeys& type : kTypes) (defaults.*type.products).efficiency = 0.7;
  deck::Schema schema;
  deck::Declare(schema, Bind, defaults);
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
  for (const fs::path file : NamesIn(shared + "/input/machines")) {
    if (file.extension() == ".in") names.push_back(file.stem().string());
  }
  return names;
}

// The text of a description. Throws InputError that names the machines there are.
static std::string MachineText(const std::string& file, const std::string& shared) {
  if (std::ifstream in(file); in) return {std::istreambuf_iterator<char>(in), {}};
  const std::vector<std::string> known = MachineNames(shared);
  const std::string hint =
      known.empty()
          ? "This program lies without the files that come with it: cmake --install keeps "
            "them together."
          : fmt::format("Machines that come with Trireme: {}.", fmt::join(known, ", "));
  throw InputError(fmt::format("plan.machine: {} cannot be read", file),
                   hint + " A path names another one.");
}

Machine ReadMachine(const std::string& name, const std::string& shared) {
  const bool path = name.find('/') != std::string::npos || name.ends_with(".in");
  const std::string file =
      path ? name : (fs::path(shared) / "input" / "machines" / (name + ".in")).string();
  const std::string text = MachineText(file, shared);
  const deck::Schema schema = MachineSchema();
  const deck::Deck deck = deck::Deck::Parse(schema, text, file, {});
  Description machine = deck::Read(deck, Bind);
  machine.name = fs::path(file).stem().string();
  if (machine.title.empty()) machine.title = machine.name;
  machine.memory_bytes = static_cast<std::int64_t>(machine.memory_gib * kGib);
  if (!machine.assumption.empty()) machine.assumptions.push_back(machine.assumption);
  for (const auto& [key, value] : {std::pair{"compute.memory_gbs", machine.memory},
                                   std::pair{"links.node_gbs", machine.node.bandwidth},
                                   std::pair{"links.network_gbs", machine.network.bandwidth}}) {
    if (value <= 0) throw deck.Complain(key, "a prediction needs it", "State it, above 0.");
  }
  return machine;
}

std::string Write(const Machine& machine, const std::string& heading) {
  Description described{machine, fmt::format("{}", fmt::join(machine.assumptions, "; ")),
                        static_cast<double>(machine.memory_bytes) / kGib};
  if (!machine.gpu) {  // placeholders that the schema accepts; left out below
    described.capability = 10;
    described.multiprocessors = 1;
  }
  deck::Schema schema;
  deck::Declare(schema, Bind, described);
  const auto says_nothing = [&](const std::string& key) {
    if (key == "machine.assumption") return machine.assumptions.empty();
    if (key == "machine.capability" || key == "machine.multiprocessors") return !machine.gpu;
    return std::ranges::any_of(kTypes, [&](const TypeKeys& type) {
      return (machine.*type.products).peak <= 0 &&
             key.starts_with(fmt::format("compute.{}_", type.name));
    });
  };
  std::string text = fmt::format("# {}\n", heading), last;
  for (const deck::Key& key : schema.Keys()) {
    if (says_nothing(key.name)) continue;
    const std::size_t dot = key.name.find('.');
    const std::string section = key.name.substr(0, dot);
    if (section != last) text += fmt::format("{}[{}]\n", last.empty() ? "" : "\n", section);
    text += fmt::format("{} = {}\n", key.name.substr(dot + 1), key.fallback);
    last = section;
  }
  return text;
}

}  // namespace trireme::predict
