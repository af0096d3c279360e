// Stand-in for NVTX: ranges that nobody draws.
#ifndef TRIREME_TEST_EMULATOR_NVTOOLSEXT_H_
#define TRIREME_TEST_EMULATOR_NVTOOLSEXT_H_

inline int nvtxRangePushA(const char*) { return 0; }
inline int nvtxRangePop() { return 0; }

#endif  // TRIREME_TEST_EMULATOR_NVTOOLSEXT_H_
