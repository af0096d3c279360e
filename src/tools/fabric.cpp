// Ways of MPI between hosts, from the components that it has loaded.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>

#include "trireme/tools/system.hpp"

namespace trireme::tools {

namespace {

// "Open MPI v4.1.4, package: ..." -> "Open MPI 4.1.4"; "MPICH Version:   4.0.2\n..." ->
// "MPICH 4.0.2".
std::string ShortName(const std::string& library) {
  std::string line = library.substr(0, library.find_first_of("\n,"));
  for (const char* noise : {"Version:", "version", " v"}) {
    const std::size_t at = line.find(noise);
    if (at == std::string::npos) continue;
    line = fmt::format("{} {}", line.substr(0, at), line.substr(at + std::strlen(noise)));
  }
  std::string text;
  for (const char c : line) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (space && (text.empty() || text.back() == ' ')) continue;
    text += space ? ' ' : c;
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string LineAfter(const std::string& text, const std::string& name) {
  const std::size_t at = text.find(name);
  if (at == std::string::npos) return {};
  const std::size_t begin = text.find_first_not_of(" \t", at + name.size());
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_first_of(" \t\n", begin) - begin);
}

std::string Value(Lookup environment, const char* name) {
  const char* const value = environment(name);
  return value == nullptr ? "" : value;
}

bool HasAny(const std::string& text, std::initializer_list<const char*> words) {
  return std::ranges::any_of(
      words, [&](const char* word) { return text.find(word) != std::string::npos; });
}

// UCX_TLS or FI_PROVIDER that leaves nothing but TCP: words, of which a first '^' excludes all.
bool NamesOnlyTcp(const std::string& transports) {
  bool tcp = false;
  for (std::size_t begin = 0; begin < transports.size();) {
    const std::size_t end = std::min(transports.find_first_of(",;:", begin), transports.size());
    const std::string word = transports.substr(begin, end - begin);
    begin = end + 1;
    if (word.starts_with('^')) return false;
    tcp = tcp || word.find("tcp") != std::string::npos || word.find("sockets") != std::string::npos;
    for (const char* other : {"rc", "ud", "dc", "ib", "all", "verbs", "cxi", "psm", "efa"}) {
      if (word.starts_with(other)) return false;
    }
  }
  return tcp;
}

// Components by framework, from file names "mca_<framework>_<component>.so".
std::map<std::string, std::vector<std::string>> Components(std::span<const std::string> objects) {
  std::map<std::string, std::vector<std::string>> components;
  for (const std::string& object : objects) {
    for (const char* framework : {"pml", "btl", "mtl"}) {
      const std::string head = fmt::format("mca_{}_", framework);
      const std::size_t end = object.find(".so");
      if (!object.starts_with(head) || end == std::string::npos) continue;
      components[framework].push_back(object.substr(head.size(), end - head.size()));
    }
  }
  for (auto& [framework, names] : components) std::ranges::sort(names);
  return components;
}

void AddOpenMpi(std::span<const std::string> objects, Lookup environment, Fabric& fabric) {
  const auto components = Components(objects);
  const auto at = components.find("pml");
  // Some builds have all components inside one library: what the user asked for is all that is
  // known then.
  std::string pml = at == components.end() ? Value(environment, "OMPI_MCA_pml")
                                           : fmt::format("{}", fmt::join(at->second, " "));
  if (pml.empty()) return;
  fabric.transports = "pml " + pml;
  std::string btl, mtl;
  if (const auto found = components.find("btl"); found != components.end()) {
    btl = fmt::format("{}", fmt::join(found->second, " "));
  }
  if (const auto found = components.find("mtl"); found != components.end()) {
    mtl = fmt::format("{}", fmt::join(found->second, " "));
  }
  if (pml == "ob1" && !btl.empty()) {
    fabric.transports += ", btl " + btl;
    fabric.tcp = HasAny(btl, {"tcp"}) && !HasAny(btl, {"openib", "uct", "ofi", "ugni", "usnic"});
  }
  if (pml == "cm" && !mtl.empty()) {
    fabric.transports += ", mtl " + mtl;
    fabric.tcp = NamesOnlyTcp(Value(environment, "FI_PROVIDER"));
  }
  if (pml == "ucx") {
    const std::string transports = Value(environment, "UCX_TLS");
    if (!transports.empty()) fabric.transports += " (UCX_TLS " + transports + ")";
    fabric.tcp = NamesOnlyTcp(transports);
  }
}

void AddMpich(const std::string& library, Lookup environment, Fabric& fabric) {
  fabric.transports = LineAfter(library, "Device:");
  const std::string provider = Value(environment, "FI_PROVIDER");
  if (!provider.empty()) fabric.transports += " (FI_PROVIDER " + provider + ")";
  const std::string transports = Value(environment, "UCX_TLS");
  fabric.tcp = HasAny(fabric.transports, {"ch3:"}) || NamesOnlyTcp(provider) ||
               (HasAny(fabric.transports, {"ucx"}) && NamesOnlyTcp(transports));
}

int Visit(dl_phdr_info* info, std::size_t /*size*/, void* names) {
  const char* const slash = std::strrchr(info->dlpi_name, '/');
  static_cast<std::vector<std::string>*>(names)->emplace_back(slash == nullptr ? info->dlpi_name
                                                                               : slash + 1);
  return 0;
}

}  // namespace

Fabric FabricOf(const std::string& library, std::span<const std::string> objects,
                Lookup environment) {
  Fabric fabric;
  fabric.library = ShortName(library);
  if (library.find("Open MPI") != std::string::npos) {
    AddOpenMpi(objects, environment, fabric);
  } else if (library.find("Device:") != std::string::npos) {
    AddMpich(library, environment, fabric);
  }
  return fabric;
}

std::vector<std::string> LoadedObjects() {
  std::vector<std::string> names;
  dl_iterate_phdr(Visit, &names);
  return names;
}

}  // namespace trireme::tools
