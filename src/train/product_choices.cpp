// Files of chosen matrix-product algorithms: reading, agreeing among ranks, keeping.
#include "product_choices.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <system_error>

#include "trireme/base/json.hpp"
#include "trireme/base/new_file.hpp"
#include "trireme/comm/gather_all.hpp"

namespace trireme::train {

namespace fs = std::filesystem;

namespace {

// Number of a card, a library and a list of products, whatever was chosen for them.
std::uint64_t NumberOfProducts(const std::string& chosen) {
  const nlohmann::json text = nlohmann::json::parse(chosen);
  std::string names = text.at("card").get<std::string>() + text.at("library").get<std::string>();
  for (const nlohmann::json& each : text.at("products")) {
    names += each.at("product").get<std::string>() + "\n";
  }
  return std::hash<std::string>{}(names);
}

}  // namespace

std::string ChoicesFile(const std::string& chosen) {
  const auto of = [](const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
  };
  std::string folder = of("XDG_CACHE_HOME");
  if (folder.empty()) {
    folder = of("HOME");
    if (folder.empty()) return "";
    folder += "/.cache";
  }
  const nlohmann::json text = nlohmann::json::parse(chosen);
  std::string name =
      text.at("card").get<std::string>() + " " + text.at("library").get<std::string>();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return fmt::format("{}/trireme/products_{}.json", folder, name);
}

void TakeKeptChoices(const comm::Communicator& world, const std::string& file,
                     kernels::Libraries& libraries) {
  std::stringstream text;
  if (world.IsRoot() && !file.empty()) {
    std::ifstream in(file);
    if (in) text << in.rdbuf();
  }
  const std::string kept = world.Broadcast(text.str());
  if (!kept.empty()) libraries.Adopt({kept});
}

void AgreeOnChoices(const comm::Communicator& world, kernels::Libraries& libraries) {
  const std::string own = libraries.Chosen();
  const std::vector<std::uint64_t> numbers =
      comm::GatherAll(world, std::vector{NumberOfProducts(own)});
  const auto first =
      std::find(numbers.begin(), numbers.end(), numbers.at(static_cast<std::size_t>(world.Rank())));
  const bool mine = first - numbers.begin() == world.Rank();
  std::vector<std::string> texts = world.Gather(mine ? own : std::string());
  std::erase(texts, std::string());
  libraries.Adopt(texts);
}

void KeepChoices(const comm::Communicator& world, const std::string& file,
                 const kernels::Libraries& libraries) {
  if (!world.IsRoot() || file.empty()) return;
  std::error_code error;
  const fs::path folder = fs::path(file).parent_path();
  if (!folder.empty()) fs::create_directories(folder, error);
  // Other jobs on other nodes may be at the same file.
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string temporary = fmt::format("{}.{}.{}", file, host.data(), getpid());
  Replacement out(file, temporary);
  out.Write(libraries.Chosen());
  out.Write("\n");
  error = out.Place();
  if (!error) return;
  fmt::print(stderr,
             "warning: {}: the algorithms of the matrix products could not be kept ({}): another "
             "run may choose others, and round otherwise (run.products)\n",
             file, error.message());
}

}  // namespace trireme::train
