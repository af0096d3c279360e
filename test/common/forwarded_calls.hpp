// Parts of test programs that define functions of the C library and forward them to the library's
// own. An executable's definitions stand before those of shared libraries if it exports them.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <string>

namespace trireme::test {

// Next definition of a function after the executable's.
template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Path of an open descriptor, as it is named now; empty if it has no name. A system call of its
// own: readlink() may be one of the defined functions.
inline std::string PathOf(int fd) {
  std::array<char, 4096> text{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const auto length = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), text.data(), text.size());
  return length <= 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(length));
}

}  // namespace trireme::test

// NAME's next definition, looked up once.
#define NEXT(NAME)                                                        \
  ([] {                                                                   \
    static auto* const next = trireme::test::Next<decltype(NAME)>(#NAME); \
    return next;                                                          \
  }())

// Defines NAME(path, flags, ...) and NAME_AT(folder, path, flags, ...) by OPENED(folder, path,
// flags, call), where call() forwards the call.
#define DEFINE_OPEN(NAME, NAME_AT, OPENED)                                                        \
  int NAME(const char* path, int flags, ...) {                                                    \
    va_list list;                                                                                 \
    va_start(list, flags);                                                                        \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(list, mode_t) : 0;               \
    va_end(list);                                                                                 \
    return OPENED(AT_FDCWD, path, flags, [&] { return NEXT(NAME)(path, flags, mode); });          \
  }                                                                                               \
  int NAME_AT(int folder, const char* path, int flags, ...) {                                     \
    va_list list;                                                                                 \
    va_start(list, flags);                                                                        \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(list, mode_t) : 0;               \
    va_end(list);                                                                                 \
    return OPENED(folder, path, flags, [&] { return NEXT(NAME_AT)(folder, path, flags, mode); }); \
  }
