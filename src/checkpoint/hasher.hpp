// Hasher: a thread that makes the hashes of a writer's segments.
#ifndef TRIREME_SRC_CHECKPOINT_HASHER_HPP_
#define TRIREME_SRC_CHECKPOINT_HASHER_HPP_

#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

#include "rounds.hpp"
#include "worker.hpp"
#include "write_plan.hpp"

namespace trireme::checkpoint {

class Hasher {
 public:
  using Data = std::function<const void*(const StagedSegment&)>;

  // plans: take the hashes. cores: as in Worker.
  Hasher(std::vector<int> cores, std::vector<WritePlan>& plans);

  void Start() { worker_.Start(); }  // as in Worker
  // Holds back the rounds that follow, until Release. Data that stay in memory until the
  // checkpoint is on the disk can be hashed while the writing thread waits for the disk; a
  // copy to the system's memory and a hash at the same time slow each other.
  void HoldBack();
  // From any thread.
  void Release();
  // Makes the hashes of the round's segments, from `data`, which stays valid until then.
  void Queue(const Round& round, Data data);
  // Waits until at most so many rounds that are not held back are left.
  void Await(std::size_t most = 0) { worker_.Await(most); }
  bool Idle() const { return worker_.Idle(); }  // but for rounds held back

 private:
  void Make(const Round& round, const Data& data);

  std::vector<WritePlan>& plans_;
  std::mutex mutex_;
  bool hold_back_ = false;
  std::vector<std::function<void()>> held_back_;
  Worker worker_;  // ends before the members above
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_HASHER_HPP_
