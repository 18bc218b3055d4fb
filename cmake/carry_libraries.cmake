# cmake -D PROGRAM=file -D FOLDER=folder -P carry_libraries.cmake: copies the shared libraries that the program needs and
# that a machine without our Debian packages lacks, under the names the loader asks for.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${PROGRAM} RESOLVED_DEPENDENCIES_VAR _found
     UNRESOLVED_DEPENDENCIES_VAR _missing PRE_INCLUDE_REGEXES "sentencepiece|protobuf" PRE_EXCLUDE_REGEXES ".*")
if(_missing)
  message(FATAL_ERROR "shared libraries not found: ${_missing}")
endif()
foreach(_library IN LISTS _found)
  get_filename_component(_name ${_library} NAME)
  get_filename_component(_file ${_library} REALPATH)
  if(NOT _library STREQUAL "${FOLDER}/${_name}")
    file(COPY_FILE ${_file} ${FOLDER}/${_name} ONLY_IF_DIFFERENT)
  endif()
endforeach()
