# One object library per module; the table in module_deps.txt says what each may include. Object libraries pass on
# include paths and link libraries but not their objects, so every program lists its modules.

file(STRINGS ${PROJECT_SOURCE_DIR}/cmake/module_deps.txt _rows REGEX "^[a-z]")
set(LT_CORE_MODULES "")
set(LT_TORCH_MODULES "")
foreach(_row IN LISTS _rows)
  string(REGEX MATCH "^([a-z_]+) +(core|torch) +:(.*)$" _ "${_row}")
  set(_module ${CMAKE_MATCH_1})
  separate_arguments(_depends UNIX_COMMAND "${CMAKE_MATCH_3}")
  set(LT_DEPENDS_${_module} ${_depends})
  set(LT_BELOW_${_module} ${_depends})  # with their own link dependencies
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

# With LORA_TRAIN_UNITY, a module is compiled in batches of this many sources. Sources with their own options
# (vectorised code) are compiled alone: CMake leaves them out. No two sources of a module may have the same name in an
# anonymous namespace; which sources share a batch changes with every new one.
set(LT_UNITY_BATCH 0)

function(lt_use_unity target)
  if(LORA_TRAIN_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE ${LT_UNITY_BATCH})
  endif()
endfunction()

# The headers most included by sources without torch, compiled once for modules and tests. -fPIC as libraries have it;
# CMake would give a program -fPIE, and g++ refuses the header.
if(LORA_TRAIN_PCH)
  add_library(lt_core_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
  target_link_libraries(lt_core_pch PRIVATE lt_flags nlohmann_json::nlohmann_json)
  target_precompile_headers(lt_core_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/core_pch.h ${LT_TEST_HEADERS})
  if(NOT LORA_TRAIN_CORE_ONLY)
    add_library(lt_torch_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
    target_link_libraries(lt_torch_pch PRIVATE lt_flags lt_torch nlohmann_json::nlohmann_json)
    target_include_directories(lt_torch_pch PRIVATE ${PROJECT_SOURCE_DIR}/include)
    target_precompile_headers(lt_torch_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/torch_pch.h ${LT_TEST_HEADERS})
  endif()
endif()

# lt_use_pch(TARGET core|torch)
function(lt_use_pch target kind)
  if(LORA_TRAIN_PCH)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
    target_precompile_headers(${target} REUSE_FROM lt_${kind}_pch)
  endif()
endfunction()

# lt_compile_together(TARGET core|torch): a module in batches. If each source without torch is compiled alone (preset
# dev), it must include what it uses, so it gets no precompiled header.
function(lt_compile_together target kind)
  lt_use_unity(${target})
  if(LORA_TRAIN_UNITY OR kind STREQUAL "torch")
    lt_use_pch(${target} ${kind})
  endif()
endfunction()

# Optimising code that runs for milliseconds costs more compile time than it saves: tests, and modules (COLD) that read,
# check and write small files and print. No COLD module touches an element of a tensor, an example or a token in a loop. -Og takes
# a fifth less time than -O1; at -Og, g++ warns about its own std::optional. The sanitizer builds have -O0, a third of
# the time of -O1, and -O1 for modules that are not COLD: their tests take four times as long at -O0. WARM modules have -O1:
# a third of the time of -O3, and the speed of -O3 as long as the few sources in which the time goes are HOT.
set(LT_COLD_OPTIONS $<$<CONFIG:Release>:-Og> $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>)

# lt_keep_hot(TARGET OPTIONS a.cpp ...): compiles a module with fewer optimisations (-Og or -O1), except these sources, in
# which the time goes: each has -O3, outside the batches. Saves a third of the module's compile time.
function(lt_keep_hot target options)
  if(LORA_TRAIN_SANITIZE)
    return()
  endif()
  target_compile_options(${target} PRIVATE ${options})
  if(NOT ARGN)
    return()
  endif()
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
endfunction()

# lt_add_module(NAME SOURCES a.cpp ... [HOT b.cpp ...] [LIBRARIES lib ...] [COLD | WARM]): WARM has -O1, except for HOT
function(lt_add_module name)
  cmake_parse_arguments(ARG "COLD;WARM" "" "SOURCES;HOT;LIBRARIES" ${ARGN})
  list(APPEND ARG_SOURCES ${ARG_HOT})
  add_library(lt_${name} OBJECT ${ARG_SOURCES})
  if(LORA_TRAIN_SANITIZE AND NOT ARG_COLD)
    lt_use_unity(lt_${name})
    target_compile_options(lt_${name} PRIVATE -O1)  # clang takes no precompiled header of another level
  else()
    lt_compile_together(lt_${name} ${LT_KIND_${name}})
  endif()
  target_include_directories(lt_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(lt_${name} PRIVATE lt_flags PUBLIC ${ARG_LIBRARIES})
  if(ARG_COLD)
    target_compile_options(lt_${name} PRIVATE ${LT_COLD_OPTIONS})
  elseif(ARG_WARM)
    lt_keep_hot(lt_${name} $<$<CONFIG:Release>:-O1> ${ARG_HOT})
  endif()
  foreach(_depend IN LISTS LT_DEPENDS_${name})
    if(LT_KIND_${name} STREQUAL "torch" OR LT_KIND_${_depend} STREQUAL "core")
      target_link_libraries(lt_${name} PUBLIC lt_${_depend})
    endif()
  endforeach()
  if(LT_KIND_${name} STREQUAL "torch")
    target_link_libraries(lt_${name} PUBLIC lt_torch)
  endif()
endfunction()

# lt_add_test_sources(MODULE a_test.cpp ...): tests of a small module, in the binary of another one, before or after its
# lt_add_test. A binary that links LibTorch takes longer to link than such tests to compile.
function(lt_add_test_sources module)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  if(TARGET ${module}_test)
    target_sources(${module}_test PRIVATE ${ARGN})
  else()
    set_property(GLOBAL APPEND PROPERTY LT_TEST_SOURCES_${module}_test ${ARGN})
  endif()
endfunction()

# lt_discover_tests(TARGET core|torch [more arguments of gtest_discover_tests]): core = the sanitizer build runs it; what
# it could run besides is built by name (scripts/test.sh, slow_sanitizers)
function(lt_discover_tests target kind)
  if((kind STREQUAL "core" AND NOT LORA_TRAIN_CORE_TESTS) OR (kind STREQUAL "torch" AND LORA_TRAIN_CORE_ONLY))
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY LT_TESTS_OF_ALL ${target})
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} ${ARGN} PROPERTIES LABELS unit)
endfunction()

# lt_add_test(MODULE SOURCES a_test.cpp ... [USES more modules] [NAME name]): one GoogleTest binary, <module>_test or
# `name`. Its label is `unit`; each case is a separate CTest test. Tests that include torch are compiled in batches of
# eight, in the order of SOURCES: a single batch would keep one core busy for minutes.
function(lt_add_test module)
  if(NOT LORA_TRAIN_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;USES;LIBRARIES" ${ARGN})
  set(_test ${module}_test)
  if(ARG_NAME)
    set(_test ${ARG_NAME})
  endif()
  set(_modules ${module} ${LT_BELOW_${module}})
  foreach(_used IN LISTS ARG_USES)
    list(APPEND _modules ${_used} ${LT_BELOW_${_used}})
  endforeach()
  list(REMOVE_DUPLICATES _modules)
  get_property(_more GLOBAL PROPERTY LT_TEST_SOURCES_${_test})
  add_executable(${_test} ${ARG_SOURCES} ${_more})
  lt_use_unity(${_test})
  if(LT_KIND_${module} STREQUAL "torch")
    set_target_properties(${_test} PROPERTIES UNITY_BUILD_BATCH_SIZE 8)
  endif()
  target_include_directories(${_test} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src
                             ${PROJECT_SOURCE_DIR}/src/${module})
  target_link_libraries(${_test} PRIVATE lt_flags GTest::gtest GTest::gtest_main ${ARG_LIBRARIES})
  foreach(_module IN LISTS _modules)
    if(LT_KIND_${module} STREQUAL "torch" OR LT_KIND_${_module} STREQUAL "core")
      target_link_libraries(${_test} PRIVATE lt_${_module})
    endif()
  endforeach()
  target_compile_options(${_test} PRIVATE ${LT_COLD_OPTIONS})
  lt_use_pch(${_test} ${LT_KIND_${module}})
  set(_kind ${LT_KIND_${module}})
  if(module STREQUAL "cli" OR module STREQUAL "run_folder")  # starts the engine; too many faults for sanitizers
    set(_kind torch)
  endif()
  lt_discover_tests(${_test} ${_kind} DISCOVERY_TIMEOUT 120)
endfunction()
