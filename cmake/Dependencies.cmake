# Finds the packages that scripts/install_deps.sh installs. Names and versions are in scripts/dependencies.sh.

find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
# Debian has spdlog and fmt as shared libraries, not as archives: spdlog is header-only, fmt compiled here. LibTorch
# carries another fmt among its headers, so ours has a folder of its own, which lt_flags puts first.
find_path(LT_FMT_INCLUDE fmt/core.h REQUIRED)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/fmt_include)
file(CREATE_LINK ${LT_FMT_INCLUDE}/fmt ${PROJECT_BINARY_DIR}/fmt_include/fmt SYMBOLIC)
add_library(lt_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
target_compile_features(lt_fmt PUBLIC cxx_std_20)
target_include_directories(lt_fmt SYSTEM PUBLIC ${PROJECT_BINARY_DIR}/fmt_include)
set_target_properties(lt_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
find_path(LT_SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED)
add_library(lt_spdlog INTERFACE IMPORTED GLOBAL)
target_include_directories(lt_spdlog SYSTEM INTERFACE ${LT_SPDLOG_INCLUDE})
target_compile_definitions(lt_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(lt_spdlog INTERFACE lt_fmt)

# Static if Debian has an archive, so that the binary can move to a machine without them.
function(lt_import_archive target header archive)
  find_path(${target}_INCLUDE ${header} REQUIRED)
  find_library(${target}_ARCHIVE NAMES ${archive} REQUIRED)
  add_library(${target} STATIC IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${${target}_ARCHIVE})
  target_include_directories(${target} INTERFACE ${${target}_INCLUDE})
endfunction()
lt_import_archive(lt_yaml_cpp yaml-cpp/yaml.h libyaml-cpp.a)
lt_import_archive(lt_pcre2 pcre2.h libpcre2-8.a)
target_compile_definitions(lt_pcre2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8)
lt_import_archive(lt_utf8proc utf8proc.h libutf8proc.a)
target_compile_definitions(lt_utf8proc INTERFACE UTF8PROC_STATIC)
lt_import_archive(lt_zlib zlib.h libz.a)
lt_import_archive(lt_zstd zstd.h libzstd.a)
lt_import_archive(lt_png png.h libpng16.a)
target_link_libraries(lt_png INTERFACE lt_zlib m)
lt_import_archive(lt_freetype freetype2/ft2build.h libfreetype.a)  # which reads compressed fonts too
find_library(LT_BROTLI NAMES libbrotlidec.a REQUIRED)
find_library(LT_BROTLI_COMMON NAMES libbrotlicommon.a REQUIRED)
target_include_directories(lt_freetype INTERFACE ${lt_freetype_INCLUDE}/freetype2)
target_link_libraries(lt_freetype INTERFACE lt_png ${LT_BROTLI} ${LT_BROTLI_COMMON})
find_file(LT_FONT DejaVuSans.ttf PATHS /usr/share/fonts/truetype/dejavu REQUIRED)

# Debian has no archive of it: a copy goes into bin/lib. It exports its own protobuf and a variable FLAGS_minloglevel,
# which LibTorch's libc10 has with another type: the copy exports only SentencePiece's symbols.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
find_path(LT_SENTENCEPIECE_INCLUDE sentencepiece_processor.h REQUIRED)
find_library(LT_SENTENCEPIECE_LIBRARY NAMES libsentencepiece.so.0 REQUIRED)
set(LT_CARRIED_SENTENCEPIECE ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libsentencepiece.so.0)
execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/hide_symbols.py ${LT_SENTENCEPIECE_LIBRARY}
                        ${LT_CARRIED_SENTENCEPIECE} --keep sentencepiece COMMAND_ERROR_IS_FATAL ANY)
add_library(lt_sentencepiece SHARED IMPORTED GLOBAL)
set_target_properties(lt_sentencepiece PROPERTIES IMPORTED_LOCATION ${LT_CARRIED_SENTENCEPIECE}
                      IMPORTED_SONAME libsentencepiece.so.0 INTERFACE_INCLUDE_DIRECTORIES ${LT_SENTENCEPIECE_INCLUDE})

if(LORA_TRAIN_CORE_ONLY)
  return()
endif()

# LibTorch from the torch wheel. Own imported target: TorchConfig.cmake would pull in the whole CUDA toolkit.
if(NOT LORA_TRAIN_TORCH_DIR)  # also if a try before the installation left it empty in the cache
  file(GLOB _torch_default ${PROJECT_SOURCE_DIR}/.deps/venv/lib/python3*/site-packages/torch)
  set(LORA_TRAIN_TORCH_DIR "${_torch_default}" CACHE PATH "folder of the torch wheel (holds include/ and lib/)" FORCE)
endif()
if(NOT EXISTS ${LORA_TRAIN_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no LibTorch in \"${LORA_TRAIN_TORCH_DIR}\": run scripts/install_deps.sh, or set LORA_TRAIN_TORCH_DIR")
endif()
file(STRINGS ${LORA_TRAIN_TORCH_DIR}/version.py _torch_version REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LORA_TRAIN_TORCH_VERSION "${_torch_version}")
if(NOT LORA_TRAIN_TORCH_VERSION MATCHES "^2\\.11\\.")
  message(FATAL_ERROR "LibTorch ${LORA_TRAIN_TORCH_VERSION} found, 2.11.x is needed (${LORA_TRAIN_TORCH_DIR})")
endif()
add_library(lt_torch INTERFACE IMPORTED GLOBAL)
target_include_directories(lt_torch SYSTEM INTERFACE ${LORA_TRAIN_TORCH_DIR}/include)
target_link_directories(lt_torch INTERFACE ${LORA_TRAIN_TORCH_DIR}/lib)
target_compile_definitions(lt_torch INTERFACE AT_PER_OPERATOR_HEADERS)  # its headers include the operators that they use, not all
target_link_libraries(lt_torch INTERFACE torch_cpu c10)
# Tests and benchmarks find it by run path. The engine must not contain a path of this machine (cmake/Program.cmake).
target_link_options(lt_torch INTERFACE -Wl,--allow-shlib-undefined
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:LORA_TRAIN_NO_TORCH_RPATH>>>:-Wl,-rpath,${LORA_TRAIN_TORCH_DIR}/lib>)

include(cmake/Cuda.cmake)
