// MPI's lifetime in a test program, for objects that take the whole of it; mpi_main.cpp holds it.
#pragma once

#include "trireme/comm/runtime.hpp"

namespace trireme::test {

const comm::Runtime& TestRuntime();

}  // namespace trireme::test
