# trireme_room(<room> [EXCEPT <regular expression>] [SOURCES ...] [LIBRARIES <targets...>] [PRIVATE_LIBRARIES <targets...>]
# [FOLDERS <of headers...>]) declares the library of one room: all .cpp files of its folder but those that EXCEPT names, which
# are given as SOURCES where they are wanted. It may use every room before it in trireme_rooms (CMakeLists.txt).
#
# Host code is compiled with one precompiled header, in batches of several files (CMake's unity builds). GCC contracts
# multiply-adds within a function, so what it inlines can change the last bits of a number: kernels, the optimizer's files, and
# files with options of their own (log_softmax.cpp, sampling.cpp), are compiled file by file. test/same_bits.sh compares builds.
set(trireme_file_by_file kernels)
option(TRIREME_BATCHES "Compile plain host code in batches, with a precompiled header" ON)
# Folders that set a run up, watch it and write about it: their code runs once or seldom, and compiles a quarter faster so.
set(trireme_seldom_run deck report predict tools app tasks)
set(trireme_seldom_options)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(trireme_seldom_options -O1 -fexpensive-optimizations)
endif()
# A build of the same sources and options whose host libraries are taken: only the back end is compiled, and chosen at link time.
set(TRIREME_HOST_BUILD "" CACHE PATH "Build tree of the CPU whose host libraries are linked; empty: they are compiled here")

function(trireme_compile_options target)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/include)
  set(options -Wall -Wextra -Wpedantic)
  if(TRIREME_WERROR)
    list(APPEND options -Werror)
  endif()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND options -march=${TRIREME_MARCH})
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:${options}>")
endfunction()

# trireme_precompile(<name> HEADERS <headers...> [LIBRARIES <targets...>] [OPTIONS ...]): the target <name>, whose precompiled header others take with trireme_use_precompiled.
# They see the same definitions and get the same options as it does, which a precompiled header demands.
set(trireme_precompiled_libraries fmt::fmt nlohmann_json::nlohmann_json MPI::MPI_C)
# ccache preprocesses before it compiles.
set(trireme_precompiled_options)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(trireme_precompiled_options -fpch-preprocess)
endif()
function(trireme_precompile name)
  cmake_parse_arguments(PRECOMPILED "" "" "HEADERS;LIBRARIES;OPTIONS" ${ARGN})
  set(source ${CMAKE_BINARY_DIR}/precompiled/${name}.cpp)
  if(NOT EXISTS ${source})
    file(WRITE ${source} "// Its precompiled header is all there is.\n")
  endif()
  add_library(${name} OBJECT ${source})
  trireme_compile_options(${name})
  target_link_libraries(${name} PRIVATE ${trireme_precompiled_libraries} ${PRECOMPILED_LIBRARIES})
  target_compile_definitions(${name} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_compile_options(${name} PRIVATE ${OpenMP_CXX_FLAGS} ${trireme_precompiled_options} ${PRECOMPILED_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${PRECOMPILED_HEADERS})
endfunction()
function(trireme_use_precompiled target name)
  target_link_libraries(${target} PRIVATE ${trireme_precompiled_libraries})
  target_compile_definitions(${target} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:$<TARGET_PROPERTY:${name},COMPILE_OPTIONS>>")
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()
set(trireme_precompiled_headers <algorithm> <array> <charconv> <chrono> <cmath> <cstdint> <cstdio> <cstring> <deque>
  <filesystem> <fstream> <functional> <future> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <stdexcept>
  <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector> <fmt/format.h> <fmt/ranges.h>
  ${CMAKE_SOURCE_DIR}/include/trireme/base/json.hpp <mpi.h>)
if(TRIREME_BATCHES AND NOT TRIREME_HOST_BUILD)
  trireme_precompile(trireme_host_headers HEADERS ${trireme_precompiled_headers})
  trireme_precompile(trireme_seldom_headers HEADERS ${trireme_precompiled_headers} OPTIONS ${trireme_seldom_options})
endif()

function(trireme_batches target files)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
  # In a batch no file is the main one, so that GCC warns of every type that holds one of an anonymous namespace.
  target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>")
endfunction()

function(trireme_room room)
  cmake_parse_arguments(ROOM "" "EXCEPT" "SOURCES;LIBRARIES;PRIVATE_LIBRARIES;FOLDERS" ${ARGN})
  set(target trireme_${room})
  list(FIND trireme_rooms ${room} place)
  list(SUBLIST trireme_rooms 0 ${place} below)
  list(REVERSE below)
  list(TRANSFORM below PREPEND trireme_)
  if(TRIREME_HOST_BUILD)
    add_library(${target} STATIC IMPORTED GLOBAL)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${TRIREME_HOST_BUILD}/src/${room}/lib${target}.a)
    target_include_directories(${target} INTERFACE ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(${target} INTERFACE ${ROOM_LIBRARIES} ${ROOM_PRIVATE_LIBRARIES} ${below})
    return()
  endif()
  set(folder ${CMAKE_SOURCE_DIR}/src/${room})
  file(GLOB_RECURSE sources RELATIVE ${folder} CONFIGURE_DEPENDS ${folder}/*.cpp)
  if(ROOM_EXCEPT)
    list(FILTER sources EXCLUDE REGEX "${ROOM_EXCEPT}")
  endif()
  list(TRANSFORM sources PREPEND ${folder}/)
  add_library(${target} STATIC ${sources} ${ROOM_SOURCES})
  set_target_properties(${target} PROPERTIES ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/src/${room})
  trireme_compile_options(${target})
  target_include_directories(${target} PRIVATE ${ROOM_FOLDERS})
  target_link_libraries(${target} PUBLIC ${below} ${ROOM_LIBRARIES} PRIVATE ${ROOM_PRIVATE_LIBRARIES})
  if(TRIREME_BATCHES AND NOT room IN_LIST trireme_file_by_file)
    if(room IN_LIST trireme_seldom_run)
      trireme_use_precompiled(${target} trireme_seldom_headers)
    else()
      trireme_use_precompiled(${target} trireme_host_headers)
    endif()
    trireme_batches(${target} 12)
  endif()
endfunction()

# trireme_backend(<room> SOURCES ... LIBRARIES <targets...>): the part of a room's library that depends on the back end
# (none, CUDA, emulated), which every build compiles for itself. Both parts need each other.
function(trireme_backend room)
  cmake_parse_arguments(BACKEND "" "" "SOURCES;LIBRARIES" ${ARGN})
  set(target trireme_${room}_backend)
  add_library(${target} STATIC ${BACKEND_SOURCES})
  trireme_compile_options(${target})
  target_link_libraries(${target} PUBLIC ${BACKEND_LIBRARIES} trireme_${room})
  target_link_libraries(trireme_${room} INTERFACE ${target})
endfunction()
