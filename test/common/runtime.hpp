// MPI's lifetime in a test program, for objects that take the whole of it; mpi_main.cpp holds it.
#ifndef TRIREME_TEST_COMMON_RUNTIME_HPP_
#define TRIREME_TEST_COMMON_RUNTIME_HPP_

#include "trireme/comm/runtime.hpp"

namespace trireme::test {

const comm::Runtime& TestRuntime();

}  // namespace trireme::test

#endif  // TRIREME_TEST_COMMON_RUNTIME_HPP_
