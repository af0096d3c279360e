/* Messages of the emulated GPU to stub_cupti.c, found among the libraries that the program has loaded. C and C++. */
#ifndef TRIREME_TEST_COMMON_STUB_CUPTI_H_
#define TRIREME_TEST_COMMON_STUB_CUPTI_H_

#include <stdint.h>

enum StubWorkKind { kStubKernel = 1, kStubCopy = 2, kStubFill = 3 };
struct StubWork {
  int32_t kind;
  uint32_t call;         /* of StubCuptiCall */
  uint32_t graph;        /* 0: of none */
  uint32_t node;         /* of the graph, from 1 */
  const void* stream;
  const char* name;      /* of a kernel */
  uint64_t bytes;        /* of a copy or a fill */
  uint64_t begin, end;   /* nanoseconds of the steady clock */
};
/* A call that queues work: its number. */
typedef uint32_t (*StubCuptiCallFunction)(void);
/* Work is done. */
typedef void (*StubCuptiWorkFunction)(const struct StubWork* work);

#endif /* TRIREME_TEST_COMMON_STUB_CUPTI_H_ */
