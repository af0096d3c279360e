/* Preloaded into chosen ranks: a file system of another type (TRIREME_FAKE_FILE_SYSTEM, a number of statfs), and a
 * host that is slower by a factor (TRIREME_FAKE_SLOWNESS): its monotonic clock runs ahead by as much. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <time.h>

int statfs(const char* path, struct statfs* facts) {
  static int (*real)(const char*, struct statfs*);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "statfs");
  const int result = real(path, facts);
  const char* const type = getenv("TRIREME_FAKE_FILE_SYSTEM");
  if (result == 0 && type != NULL) facts->f_type = strtol(type, NULL, 0);
  return result;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  static double first;
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(clock, now);
  const char* const slowness = getenv("TRIREME_FAKE_SLOWNESS");
  if (result != 0 || slowness == NULL || clock != CLOCK_MONOTONIC) return result;
  const double seconds = (double)now->tv_sec + 1e-9 * (double)now->tv_nsec;
  if (first == 0) first = seconds;
  const double shown = first + (seconds - first) * atof(slowness);
  now->tv_sec = (time_t)shown;
  now->tv_nsec = (long)(1e9 * (shown - (double)now->tv_sec));
  return result;
}
