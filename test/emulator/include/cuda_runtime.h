// Stand-in for CUDA's runtime: kernels and host code of a .cu file compile with a C++ compiler and
// run on the CPU, one OS thread, no GPU. What is supported is what these headers declare:
//   emulated/vector_types.h  dim3, uint3, float4, ... and make_*
//   emulated/device.h        threadIdx ..., __syncthreads, __syncwarp, shuffles (4 and 8 bytes),
//                            votes, integer atomics, __ldg and cached loads and stores
//   emulated/math.h          __expf, rsqrtf, __umulhi, __float_as_uint, min and max, ...
//   emulated/host_api.h      devices, memory, streams, events, graphs, function attributes
// Kernels are launched by trireme/device/cuda/launch.cuh alone. A host pointer as an argument of a
// kernel, and the legacy default stream, are refused. What is refused, and why, goes to stderr.
//
// What is made hard on purpose: blocks, threads and streams run in an order that the seed decides,
// nothing queued runs before somebody waits for it (or by chance), memory starts as NaN, and device
// memory lies between guards and is closed while host code runs.
// Environment: TRIREME_EMULATOR_DEVICES (8 cards), TRIREME_EMULATOR_MEMORY_MIB (16384 a card),
// TRIREME_EMULATOR_SEED (1; seed modulo 4 says how eagerly streams run: 1 never before they are
// awaited, 0 rarely, 3 now and then, 2 often), TRIREME_EMULATOR_OMIT (emulator/mutation.hpp);
// CUDA_VISIBLE_DEVICES as the real runtime has it, numbers only.
#ifndef TRIREME_TEST_EMULATOR_CUDA_RUNTIME_H_
#define TRIREME_TEST_EMULATOR_CUDA_RUNTIME_H_

#include "emulated/device.h"
#include "emulated/host_api.h"
#include "emulated/math.h"
#include "emulated/vector_types.h"

#endif  // TRIREME_TEST_EMULATOR_CUDA_RUNTIME_H_
