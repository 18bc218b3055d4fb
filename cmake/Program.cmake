# The program: bin/lora-train with bin/lib next to it (the engine, and shared libraries that the target machine may
# lack) and bin/configs. The folder can be moved or copied as it is; cmake/Install.cmake puts such a folder into a
# prefix.

foreach(_module IN LISTS LT_CORE_MODULES)
  if(NOT TARGET lt_${_module})
    message(STATUS "lora-train is not built: module ${_module} is missing")
    return()
  endif()
endforeach()

set(_bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
add_executable(lora-train src/cli/main.cpp)
target_link_libraries(lora-train PRIVATE lt_flags ${CMAKE_DL_LIBS})
foreach(_module IN LISTS LT_CORE_MODULES)
  target_link_libraries(lora-train PRIVATE lt_${_module})
endforeach()
foreach(_half IN ITEMS lt_model_config lt_lora_config)
  if(TARGET ${_half})
    target_link_libraries(lora-train PRIVATE ${_half})
  endif()
endforeach()
# The engine takes the core modules from the executable, which exports only these: its fmt, JSON or protobuf must not
# replace LibTorch's own. RPATH, not RUNPATH: it also applies to libraries of libraries.
target_link_options(lora-train PRIVATE -Wl,--dynamic-list=${PROJECT_SOURCE_DIR}/cmake/exported_symbols.txt
                    -Wl,--disable-new-dtags -Wl,--as-needed)
set_target_properties(lora-train PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/lib"
                      LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/exported_symbols.txt")

file(MAKE_DIRECTORY ${_bin}/lib)
# Copies, not a link: the folder goes to other machines with `cp -r`.
file(GLOB _profiles CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/configs/*.yaml ${PROJECT_SOURCE_DIR}/configs/*.json)
if(IS_SYMLINK ${_bin}/configs)
  file(REMOVE ${_bin}/configs)
endif()
set(_profiles_stamp ${PROJECT_BINARY_DIR}/profiles.stamp)
add_custom_command(OUTPUT ${_profiles_stamp} DEPENDS ${_profiles} ${PROJECT_SOURCE_DIR}/scripts/sweep.sh VERBATIM
                   COMMAND ${CMAKE_COMMAND} -E rm -rf ${_bin}/configs
                   COMMAND ${CMAKE_COMMAND} -E make_directory ${_bin}/configs
                   COMMAND ${CMAKE_COMMAND} -E copy ${_profiles} ${_bin}/configs
                   COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/scripts/sweep.sh ${_bin}/lib
                   COMMAND ${CMAKE_COMMAND} -E touch ${_profiles_stamp})
add_custom_target(lt_shipped_profiles DEPENDS ${_profiles_stamp})
add_dependencies(lora-train lt_shipped_profiles)

# lora_train_engine(NAME SOURCES ...): a library with the function lora_train_engine(). The executable loads LibTorch
# before this one, so it needs no path to it; the core modules stay undefined until then.
function(lt_add_engine name)
  add_library(${name} SHARED ${ARGN})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_compile_definitions(${name} PRIVATE LORA_TRAIN_TORCH_VERSION="${LORA_TRAIN_TORCH_VERSION}")
  target_link_libraries(${name} PRIVATE lt_flags lt_build_id lt_torch)
  target_link_options(${name} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/engine_symbols.txt -Wl,--as-needed)
  set_target_properties(${name} PROPERTIES LORA_TRAIN_NO_TORCH_RPATH ON SKIP_BUILD_RPATH ON
                        LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/engine_symbols.txt")
endfunction()

if(TARGET lt_run)
  lt_add_engine(lora_train_engine src/cli/engine/engine_entry.cpp)
  foreach(_module IN LISTS LT_TORCH_MODULES)
    if(TARGET lt_${_module})
      target_link_libraries(lora_train_engine PRIVATE lt_${_module})
    endif()
  endforeach()
  add_dependencies(lora-train lora_train_engine)
  if(LORA_TRAIN_TESTS)
    add_test(NAME relocation COMMAND ${PROJECT_SOURCE_DIR}/scripts/checks/check_relocation.sh ${_bin})
    cmake_path(GET LORA_TRAIN_TORCH_DIR PARENT_PATH _site)
    add_test(NAME bare_debian COMMAND ${PROJECT_SOURCE_DIR}/scripts/try_bare_debian.sh --torch ${_site} --build ${PROJECT_BINARY_DIR})
    set_tests_properties(relocation bare_debian PROPERTIES LABELS relocation SKIP_RETURN_CODE 77 TIMEOUT 1500)
  endif()
else()
  message(STATUS "the engine is not built: module run is missing")
endif()
# Where LibTorch was at build time: the first place to look. On another machine, this folder does not exist, and the
# program asks python3 instead (src/cli/engine/engine_loader.cpp).
file(CONFIGURE OUTPUT ${_bin}/lib/torch_path CONTENT "${LORA_TRAIN_TORCH_DIR}\n")

include(${PROJECT_SOURCE_DIR}/cmake/Arrow.cmake)
