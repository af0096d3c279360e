// The four-dimensional process grid: rank = ((pipeline * D + data) * C + context) * T + tensor.
#ifndef TRIREME_COMM_PROCESS_GRID_HPP_
#define TRIREME_COMM_PROCESS_GRID_HPP_

#include "trireme/comm/communicator.hpp"
#include "trireme/input/deck.hpp"

namespace trireme::comm {

void DeclareGrid(input::Schema& schema);  // [grid]

// Sizes of the grid's axes, and coordinates along them.
struct GridShape {
  int pipeline = 1, data = 1, context = 1, tensor = 1;
  int Ranks() const { return pipeline * data * context * tensor; }
};

class ProcessGrid {
 public:
  // Collective over `world`. data = 0 takes what is left. Throws AgreedError (exit code 2) when the
  // layout does not fill the world exactly, naming what would.
  ProcessGrid(const Communicator& world, const input::Deck& deck);

  const GridShape& Shape() const { return shape_; }
  const GridShape& Coordinates() const { return coordinates_; }
  const Communicator& World() const { return *world_; }
  const Communicator& Data() const { return data_; }  // ranks that hold the same parameters

 private:
  const Communicator* world_;
  GridShape shape_;
  GridShape coordinates_;
  Communicator data_;
};

}  // namespace trireme::comm

#endif  // TRIREME_COMM_PROCESS_GRID_HPP_
