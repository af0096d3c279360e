# Runs rank_leaves on RANKS ranks: all of them end within seconds, with rank 1's message and no other.
set(patience 20)  # seconds
execute_process(COMMAND ${MPIRUN} -n ${RANKS} ${PROGRAM} TIMEOUT ${patience}
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(NOT code EQUAL 1)
  message(FATAL_ERROR "exit code ${code}, not 1:\n${out}${err}")
endif()
string(REGEX MATCHALL "trireme: error" errors "${err}")
list(LENGTH errors count)
if(NOT count EQUAL 1 OR NOT err MATCHES "trireme: error on rank 1 \\([^\n]*\\): lost my way\n")
  message(FATAL_ERROR "expected once, of rank 1: lost my way\ngot:\n${err}")
endif()
