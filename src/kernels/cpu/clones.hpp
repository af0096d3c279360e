// Attribute for row primitives, which are compiled twice on x86-64, for AVX2 and for AVX-512, and
// chosen when the program starts.
#ifndef TRIREME_SRC_KERNELS_CPU_CLONES_HPP_
#define TRIREME_SRC_KERNELS_CPU_CLONES_HPP_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TRIREME_CLONES __attribute__((target_clones("arch=x86-64-v4", "default")))
#else
#define TRIREME_CLONES
#endif

#endif  // TRIREME_SRC_KERNELS_CPU_CLONES_HPP_
