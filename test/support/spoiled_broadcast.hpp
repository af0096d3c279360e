// A network that changes a byte: MPI_Bcast as a test program's own function, by way of MPI's
// profiling interface.
#ifndef TRIREME_TEST_SUPPORT_SPOILED_BROADCAST_HPP_
#define TRIREME_TEST_SUPPORT_SPOILED_BROADCAST_HPP_

namespace trireme::test {

// While it lives, this rank gets each broadcast message of more than `least` bytes with one of them
// changed; 0: no message.
class SpoiledBroadcast {
 public:
  explicit SpoiledBroadcast(long least);
  ~SpoiledBroadcast();
  SpoiledBroadcast(const SpoiledBroadcast&) = delete;
  SpoiledBroadcast& operator=(const SpoiledBroadcast&) = delete;
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_SUPPORT_SPOILED_BROADCAST_HPP_
