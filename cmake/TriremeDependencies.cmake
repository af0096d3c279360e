# Finds what Trireme stands on, and says in plain words what to install where something is missing.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
include(TriremeMpi)
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.9 REQUIRED)
find_package(Eigen3 3.3 REQUIRED NO_MODULE)
find_package(Boost 1.70 REQUIRED COMPONENTS program_options)

# TensorBoard's event files. Newer releases need their own configuration for what they stand on.
find_package(protobuf CONFIG QUIET)
if(NOT TARGET protobuf::libprotobuf-lite)
  find_package(Protobuf)
endif()
if(NOT TARGET protobuf::libprotobuf-lite OR NOT TARGET protobuf::protoc)
  message(FATAL_ERROR "Protocol Buffers were not found: the library protobuf-lite and the compiler protoc "
                      "(Debian/Ubuntu: libprotobuf-dev, protobuf-compiler).")
endif()

# HDF5 must have been built with MPI: a serial one would compile and fail at the first collective read.
set(HDF5_PREFER_PARALLEL ON)
trireme_prefer_matching_hdf5()
find_package(HDF5 COMPONENTS C)
if(NOT HDF5_FOUND)
  message(FATAL_ERROR "HDF5 was not found. Install parallel HDF5 (Debian/Ubuntu: ${TRIREME_HDF5_PACKAGE}; "
                      "a cluster: module load HDF5 with MPI), or point HDF5_ROOT at it.")
endif()
if(NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR "The HDF5 found in ${HDF5_INCLUDE_DIRS} is a serial build; Trireme reads tokens "
                      "through the MPI-IO driver. Install parallel HDF5 (Debian/Ubuntu: "
                      "${TRIREME_HDF5_PACKAGE}), or point HDF5_ROOT at a parallel build.")
endif()
trireme_require_matching_hdf5()
add_library(trireme_hdf5 INTERFACE)
target_include_directories(trireme_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(trireme_hdf5 INTERFACE ${HDF5_LIBRARIES} MPI::MPI_C)

find_path(XXHASH_INCLUDE_DIR xxhash.h)
if(NOT XXHASH_INCLUDE_DIR)
  message(FATAL_ERROR "xxhash.h was not found (Debian/Ubuntu: libxxhash-dev).")
endif()
add_library(trireme_xxhash INTERFACE)
target_include_directories(trireme_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
target_compile_definitions(trireme_xxhash INTERFACE XXH_INLINE_ALL)

# trireme_find(<target> <header> <library> <Debian package>): a plain C or C++ library.
function(trireme_find target header library package)
  string(TOUPPER ${target} name)
  find_path(${name}_INCLUDE_DIR ${header})
  find_library(${name}_LIBRARY ${library})
  if(NOT ${name}_INCLUDE_DIR OR NOT ${name}_LIBRARY)
    message(FATAL_ERROR "${header} or its library ${library} was not found (Debian/Ubuntu: ${package}).")
  endif()
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${${name}_INCLUDE_DIR})
  target_link_libraries(${target} INTERFACE ${${name}_LIBRARY})
endfunction()
trireme_find(trireme_pcre2 pcre2.h pcre2-8 libpcre2-dev)          # patterns of byte-level BPE
trireme_find(trireme_icu unicode/normalizer2.h icuuc libicu-dev)  # Unicode normalisation
trireme_find(trireme_sentencepiece sentencepiece_processor.h sentencepiece libsentencepiece-dev)
find_library(TRIREME_SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
if(NOT TRIREME_SENTENCEPIECE_TRAIN_LIBRARY)
  message(FATAL_ERROR "The library sentencepiece_train was not found (Debian/Ubuntu: libsentencepiece-dev).")
endif()
target_link_libraries(trireme_sentencepiece INTERFACE ${TRIREME_SENTENCEPIECE_TRAIN_LIBRARY})
trireme_find(trireme_zlib zlib.h z zlib1g-dev)
trireme_find(trireme_zstd zstd.h zstd libzstd-dev)
trireme_find(trireme_archive archive.h archive libarchive-dev)     # --support

# Wide characters: the view of trireme --watch.
set(CURSES_NEED_NCURSES TRUE)
set(CURSES_NEED_WIDE TRUE)
find_package(Curses)
if(NOT CURSES_FOUND)
  message(FATAL_ERROR "ncurses with wide characters was not found (Debian/Ubuntu: libncurses-dev).")
endif()
add_library(trireme_curses INTERFACE)
target_include_directories(trireme_curses SYSTEM INTERFACE ${CURSES_INCLUDE_DIRS})
target_link_libraries(trireme_curses INTERFACE ${CURSES_LIBRARIES})

# The matrix library. oneDNN has no fp64 product: Eigen's stands in there.
if(TRIREME_MATMUL STREQUAL "onednn")
  find_path(DNNL_INCLUDE_DIR dnnl.h)
  find_library(DNNL_LIBRARY dnnl)
  if(NOT DNNL_LIBRARY OR NOT DNNL_INCLUDE_DIR)
    message(FATAL_ERROR "oneDNN was not found (Debian/Ubuntu: libdnnl-dev); "
                        "-DTRIREME_MATMUL=openblas builds with OpenBLAS instead.")
  endif()
  add_library(trireme_matmul INTERFACE)
  target_include_directories(trireme_matmul SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
  target_link_libraries(trireme_matmul INTERFACE ${DNNL_LIBRARY} Eigen3::Eigen)
elseif(TRIREME_MATMUL STREQUAL "openblas")
  find_path(CBLAS_INCLUDE_DIR cblas.h)
  find_library(OPENBLAS_LIBRARY openblas)
  if(NOT OPENBLAS_LIBRARY OR NOT CBLAS_INCLUDE_DIR)
    message(FATAL_ERROR "OpenBLAS was not found (Debian/Ubuntu: libopenblas-openmp-dev).")
  endif()
  add_library(trireme_matmul INTERFACE)
  target_include_directories(trireme_matmul SYSTEM INTERFACE ${CBLAS_INCLUDE_DIR})
  target_link_libraries(trireme_matmul INTERFACE ${OPENBLAS_LIBRARY} Eigen3::Eigen)
else()
  message(FATAL_ERROR "TRIREME_MATMUL is '${TRIREME_MATMUL}': choose onednn or openblas.")
endif()
