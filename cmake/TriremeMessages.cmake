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
  target_link_libraries(trireme_${folder}_messages PUBLIC protobuf::libprotobuf-lite)
endfunction()
