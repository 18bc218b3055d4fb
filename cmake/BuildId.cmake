# lt_build_id: `#include "lora_train_build_id.h"` defines LORA_TRAIN_BUILD_ID, the same text in every part of one build.
# The program refuses an engine, and the engine a CUDA library, with another id. Computed at each build; changes if a
# header changed.
set(_folder ${PROJECT_BINARY_DIR}/build_id)
string(TOUPPER "${CMAKE_BUILD_TYPE}" _type)
add_custom_target(lt_write_build_id BYPRODUCTS ${_folder}/lora_train_build_id.h VERBATIM
  COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D HEADER=${_folder}/lora_train_build_id.h
          "-D SETTINGS=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${_type}} ${LORA_TRAIN_SANITIZE} torch ${LORA_TRAIN_TORCH_VERSION}"
          -P ${PROJECT_SOURCE_DIR}/cmake/write_build_id.cmake)
add_library(lt_build_id INTERFACE)
target_include_directories(lt_build_id INTERFACE ${_folder})
add_dependencies(lt_build_id lt_write_build_id)
