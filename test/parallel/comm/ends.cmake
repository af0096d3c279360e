# Runs PROGRAM, with the word CASE if there is one, on RANKS ranks: with REPORT empty it ends by itself with code 0; else all ranks
# end within seconds, with exit code CODE and a line that has BEGIN and, behind it, REPORT (regular expressions); with ONCE no other
# line says "trireme: error".
execute_process(COMMAND ${MPIRUN} -n ${RANKS} ${PROGRAM} ${CASE} TIMEOUT 30
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
string(REGEX MATCHALL "trireme: error" errors "${err}")
list(LENGTH errors count)
if(REPORT STREQUAL "")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit code ${code}, not 0:\n${out}${err}")
  endif()
elseif(NOT code EQUAL "${CODE}" OR NOT err MATCHES "${BEGIN}[^\n]*${REPORT}" OR (ONCE AND NOT count EQUAL 1))
  message(FATAL_ERROR "exit code ${code}; expected ${CODE} and: ${REPORT}\ngot:\n${out}${err}")
endif()
