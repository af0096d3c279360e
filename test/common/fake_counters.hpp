// Trees of files like those of Linux, for tests of energy counters.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace trireme::test {

class FakeCounters {
 public:
  explicit FakeCounters(std::string root) : root_(std::move(root)) {}

  // A zone of RAPL, "intel-rapl:0:1"; joules are set by Set.
  void Zone(const std::string& zone, const std::string& name, double range = 262143.328850) const {
    Put(Folder(zone) + "/name", name);
    Put(Folder(zone) + "/max_energy_range_uj", std::to_string(static_cast<long long>(range * 1e6)));
    Set(zone, 0);
  }
  void Set(const std::string& zone, double joules) const {
    Put(Folder(zone) + "/energy_uj", std::to_string(static_cast<long long>(joules * 1e6)));
  }
  // A file of pm_counters.
  void Cray(const std::string& file, long long joules) const {
    Put(root_ + "/sys/cray/pm_counters/" + file, std::to_string(joules) + " J");
  }
  void Remove(const std::string& zone) const { std::filesystem::remove_all(Folder(zone)); }
  std::string Folder(const std::string& zone) const {
    return root_ + "/sys/class/powercap/" + zone;
  }
  const std::string& Root() const { return root_; }

  static void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text << "\n";
  }

 private:
  std::string root_;
};

}  // namespace trireme::test
