cmake_minimum_required(VERSION 3.22)
# Checks for which compute capabilities CUDA code is compiled by default: Blackwell's is among them
# from the first nvcc on that knows it.
include(${SOURCE}/cmake/TriremeArchitectures.cmake)
foreach(expected "0:80,90" "12.4.131:80,90" "12.7:80,90" "12.8.61:80,90,100" "12.10:80,90,100" "13.0.48:80,90,100")
  string(REGEX MATCH "^(.*):(.*)$" all "${expected}")
  set(nvcc ${CMAKE_MATCH_1})
  string(REPLACE "," ";" wanted "${CMAKE_MATCH_2}")
  trireme_default_architectures(${nvcc} got)
  if(NOT got STREQUAL wanted)
    message(SEND_ERROR "nvcc ${nvcc}: ${got}, not ${wanted}")
  endif()
endforeach()
