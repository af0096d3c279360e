// Preloaded into the program under test: makes chosen calls of one rank fail, or last long.
//   TRIREME_FAULT_CALL    open, read or allocate
//   TRIREME_FAULT_RANK    rank of the world; all of them if unset or empty
//   TRIREME_FAULT_PATH    open, read: text in the path of the file; allocate, if not empty: only
//   after
//                         such a file was opened
//   TRIREME_FAULT_BYTES   read, allocate: least size asked for; allocations only of the program and
//                         of C++'s library
//   TRIREME_FAULT_NTH     the call that fails, counted from 1; 0: none does
//   TRIREME_FAULT_ERRNO   its errno
//   TRIREME_FAULT_DELAY   milliseconds that each such call takes longer
//   TRIREME_FAULT_LOG     file that gets a line at each such call, "call RANK NUMBER", and
//                         "failed RANK NUMBER"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { kPathBytes = 4096 };

static struct {
  const char *call, *path, *log, *own;
  long nth, error, delay;
  size_t bytes;
  int here;  // calls of this rank are chosen
} fault;
static atomic_long calls;
static atomic_int opened;  // a file of the chosen path

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

static long Number(const char* name) {
  const char* text = getenv(name);
  return text == NULL ? 0 : atol(text);
}

__attribute__((constructor)) static void ReadEnvironment(void) {
  const char* rank = getenv("TRIREME_FAULT_RANK");
  const char* own = getenv("OMPI_COMM_WORLD_RANK");
  if (own == NULL) own = getenv("PMI_RANK");  // MPICH's
  fault.own = own == NULL ? "0" : own;
  fault.call = getenv("TRIREME_FAULT_CALL");
  fault.path = getenv("TRIREME_FAULT_PATH");
  fault.log = getenv("TRIREME_FAULT_LOG");
  fault.nth = Number("TRIREME_FAULT_NTH");
  fault.error = Number("TRIREME_FAULT_ERRNO");
  fault.delay = Number("TRIREME_FAULT_DELAY");
  fault.bytes = (size_t)Number("TRIREME_FAULT_BYTES");
  fault.here =
      fault.call != NULL && (rank == NULL || *rank == '\0' || strcmp(rank, fault.own) == 0);
}

static void* Next(const char* name) { return dlsym(RTLD_NEXT, name); }

static void Log(const char* what, long number) {
  if (fault.log == NULL) return;
  int (*real_open)(const char*, int, ...) = (int (*)(const char*, int, ...))Next("open");
  const int file = real_open(fault.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) return;
  char line[64];
  const int length = snprintf(line, sizeof line, "%s %s %ld\n", what, fault.own, number);
  if (write(file, line, (size_t)length) < 0) abort();
  close(file);
}

// Counts a chosen call, delays it, and tells whether it fails.
static int Fails(void) {
  const long number = atomic_fetch_add(&calls, 1) + 1;
  Log("call", number);
  if (fault.delay > 0) {
    struct timespec left = {fault.delay / 1000, fault.delay % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) continue;
  }
  if (number != fault.nth) return 0;
  Log("failed", number);
  errno = (int)fault.error;
  return 1;
}

static int Chosen(const char* call) { return fault.here && strcmp(fault.call, call) == 0; }

static int ChosenPath(const char* call, const char* path) {
  return Chosen(call) && fault.path != NULL && path != NULL && strstr(path, fault.path) != NULL;
}

static void NoteOpened(const char* path) {
  if (ChosenPath("allocate", path)) atomic_store(&opened, 1);
}

static int ChosenRead(int file, size_t bytes) {
  if (!Chosen("read") || bytes < fault.bytes) return 0;
  char link[64], path[kPathBytes];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return ChosenPath("read", path);
}

// Requests of the program's own code, which may throw std::bad_alloc.
static int ChosenRequest(size_t bytes, const void* caller) {
  if (!Chosen("allocate") || bytes < fault.bytes) return 0;
  if (fault.path != NULL && *fault.path != '\0' && !atomic_load(&opened)) return 0;
  Dl_info from;
  if (dladdr(caller, &from) == 0 || from.dli_fname == NULL) return 0;
  const char* name = from.dli_fname;
  return strstr(name, "libstdc++") != NULL || strstr(name, ".so") == NULL;
}

#define OPEN(name)                                                                    \
  int name(const char* path, int flags, ...) {                                        \
    va_list list;                                                                     \
    va_start(list, flags);                                                            \
    const mode_t mode = va_arg(list, mode_t);                                         \
    va_end(list);                                                                     \
    int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))Next(#name); \
    if (ChosenPath("open", path) && Fails()) return -1;                               \
    NoteOpened(path);                                                                 \
    return real(path, flags, mode);                                                   \
  }
OPEN(open)
OPEN(open64)

#define FOPEN(name)                                                                               \
  FILE* name(const char* path, const char* mode) {                                                \
    FILE* (*real)(const char*, const char*) = (FILE * (*)(const char*, const char*)) Next(#name); \
    if (ChosenPath("open", path) && Fails()) return NULL;                                         \
    return real(path, mode);                                                                      \
  }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t read(int file, void* data, size_t bytes) {
  static ssize_t (*real)(int, void*, size_t);
  if (real == NULL) real = (ssize_t(*)(int, void*, size_t))Next("read");
  if (ChosenRead(file, bytes) && Fails()) return -1;
  return real(file, data, bytes);
}

#define PREAD(name)                                                \
  ssize_t name(int file, void* data, size_t bytes, off_t offset) { \
    ssize_t (*real)(int, void*, size_t, off_t) =                   \
        (ssize_t(*)(int, void*, size_t, off_t))Next(#name);        \
    if (ChosenRead(file, bytes) && Fails()) return -1;             \
    return real(file, data, bytes, offset);                        \
  }
PREAD(pread)
PREAD(pread64)

void* malloc(size_t bytes) {
  if (ChosenRequest(bytes, __builtin_return_address(0)) && Fails()) return NULL;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  if (ChosenRequest(count * bytes, __builtin_return_address(0)) && Fails()) return NULL;
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  if (ChosenRequest(bytes, __builtin_return_address(0)) && Fails()) return NULL;
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  if (ChosenRequest(bytes, __builtin_return_address(0)) && Fails()) return NULL;
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  if (ChosenRequest(bytes, __builtin_return_address(0)) && Fails()) return ENOMEM;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == NULL ? ENOMEM : 0;
}
