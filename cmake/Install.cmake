# `cmake --install BUILD --prefix DIR` puts the program into DIR, which can be moved:
#
#   bin/lora-train               a link to lib/lora-train/lora-train
#   lib/lora-train/              the contents of build/*/bin: lora-train, lib/, configs/
#   share/                       completions for bash, zsh and fish, in their standard places
#   share/doc/lora-train/        LICENSE, and third-party/PACKAGE/ of every library in the program
if(NOT TARGET lora-train)
  return()
endif()
set(_program lib/lora-train)
set(_doc share/doc/lora-train)

install(TARGETS lora-train RUNTIME DESTINATION ${_program})
foreach(_library IN ITEMS lora_train_engine lora_train_cuda lora_train_arrow)
  if(TARGET ${_library})
    install(TARGETS ${_library} LIBRARY DESTINATION ${_program}/lib)
  endif()
endforeach()
install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/torch_path ${LT_CARRIED_SENTENCEPIECE} DESTINATION ${_program}/lib)
install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/arrow_path DESTINATION ${_program}/lib OPTIONAL)
install(PROGRAMS scripts/sweep.sh DESTINATION ${_program}/lib)
install(DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/configs DESTINATION ${_program})

install(FILES LICENSE DESTINATION ${_doc})
file(READ scripts/dependencies.sh _dependencies)
string(REGEX MATCH "DEBIAN_LIBRARIES=\\(([^)]*)\\)" _ "${_dependencies}")
separate_arguments(_packages UNIX_COMMAND "${CMAKE_MATCH_1}")
foreach(_package IN LISTS _packages)
  install(FILES /usr/share/doc/${_package}/copyright DESTINATION ${_doc}/third-party/${_package} OPTIONAL)  # a Debian package has it
endforeach()
install(DIRECTORY .deps/cudnn-frontend/licenses/ DESTINATION ${_doc}/third-party/nvidia-cudnn-frontend OPTIONAL)

install(CODE "set(_lora_train $<TARGET_FILE:lora-train>)")
install(SCRIPT cmake/install_links.cmake)
