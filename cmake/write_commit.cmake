# cmake -D SOURCE=folder -D HEADER=file -P write_commit.cmake: writes the commit into a header, and touches the header
# only if the commit changed, so that a build without a new commit compiles nothing.
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE _commit RESULT_VARIABLE _failed
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(_failed)
  set(_commit "unknown")
else()
  execute_process(COMMAND git -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE _differs ERROR_QUIET)
  if(_differs)
    string(APPEND _commit "+")
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define LORA_TRAIN_COMMIT \"${_commit}\"\n")
