// The stack of a rank's own thread, taken while it hangs in a call.
#ifndef TRIREME_SRC_COMM_OWN_STACK_HPP_
#define TRIREME_SRC_COMM_OWN_STACK_HPP_

#include <pthread.h>

#include <string>

namespace trireme::comm {

// On the thread whose stack will be asked for: prepares a signal and a stack of its own for it, so
// that nothing below the thread's stack pointer is touched.
void PrepareOwnStack();

// The stack of `thread`, a frame a line; says so if the thread does not answer in time.
std::string TakeStack(pthread_t thread);

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_OWN_STACK_HPP_
