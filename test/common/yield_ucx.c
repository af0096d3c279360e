// Preloaded into ranks that share cores: MPICH over UCX polls without ever yielding, so that a rank waits out the time
// slices of others that wait, too. Here a poll that found nothing lets another rank run.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>

unsigned ucp_worker_progress(void* worker) {
  static unsigned (*real)(void*);
  if (real == NULL) real = (unsigned (*)(void*))dlsym(RTLD_NEXT, "ucp_worker_progress");
  const unsigned found = real(worker);
  if (found == 0) sched_yield();
  return found;
}
