// Tables of a node's flight recorders: read from shared memory, written to and read from files.
#ifndef TRIREME_SRC_COMM_FLIGHT_TABLES_HPP_
#define TRIREME_SRC_COMM_FLIGHT_TABLES_HPP_

#include <optional>
#include <string>
#include <vector>

#include "flight_memory.hpp"
#include "trireme/comm/hosts.hpp"
#include "verdict.hpp"

namespace trireme::comm {

// Tables of all ranks of this node, as they are now.
std::vector<RankTable> ReadTables(const FlightMemory& memory, const Hosts& hosts);

// One node's file: JSON with a call a line, for people and for Judge.
std::string ToText(int node, const std::string& reason, const std::vector<RankTable>& tables);
// Nothing if the text is not whole.
std::optional<std::vector<RankTable>> FromText(const std::string& text);

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_FLIGHT_TABLES_HPP_
