# The MPI library, and the HDF5 that was built with the same one. TRIREME_MPI chooses where there are several, by the
# suffix of Debian's compiler wrappers and launchers (mpicc.mpich, mpiexec.mpich, h5pcc.mpich).
set(TRIREME_MPI "" CACHE STRING "MPI library, where there are several: openmpi or mpich; empty: the one in the PATH")
set_property(CACHE TRIREME_MPI PROPERTY STRINGS "" openmpi mpich)
if(TRIREME_MPI)
  set(MPI_EXECUTABLE_SUFFIX .${TRIREME_MPI})
  find_program(TRIREME_MPICC mpicc.${TRIREME_MPI})
  if(NOT TRIREME_MPICC)
    message(FATAL_ERROR "mpicc.${TRIREME_MPI} was not found (Debian/Ubuntu: lib${TRIREME_MPI}-dev). Elsewhere leave TRIREME_MPI "
                        "empty and have the library's mpicc first in the PATH, or name it with MPI_C_COMPILER.")
  endif()
endif()
find_package(MPI REQUIRED COMPONENTS C)

# Libraries made from MPICH (Cray's, Intel's, MVAPICH) define MPICH_NAME or MPICH_VERSION, too.
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
set(CMAKE_REQUIRED_QUIET ON)
check_c_source_compiles("#include <mpi.h>
#ifndef OPEN_MPI
#error
#endif
int main(void) { return 0; }" TRIREME_MPI_IS_OPEN)
check_c_source_compiles("#include <mpi.h>
#if !defined(MPICH_VERSION) && !defined(MPICH_NAME)
#error
#endif
int main(void) { return 0; }" TRIREME_MPI_IS_MPICH)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_QUIET)
set(TRIREME_MPI_FAMILY other)
set(TRIREME_HDF5_PACKAGE libhdf5-openmpi-dev)
if(TRIREME_MPI_IS_OPEN)
  set(TRIREME_MPI_FAMILY openmpi)
elseif(TRIREME_MPI_IS_MPICH)
  set(TRIREME_MPI_FAMILY mpich)
  set(TRIREME_HDF5_PACKAGE libhdf5-mpich-dev)
endif()
if(TRIREME_MPI AND NOT TRIREME_MPI STREQUAL TRIREME_MPI_FAMILY)
  message(FATAL_ERROR "TRIREME_MPI is '${TRIREME_MPI}', but ${MPI_C_COMPILER} belongs to ${TRIREME_MPI_FAMILY}: choose openmpi "
                      "or mpich, in a build tree of its own.")
endif()
message(STATUS "MPI: ${TRIREME_MPI_FAMILY}, launcher ${MPIEXEC_EXECUTABLE}")

# Debian has an HDF5 for each MPI library: h5pcc alone is that of another one perhaps.
macro(trireme_prefer_matching_hdf5)
  if(NOT HDF5_ROOT AND NOT DEFINED ENV{HDF5_ROOT} AND NOT HDF5_C_COMPILER_EXECUTABLE)
    find_program(TRIREME_H5PCC h5pcc.${TRIREME_MPI_FAMILY})
    if(TRIREME_H5PCC)
      set(HDF5_C_COMPILER_EXECUTABLE ${TRIREME_H5PCC} CACHE FILEPATH "HDF5's compiler wrapper")
    endif()
  endif()
endmacro()

# Two MPI libraries in one program link, and fail when it runs.
function(trireme_require_matching_hdf5)
  set(foreign_openmpi "lib(mpich|mpi)[.]so[.]12")
  set(foreign_mpich "libmpi[.]so[.](20|40)")
  if(NOT DEFINED foreign_${TRIREME_MPI_FAMILY} OR NOT CMAKE_READELF)
    return()
  endif()
  foreach(library ${HDF5_LIBRARIES})
    if(NOT library MATCHES "hdf5[^/]*[.]so" OR NOT EXISTS ${library})
      continue()
    endif()
    execute_process(COMMAND ${CMAKE_READELF} -d ${library} OUTPUT_VARIABLE needed ERROR_QUIET)
    if(needed MATCHES "${foreign_${TRIREME_MPI_FAMILY}}")
      message(FATAL_ERROR "${library} was built with another MPI library (it needs ${CMAKE_MATCH_0}) than ${MPI_C_COMPILER} "
                          "(${TRIREME_MPI_FAMILY}). Install ${TRIREME_HDF5_PACKAGE} (Debian/Ubuntu), or point HDF5_ROOT at "
                          "an HDF5 of this MPI library.")
    endif()
  endforeach()
endfunction()
