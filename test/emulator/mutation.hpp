// Leaves out one barrier or one wait for an event of an unchanged program, so that a test can show
// that another test would notice.
#ifndef TRIREME_TEST_EMULATOR_MUTATION_HPP_
#define TRIREME_TEST_EMULATOR_MUTATION_HPP_

#include <cstdint>

namespace emulator {

// kBarrier: __syncthreads, kWarpBarrier: __syncwarp, each by where it stands in a kernel (an
// instance of a template counts as a kernel), kCopyWait likewise: waits for copies to shared memory;
// kWait: calls of cudaStreamWaitEvent.
enum class Mutation { kBarrier, kWarpBarrier, kWait, kCopyWait };
inline constexpr int kMutations = 4;

// From here on number `number` of a kind is left out; numbers count from 0 anew, in the order of
// the first execution. -1: none is. TRIREME_EMULATOR_OMIT=barrier:3 (warp_barrier, wait, copy_wait) says so
// for a whole run, and "count" has the numbers of all kinds written to stderr at its end.
void Omit(Mutation kind, std::int64_t number);
std::int64_t CountSince(Mutation kind);  // the last Omit of this kind

extern bool mutations_watched;  // else nothing is counted or left out
bool IsOmitted(Mutation kind, const void* site);

}  // namespace emulator

#endif  // TRIREME_TEST_EMULATOR_MUTATION_HPP_
