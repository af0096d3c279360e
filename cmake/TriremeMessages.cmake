# The library of messages, in the program itself, where no other library sees it: a SentencePiece that was built with
# Protocol Buffers of its own (Debian's) has the same names with another version behind them.
add_library(trireme_protobuf INTERFACE)
find_library(TRIREME_PROTOBUF_LITE libprotobuf-lite.a)
if(TRIREME_PROTOBUF_LITE)
  target_include_directories(trireme_protobuf SYSTEM INTERFACE
    $<TARGET_PROPERTY:protobuf::libprotobuf-lite,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(trireme_protobuf INTERFACE
    "-Wl,--push-state,--whole-archive,${TRIREME_PROTOBUF_LITE},--pop-state,--exclude-libs,libprotobuf-lite.a" Threads::Threads)
else()
  message(WARNING "libprotobuf-lite.a was not found: the shared library is used. A SentencePiece with Protocol Buffers of its "
                  "own may refuse to work beside it.")
  target_link_libraries(trireme_protobuf INTERFACE protobuf::libprotobuf-lite)
endif()

# trireme_messages(<folder> <file>.proto): a library trireme_<folder>_messages of the classes that protoc generates
# from the file beside the caller, whose header is <file>.pb.h. The generated code is not held to our warnings.
function(trireme_messages folder file)
  get_filename_component(name ${file} NAME_WE)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${name}.pb.cc ${CMAKE_CURRENT_BINARY_DIR}/${name}.pb.h)
  add_custom_command(OUTPUT ${generated}
    COMMAND protobuf::protoc --cpp_out=${CMAKE_CURRENT_BINARY_DIR} -I${CMAKE_CURRENT_SOURCE_DIR}
            ${CMAKE_CURRENT_SOURCE_DIR}/${file}
    DEPENDS ${file}
    COMMENT "Generating the messages of ${folder}/${file}")
  add_library(trireme_${folder}_messages STATIC ${generated})
  target_include_directories(trireme_${folder}_messages SYSTEM PUBLIC ${CMAKE_CURRENT_BINARY_DIR})
  target_link_libraries(trireme_${folder}_messages PUBLIC trireme_protobuf)
endfunction()
