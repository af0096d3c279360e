# Runs case CASE of PROGRAM on RANKS ranks: it ends by itself with code 0 if REPORT is empty; else within seconds, with a line of
# the emulator that matches REPORT.
execute_process(COMMAND ${MPIRUN} -n ${RANKS} ${PROGRAM} ${CASE} TIMEOUT 30
                RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(REPORT STREQUAL "")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit code ${code}, not 0:\n${out}${err}")
  endif()
elseif(NOT code EQUAL 134 OR NOT err MATCHES "emulated CUDA: [^\n]*${REPORT}")
  message(FATAL_ERROR "exit code ${code}; expected 134 and: ${REPORT}\ngot:\n${out}${err}")
endif()
