# Compute capabilities that CUDA code is compiled for unless the user names others: 80 (A100), 90
# (H100, H200, GH200), and 100 (B200, GB200) where nvcc knows it. nvcc: its version.
function(trireme_default_architectures nvcc result)
  set(architectures 80 90)
  if(nvcc VERSION_GREATER_EQUAL 12.8)
    list(APPEND architectures 100)
  endif()
  set(${result} "${architectures}" PARENT_SCOPE)
endfunction()
