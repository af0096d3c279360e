// Hosts: the name of each rank's host, each name kept once: 4 bytes a rank and a string a host.
#ifndef TRIREME_COMM_HOSTS_HPP_
#define TRIREME_COMM_HOSTS_HPP_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace trireme::comm {

class Communicator;

// Copies share their memory.
class Hosts {
 public:
  Hosts() : Hosts(std::vector<std::string>{}) {}
  // names: of world rank 0, 1, ...
  explicit Hosts(const std::vector<std::string>& names);
  Hosts(std::initializer_list<std::string> names) : Hosts(std::vector<std::string>(names)) {}

  // Place of the rank's host among the names.
  int Number(int rank) const { return table_->of_rank.at(static_cast<std::size_t>(rank)); }
  const std::string& Of(int rank) const {
    return table_->names.at(static_cast<std::size_t>(Number(rank)));
  }
  const std::string& First() const { return Of(0); }
  int Ranks() const { return static_cast<int>(table_->of_rank.size()); }
  const std::vector<std::string>& Names() const { return table_->names; }  // by first rank

 private:
  struct Table {
    std::vector<std::string> names;
    std::vector<std::int32_t> of_rank;  // place among the names
  };
  explicit Hosts(Table table) : table_(std::make_shared<const Table>(std::move(table))) {}
  friend struct HostMap;
  std::shared_ptr<const Table> table_;
};

// Places of all ranks.
struct HostMap {
  Hosts hosts;
  std::vector<std::int32_t> nodes;  // [ranks]: number of the rank's node, by its first rank
  // Collective over `world`. mine: name of this rank's host; node: the ranks that share it. Each
  // rank receives 12 bytes from every other, and each host's name once from its node.
  static HostMap Gather(const Communicator& world, const Communicator& node,
                        const std::string& mine);
};

}  // namespace trireme::comm

#endif  // TRIREME_COMM_HOSTS_HPP_
