# Part of `cmake --install` (cmake/Install.cmake): the link in bin/, and the completion scripts, printed by the program
# _lora_train.
set(_prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
file(MAKE_DIRECTORY ${_prefix}/bin)
file(CREATE_LINK ../lib/lora-train/lora-train ${_prefix}/bin/lora-train SYMBOLIC)

foreach(_completion IN ITEMS bash:bash-completion/completions/lora-train zsh:zsh/site-functions/_lora-train
                             fish:fish/vendor_completions.d/lora-train.fish)
  string(REPLACE ":" ";" _completion ${_completion})
  list(GET _completion 0 _shell)
  list(GET _completion 1 _file)
  execute_process(COMMAND ${_lora_train} completion ${_shell} OUTPUT_VARIABLE _script COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE ${_prefix}/share/${_file} "${_script}")
endforeach()
