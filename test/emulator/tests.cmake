# Tests of the emulated GPU itself, and of what only it can show of transfers.
trireme_device_test(emulator_test emulator SOURCES kernel_test.cpp stream_test.cpp DEPENDS device)
if(TRIREME_CHECK_KERNELS)
  target_sources(emulator_test PRIVATE emulator/checked_kernels.cu)
  trireme_cuda_sources(emulator_test emulator/checked_kernels.cu)
endif()

# Transfers between ranks: one program, launched for some suites at a time.
trireme_test_program(nccl_test parallel/comm SOURCES cuda/emulated_test.cpp common/channel_checks.cpp DEPENDS comm FOLDERS src/comm)
function(trireme_emulated_launch name ranks filter)
  trireme_launch(${name} nccl_test ${ranks} "${filter}")
  set_tests_properties(${name}_mpi${ranks} PROPERTIES LABELS emulated)
endfunction()
trireme_emulated_launch(test_channel_defects 3 "ChannelDefectsTest.*")
trireme_emulated_launch(test_nccl_choices 4 "NcclChoicesTest.*:NcclLog.*:CommunicatorBytes.*")
foreach(ranks 2 3 6)
  trireme_emulated_launch(test_parts ${ranks} "PartsTest.*")
endforeach()
foreach(ranks 2 4)
  trireme_emulated_launch(test_lost_rank ${ranks} "LostRankTest.*")
endforeach()
# Ends by MPI_Abort, so its output is checked from outside.
trireme_plain_program(rank_leaves parallel/comm/cuda/rank_leaves.cpp trireme_comm)
foreach(ranks 2 4)
  add_test(NAME test_rank_leaves_mpi${ranks}
    COMMAND ${CMAKE_COMMAND} -DRANKS=${ranks} -DPROGRAM=$<TARGET_FILE:rank_leaves> -DCODE=1 -DONCE=ON
            "-DBEGIN=trireme: error on rank 1 " "-DREPORT=: lost my way" "-DMPIRUN=${TRIREME_MPIRUN}" -P ${CMAKE_CURRENT_SOURCE_DIR}/parallel/comm/ends.cmake)
  set_tests_properties(test_rank_leaves_mpi${ranks} PROPERTIES LABELS emulated PROCESSORS 2 TIMEOUT 60
    ENVIRONMENT "${TRIREME_MPI_ENVIRONMENT}")
endforeach()

# Faults between ranks that the emulated NCCL ends a program for, and what looks similar and is right.
trireme_plain_program(nccl_faults emulator/nccl_faults.cpp trireme_emulator MPI::MPI_C)
target_compile_definitions(nccl_faults PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)

# nccl_fault_test(<case> <ranks> <regular expression of stderr; "": none is to be reported> [VARIABLE=VALUE...])
function(nccl_fault_test case ranks report)
  string(REGEX REPLACE "[^a-z_0-9]" "_" name ${case})
  set(name test_nccl_fault_${name}_mpi${ranks})
  if(report)
    set(name ${name}_ends)
  endif()
  add_test(NAME ${name}
    COMMAND ${CMAKE_COMMAND} -DRANKS=${ranks} -DPROGRAM=$<TARGET_FILE:nccl_faults> -DCASE=${case} -DCODE=134 "-DBEGIN=emulated CUDA: " "-DREPORT=${report}"
            "-DMPIRUN=${TRIREME_MPIRUN}" -P ${CMAKE_CURRENT_SOURCE_DIR}/parallel/comm/ends.cmake)
  set_tests_properties(${name} PROPERTIES LABELS emulated PROCESSORS 2 TIMEOUT 60
    ENVIRONMENT "${TRIREME_MPI_ENVIRONMENT};${ARGN}")
endfunction()

nccl_fault_test(same_order 3 "")
nccl_fault_test(crossing_messages 2 "")
nccl_fault_test(other_order 2 "different orders: before operation 1 of communicator 0\\.[01] of ranks 0, 1, rank [01] had launched [01] operations of communicator 0\\.[01] of ranks 0, 1, rank [01] had launched [01]")
nccl_fault_test(other_order 3 "different orders: before operation [12] of communicator [01]\\.0 of ranks (0, )?1, 2, rank [12] had launched [012] operations of communicator [01]\\.0 of ranks (0, )?1, 2, rank [12] had launched [012]")
nccl_fault_test(other_order_in_graph 2 "different orders: .* \\(in a graph\\)")
nccl_fault_test(other_order_of_message 2 "different orders: before operation 1 of communicator 0\\.0 of ranks 0, 1, rank [01] had launched [01] operations of communicator 0\\.1")
set(ordered NCCL_LAUNCH_ORDER_IMPLICIT=1 TRIREME_EMULATOR_PATIENCE=2)
nccl_fault_test(turns 2 "" NCCL_LAUNCH_ORDER_IMPLICIT=0)
nccl_fault_test(turns 2 "an operation of communicator 0\\.2 of ranks 0, 1 has waited for 2 s to begin: an operation of communicator 0\\.1 of ranks 0, 1, which the host launched before, has not begun" ${ordered})
nccl_fault_test(sends_in_graph 2 "" ${ordered})
nccl_fault_test(sends_in_graph 2 "an operation of communicator 0\\.[01] of ranks 0, 1 has waited for 4 s for other ranks" ${ordered} TRIREME_EMULATOR_DRIVER=12080)
nccl_fault_test(crossing_messages 2 "has waited for [24] s" ${ordered} TRIREME_EMULATOR_DRIVER=12020)
nccl_fault_test(waiting:4 2 "")
nccl_fault_test(waiting:5 2 "5 operations of NCCL that wait for other ranks occupy 160 blocks of 132 multiprocessors"
  CUDA_DEVICE_MAX_CONNECTIONS=32)
nccl_fault_test(waiting:3 2 "3 operations of NCCL that wait for other ranks occupy 24 blocks of 20 multiprocessors"
  TRIREME_EMULATOR_MULTIPROCESSORS=20 TRIREME_EMULATOR_NCCL_BLOCKS=8)
nccl_fault_test(waiting:8 2 "8 operations of NCCL that wait for other ranks occupy all 8 hardware queues" TRIREME_EMULATOR_NCCL_BLOCKS=16)
