// Communicator::Together: ranks agree that some of them failed, and leave with one message.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/rank_list.hpp"

namespace trireme::comm {

namespace {

struct Outcome {
  std::int64_t code = 0;  // an ExitCode; 0 when this rank's body returned
  std::string message;
};

Outcome Run(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const Error& error) {
    // A thrown "done" would read as success below; an error is at least a failed run.
    return {std::max(static_cast<std::int64_t>(error.Code()), std::int64_t{1}), error.what()};
  } catch (const std::bad_alloc&) {
    return {1, "out of memory\n  " +
                   MemoryAdvice("Use more ranks or nodes, or smaller sizes in the deck.")};
  } catch (const std::exception& error) {
    return {1, error.what()};
  } catch (...) {
    return {1, "an exception of unknown type"};
  }
}

}  // namespace

// The largest code of all ranks.
std::int64_t Communicator::Agree(std::int64_t code) const {
  std::int64_t largest = 0;
  const Recorded recorded(*this, Call::kAgreement, static_cast<std::int64_t>(sizeof code));
  MPI_Allreduce(&code, &largest, 1, MPI_INT64_T, MPI_MAX, handle_);
  return largest;
}

void Communicator::Together(const std::function<void()>& body) const {
  if (planned_) return body();
  const Outcome outcome = Run(body);
  const std::int64_t code = Agree(outcome.code);
  if (code == 0) return;

  std::vector<char> failed(static_cast<std::size_t>(size_));
  const char own = outcome.code != 0 ? 1 : 0;
  {
    const Recorded recorded(*this, Call::kAllGather, 1);
    MPI_Allgather(&own, 1, MPI_CHAR, failed.data(), 1, MPI_CHAR, handle_);
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (failed[static_cast<std::size_t>(rank)] != 0) ranks.push_back(rank);
  }
  std::string message = Broadcast(outcome.message, ranks.front());
  if (static_cast<int>(ranks.size()) < size_) {
    message += fmt::format("\n  (on {})", ListRanks(ranks, size_));
  }
  if (part_) throw PartError(static_cast<ExitCode>(code), message, size_);
  throw AgreedError(static_cast<ExitCode>(code), message);
}

}  // namespace trireme::comm
