// The processor that the program was built for.
#ifndef TRIREME_BASE_PROCESSOR_HPP_
#define TRIREME_BASE_PROCESSOR_HPP_

namespace trireme {

// "x86-64-v3", "aarch64". A program that calls this ends with a message and code 2, before its
// first constructor runs, on a processor that lacks what the compiler was free to use.
const char* BuiltFor();

}  // namespace trireme

#endif  // TRIREME_BASE_PROCESSOR_HPP_
