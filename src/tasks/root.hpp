// Helpers for rank 0's part of a task: work whose errors all ranks throw, and lines on the screen.
#pragma once

#include <fmt/format.h>
#include <cstdio>
#include <string>
#include <utility>

#include "trireme/comm/communicator.hpp"

namespace trireme::tasks {

// Collective. Runs `body` on the group's root; all ranks throw what it throws.
template <typename Body>
void AtRoot(const comm::Communicator& group, Body body) {
  group.Together([&] {
    if (group.IsRoot()) body();
  });
}

// Collective. The text that `make` returns on the group's root; all ranks throw what it throws.
template <typename Make>
std::string FromRoot(const comm::Communicator& group, Make make) {
  std::string text;
  AtRoot(group, [&] { text = make(); });
  return group.Broadcast(text);
}

// Prints a line to standard output at once.
template <typename... Args>
void Say(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(format, std::forward<Args>(args)...);
  fmt::print("\n");
  std::fflush(stdout);
}

// Says that a checkpoint's averaged weights are used (optimizer.average).
inline void SayAverages(const std::string& checkpoint) {
  fmt::print(stderr, "trireme: {}: the averaged weights are used\n", checkpoint);
}

}  // namespace trireme::tasks
