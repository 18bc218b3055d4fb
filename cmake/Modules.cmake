# One object library per module; the table in module_deps.txt says what each may see. Object libraries pass on include
# paths and link libraries but not their objects, so every program names the modules it holds.

file(STRINGS ${PROJECT_SOURCE_DIR}/cmake/module_deps.txt _rows REGEX "^[a-z]")
set(LT_CORE_MODULES "")
set(LT_TORCH_MODULES "")
foreach(_row IN LISTS _rows)
  string(REGEX MATCH "^([a-z_]+) +(core|torch) +:(.*)$" _ "${_row}")
  set(_module ${CMAKE_MATCH_1})
  separate_arguments(_depends UNIX_COMMAND "${CMAKE_MATCH_3}")
  set(LT_DEPENDS_${_module} ${_depends})
  set(LT_BELOW_${_module} ${_depends})  # with what these need to be linked
  foreach(_depend IN LISTS _depends)
    list(APPEND LT_BELOW_${_module} ${LT_BELOW_${_depend}})
  endforeach()
  list(REMOVE_DUPLICATES LT_BELOW_${_module})
  set(LT_KIND_${_module} ${CMAKE_MATCH_2})
  if(CMAKE_MATCH_2 STREQUAL "core")
    list(APPEND LT_CORE_MODULES ${_module})
  else()
    list(APPEND LT_TORCH_MODULES ${_module})
  endif()
endforeach()

# With LORA_TRAIN_UNITY a module is compiled in batches of this many sources. Sources with options of their own (vectorised
# code) are compiled alone: CMake leaves them out. No two sources of a module may have the same name in an anonymous
# namespace; which sources share a batch changes with every new one.
set(LT_UNITY_BATCH 0)

function(lt_use_unity target)
  if(LORA_TRAIN_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE ${LT_UNITY_BATCH})
  endif()
endfunction()

# lt_add_module(NAME SOURCES a.cpp ... [LIBRARIES lib ...])
function(lt_add_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(lt_${name} OBJECT ${ARG_SOURCES})
  lt_use_unity(lt_${name})
  target_include_directories(lt_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(lt_${name} PRIVATE lt_flags PUBLIC ${ARG_LIBRARIES})
  if(LORA_TRAIN_FUZZ)  # counts what an input reaches; a program without libFuzzer ignores it
    target_compile_options(lt_${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  foreach(_depend IN LISTS LT_DEPENDS_${name})
    if(LT_KIND_${name} STREQUAL "torch" OR LT_KIND_${_depend} STREQUAL "core")
      target_link_libraries(lt_${name} PUBLIC lt_${_depend})
    endif()
  endforeach()
  if(LT_KIND_${name} STREQUAL "torch")
    target_link_libraries(lt_${name} PUBLIC lt_torch)
    if(LORA_TRAIN_PCH AND TARGET lt_torch_pch)
      target_precompile_headers(lt_${name} REUSE_FROM lt_torch_pch)
    endif()
  endif()
endfunction()

# What tests are compiled with: they run for milliseconds and are compiled often.
set(LT_TEST_OPTIONS -O1)

# GoogleTest, JSON and the standard library, compiled once for all tests that see no torch.
function(lt_use_test_pch target)
  if(NOT LORA_TRAIN_PCH OR LORA_TRAIN_FUZZ)
    return()
  endif()
  if(NOT TARGET lt_test_pch)
    add_library(lt_test_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/test_pch.cpp)
    target_compile_options(lt_test_pch PRIVATE ${LT_TEST_OPTIONS} -fPIC)
    target_link_libraries(lt_test_pch PRIVATE lt_flags GTest::gtest nlohmann_json::nlohmann_json)
    target_precompile_headers(lt_test_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/test_pch.h)
  endif()
  lt_reuse_pch(${target} lt_test_pch)
endfunction()

# -fPIC as libraries have it; CMake would give a program -fPIE, and g++ refuses the header.
function(lt_reuse_pch target pch)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# lt_add_test_sources(MODULE a_test.cpp ...): tests of a small module, in the binary of another one, before or after its
# lt_add_test. A binary that links LibTorch takes longer to link than such tests to compile.
function(lt_add_test_sources module)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  if(TARGET ${module}_test)
    target_sources(${module}_test PRIVATE ${ARGN})
  else()
    set_property(GLOBAL APPEND PROPERTY LT_TEST_SOURCES_${module} ${ARGN})
  endif()
endfunction()

# lt_add_test(MODULE SOURCES a_test.cpp ... [USES more modules]): one GoogleTest binary, <module>_test. Its label is
# `unit`; a case is a CTest test of its own. NO_UNITY: sources that share names in anonymous namespaces. Tests that see torch
# are never compiled in batches: the precompiled header gives most of the gain, and one batch would be minutes of one core.
function(lt_add_test module)
  if(NOT LORA_TRAIN_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "NO_UNITY" "" "SOURCES;USES;LIBRARIES" ${ARGN})
  set(_modules ${module} ${LT_BELOW_${module}})
  foreach(_used IN LISTS ARG_USES)
    list(APPEND _modules ${_used} ${LT_BELOW_${_used}})
  endforeach()
  list(REMOVE_DUPLICATES _modules)
  get_property(_more GLOBAL PROPERTY LT_TEST_SOURCES_${module})
  add_executable(${module}_test ${ARG_SOURCES} ${_more})
  if(NOT ARG_NO_UNITY AND NOT LT_KIND_${module} STREQUAL "torch")
    lt_use_unity(${module}_test)
  endif()
  target_include_directories(${module}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src
                             ${PROJECT_SOURCE_DIR}/src/${module})
  target_link_libraries(${module}_test PRIVATE lt_flags GTest::gtest GTest::gtest_main ${ARG_LIBRARIES})
  foreach(_module IN LISTS _modules)
    if(LT_KIND_${module} STREQUAL "torch" OR LT_KIND_${_module} STREQUAL "core")
      target_link_libraries(${module}_test PRIVATE lt_${_module})
    endif()
  endforeach()
  target_compile_options(${module}_test PRIVATE ${LT_TEST_OPTIONS})
  if(NOT LT_KIND_${module} STREQUAL "torch")
    lt_use_test_pch(${module}_test)
  elseif(LORA_TRAIN_PCH)
    lt_reuse_pch(${module}_test lt_torch_pch)
  endif()
  gtest_discover_tests(${module}_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                       PROPERTIES LABELS unit)
endfunction()
