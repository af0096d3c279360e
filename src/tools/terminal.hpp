// The terminal as ncurses drives it. No other file includes its header, whose names are many.
#ifndef TRIREME_SRC_TOOLS_TERMINAL_HPP_
#define TRIREME_SRC_TOOLS_TERMINAL_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "run_state.hpp"

namespace trireme::tools {

class Terminal {
 public:
  enum class Key { kNone, kQuit, kUp, kDown, kOther };

  // Whether a person sits at standard input and output.
  static bool IsThere();

  // Takes the terminal over; Open() is false if its kind is not known.
  Terminal();
  ~Terminal();  // gives it back as it was
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool Open() const { return screen_ != nullptr; }
  bool Blocks() const { return blocks_; }  // Unicode can be shown
  // Sets the size of a frame to the terminal's.
  void Measure(Frame& frame) const;
  void Show(const std::vector<Row>& rows);
  // Waits for a key, a signal or a change of size, at most so long. kQuit also if the terminal has
  // gone.
  Key Wait(double seconds);

 private:
  void* screen_ = nullptr;  // ncurses' SCREEN
  bool blocks_ = false;
};

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_TERMINAL_HPP_
