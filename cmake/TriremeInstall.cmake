# Installation: the program, and below share/ what it and its users find by their place relative to it. Nothing
# that is installed holds the prefix, so that the folder may be moved.
set(TRIREME_MODULES "" CACHE STRING "Modules that the module file loads first, in their order, separated by blanks")
option(TRIREME_MANUAL "Make the manual page; takes a machine that can run what it compiles" ON)

# Libraries of modules and of other places outside the system's are found where they were when it was built.
set_target_properties(trireme PROPERTIES INSTALL_RPATH "$ORIGIN/../lib" INSTALL_RPATH_USE_LINK_PATH ON)
set(share share/trireme)
# Readable by all, whatever the umask; folders that are there already are left as they are.
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
string(JOIN " " readable ${CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})
string(JOIN " " folders bin share share/man share/man/man1 share/modulefiles share/modulefiles/trireme ${share} ${share}/jobscripts)
install(CODE "foreach(folder \"\" ${folders})
    set(path \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/\${folder}\")
    if(NOT IS_DIRECTORY \"\${path}\")
      file(MAKE_DIRECTORY \"\${path}\")
      file(CHMOD \"\${path}\" DIRECTORY_PERMISSIONS ${readable})
    endif()
  endforeach()")

install(TARGETS trireme RUNTIME DESTINATION bin)
install(DIRECTORY input/ DESTINATION ${share}/input)
install(DIRECTORY vis/ DESTINATION ${share}/vis PATTERN __pycache__ EXCLUDE)
install(DIRECTORY doc/ DESTINATION ${share}/doc)
install(FILES README.md CONTRIBUTING.md CITATION.cff LICENSE Changelog DESTINATION ${share})
# Not those that build or install packages: they need the source tree.
install(DIRECTORY jobscripts/slurm jobscripts/machines DESTINATION ${share}/jobscripts)
install(PROGRAMS jobscripts/fetch_wikitext.sh DESTINATION ${share}/jobscripts)
install(CODE "file(CREATE_LINK jobscripts/machines \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${share}/machines\" SYMBOLIC)")

# The manual page, from the declarations of the keys. Sanitizers and the emulator have no use for it.
if(TRIREME_MANUAL AND NOT CMAKE_CROSSCOMPILING AND NOT TRIREME_SANITIZE AND NOT TRIREME_CUDA STREQUAL "EMULATED")
  # Date of the page: that of the sources.
  set(manual_date "")
  if(GIT_EXECUTABLE)
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${CMAKE_SOURCE_DIR} log -1 --format=%cs
      OUTPUT_VARIABLE manual_date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT manual_date)
    string(TIMESTAMP manual_date "%Y-%m-%d" UTC)
  endif()
  add_executable(trireme_manual src/manual.cpp)
  trireme_compile_options(trireme_manual)
  target_link_libraries(trireme_manual PRIVATE trireme_tasks)
  set_target_properties(trireme_manual PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/manual)
  set(manual ${CMAKE_BINARY_DIR}/share/man/man1/trireme.1)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share/man/man1)
  add_custom_command(OUTPUT ${manual} COMMAND trireme_manual ${manual} ${manual_date} DEPENDS trireme_manual
    COMMENT "Writing the manual page")
  add_custom_target(manual ALL DEPENDS ${manual})
  install(FILES ${manual} DESTINATION share/man/man1)
endif()

# Module files: trireme/<version> in the prefix, trireme/debian for the program in the build folder.
set(MODULE_PREREQUISITES "")
string(REPLACE " " ";" modules "${TRIREME_MODULES}")
foreach(module ${modules})
  string(APPEND MODULE_PREREQUISITES "module load ${module}\n")
endforeach()
# trireme_module_file(<file> <place of the root relative to it> <of programs, pages, the shared files, the site's deck
# relative to the root>)
function(trireme_module_file file MODULE_ROOT MODULE_BIN MODULE_MAN MODULE_SHARE MODULE_SITE)
  configure_file(${CMAKE_SOURCE_DIR}/modules/trireme.tcl.in ${file} @ONLY)
endfunction()
trireme_module_file(${CMAKE_BINARY_DIR}/modulefiles-prefix/${PROJECT_VERSION}
  ../../.. bin share/man share/trireme etc/trireme/site.in)
install(FILES ${CMAKE_BINARY_DIR}/modulefiles-prefix/${PROJECT_VERSION} DESTINATION share/modulefiles/trireme)
file(RELATIVE_PATH build ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
file(RELATIVE_PATH source ${CMAKE_BINARY_DIR}/modulefiles/trireme ${CMAKE_SOURCE_DIR})
trireme_module_file(${CMAKE_BINARY_DIR}/modulefiles/trireme/debian ${source} ${build} ${build}/share/man . site.in)
