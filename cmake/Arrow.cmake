# liblora_train_arrow.so: Parquet and Arrow files, with the C++ libraries of the pyarrow wheel. The program loads it to
# read such a file (data/read/table_reader.cpp), after libarrow.so and libparquet.so, so it needs no path to them. Not
# built without pyarrow.
set(_series 2400)  # pyarrow 24, as in data/read/table_reader.cpp
if(NOT LORA_TRAIN_ARROW_DIR)
  file(GLOB _arrow_default ${PROJECT_SOURCE_DIR}/.deps/venv/lib/python3*/site-packages/pyarrow)
  set(LORA_TRAIN_ARROW_DIR "${_arrow_default}" CACHE PATH "folder of the pyarrow wheel (holds include/ and libarrow.so)" FORCE)
endif()
if(NOT EXISTS ${LORA_TRAIN_ARROW_DIR}/libarrow.so.${_series} OR LORA_TRAIN_SANITIZE)
  message(STATUS "liblora_train_arrow.so is not built: no libarrow.so.${_series}, or a build for sanitizers. Run scripts/install_deps.sh")
  return()
endif()
set(_table ${PROJECT_SOURCE_DIR}/src/data/read)
add_library(lora_train_arrow SHARED ${_table}/arrow_library.cpp)
target_include_directories(lora_train_arrow PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_include_directories(lora_train_arrow SYSTEM PRIVATE ${LORA_TRAIN_ARROW_DIR}/include)
target_link_libraries(lora_train_arrow PRIVATE lt_flags lt_build_id ${LORA_TRAIN_ARROW_DIR}/libarrow.so.${_series}
                                               ${LORA_TRAIN_ARROW_DIR}/libparquet.so.${_series})
# No symbol may stay undefined: std::string with another ABI would.
target_link_options(lora_train_arrow PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/arrow_symbols.txt -Wl,-z,defs)
set_target_properties(lora_train_arrow PROPERTIES SKIP_BUILD_RPATH ON LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/arrow_symbols.txt)
add_dependencies(lora-train lora_train_arrow)
# Its path at build time, like lib/torch_path.
file(CONFIGURE OUTPUT ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/arrow_path CONTENT "${LORA_TRAIN_ARROW_DIR}\n")
