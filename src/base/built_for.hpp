// Instruction sets that the compiler was free to use everywhere in this program.
#ifndef TRIREME_SRC_BASE_BUILT_FOR_HPP_
#define TRIREME_SRC_BASE_BUILT_FOR_HPP_

namespace trireme {

// Bit i: kExtensions[i] of processor_check.cpp may be used. Data, not code: read before any
// instruction of these sets may run.
extern const unsigned kBuiltFor;

}  // namespace trireme

#endif  // TRIREME_SRC_BASE_BUILT_FOR_HPP_
