// WorkJointly: rounds of a reduction that does not block. Every rank takes part in the same rounds,
// until one of them says that a rank failed, or that all are done.
#include "trireme/comm/joint_work.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>

namespace trireme::comm {

namespace {

constexpr std::chrono::milliseconds kWait{2};  // between looks of a rank that is done

// Thrown by a poll.
struct OtherFailed {};

class Rounds {
 public:
  explicit Rounds(MPI_Comm ranks) : ranks_(ranks) { Begin(); }

  // True if a rank's work failed. Does not block.
  bool Look() {
    int done = 0;
    if (!ended_) MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    if (done != 0) Next();
    return failed_;
  }
  // Reports that this rank's work has ended; waits until all have, or one failed.
  void End(bool failed) {
    own_ = {failed ? 1 : 0, 0};
    while (!ended_) {
      Look();
      if (!ended_) std::this_thread::sleep_for(kWait);
    }
  }

 private:
  void Begin() {
    sent_ = own_;
    MPI_Iallreduce(sent_.data(), all_.data(), static_cast<int>(all_.size()), MPI_INT, MPI_MAX,
                   ranks_, &request_);
  }
  void Next() {
    failed_ = all_[0] != 0;
    ended_ = failed_ || all_[1] == 0;
    if (!ended_) Begin();
  }

  MPI_Comm ranks_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::array<int, 2> own_{0, 1};   // failed; at work
  std::array<int, 2> sent_{0, 1};  // of the round under way
  std::array<int, 2> all_{0, 1};   // maxima of the round
  bool failed_ = false;            // on any rank
  bool ended_ = false;             // no round is under way, on no rank
};

}  // namespace

void WorkJointly(const Communicator& world, const std::function<void(const Poll&)>& work) {
  const Communicator ranks = world.Duplicate();  // rounds meet no other messages
  world.Together([&] {
    Rounds rounds(ranks.Handle());
    std::exception_ptr fault;
    try {
      work([&rounds] {
        if (rounds.Look()) throw OtherFailed();
      });
    } catch (const OtherFailed&) {
      fault = nullptr;
    } catch (...) {
      fault = std::current_exception();
    }
    rounds.End(fault != nullptr);
    if (fault) std::rethrow_exception(fault);
  });
}

}  // namespace trireme::comm
