# The native CUDA kernels, without torch. Each `.cu` is compiled twice: by nvcc for liblora_train_cuda.so, and by the
# host compiler for tests, where tests/support/on_cpu.h emulates the GPU.
set(LT_NATIVE_KERNELS adamw/adamw_cuda.cu attention/ragged_cuda.cu cast/cast_cuda.cu
    causal_conv/causal_conv_cuda.cu cross_entropy/cross_entropy_cuda.cu
    dropout/dropout_cuda.cu embedding/embedding_cuda.cu gated_activation/gated_activation_cuda.cu
    gated_delta/gated_delta_backward_cuda.cu gated_delta/gated_delta_cuda.cu gated_norm/gated_norm_cuda.cu
    lora/lora_cuda.cu quantized_weight/quantized_weight_cuda.cu rms_norm/rms_norm_cuda.cu rope/rope_cuda.cu
    sampling/sampling_cuda.cu)
set(_here ${CMAKE_CURRENT_LIST_DIR})

if(LORA_TRAIN_TESTS AND NOT TARGET lt_native_kernels_on_cpu)
  set(_sources ${_here}/dispatch/native_kernels.cpp ${PROJECT_SOURCE_DIR}/tests/support/on_cpu.cpp)
  foreach(_kernel IN LISTS LT_NATIVE_KERNELS)
    get_filename_component(_name ${_kernel} NAME_WE)
    set(_copy ${PROJECT_BINARY_DIR}/on_cpu/${_name}.cpp)
    file(CONFIGURE OUTPUT ${_copy} CONTENT "#include \"${_here}/${_kernel}\"\n")
    list(APPEND _sources ${_copy})
  endforeach()
  add_library(lt_native_kernels_on_cpu OBJECT ${_sources})
  target_compile_definitions(lt_native_kernels_on_cpu PRIVATE LORA_TRAIN_ON_CPU)
  target_include_directories(lt_native_kernels_on_cpu PUBLIC ${_here} ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(lt_native_kernels_on_cpu PRIVATE lt_flags PUBLIC lt_base)
  set_target_properties(lt_native_kernels_on_cpu PROPERTIES EXCLUDE_FROM_ALL ON)  # its tests may not be built
  if(LORA_TRAIN_SANITIZE)
    target_compile_options(lt_native_kernels_on_cpu PRIVATE -O1)  # at -O0, a fibre's frames confuse AddressSanitizer
  endif()
endif()

if(LT_NVCC AND NOT LORA_TRAIN_CORE_ONLY AND NOT TARGET lt_native_kernels_cuda)
  set(_targets "")
  foreach(_architecture IN LISTS LT_CUDA_ARCHITECTURES)
    string(REPLACE "-real" "" _number "${_architecture}")
    string(REPLACE "-virtual" "" _number "${_number}")
    set(_code sm_${_number})
    if(_architecture MATCHES "virtual")
      set(_code compute_${_number})
    endif()
    list(APPEND _targets -gencode arch=compute_${_number},code=${_code})
  endforeach()
  set(_launcher "")
  if(CCACHE_PROGRAM)
    set(_launcher ${CCACHE_PROGRAM})
  endif()
  set(_objects "")
  foreach(_kernel IN LISTS LT_NATIVE_KERNELS)
    get_filename_component(_name ${_kernel} NAME_WE)
    set(_object ${PROJECT_BINARY_DIR}/cuda_objects/${_name}.o)
    # -Werror: warnings of nvcc and its host compiler are errors. fmt takes nvcc for a compiler without constexpr.
    add_custom_command(OUTPUT ${_object} DEPENDS ${_here}/${_kernel} DEPFILE ${_object}.d VERBATIM
      COMMENT "nvcc ${_kernel}"
      COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/cuda_objects
      COMMAND ${_launcher} ${LT_NVCC} -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1 -Werror all-warnings
              -Xcompiler=-fPIC,-Wall,-Wextra,-fvisibility-inlines-hidden ${_targets} -I${PROJECT_SOURCE_DIR}/include -I${_here}
              -MD -MF ${_object}.d -c ${_here}/${_kernel} -o ${_object})
    list(APPEND _objects ${_object})
  endforeach()
  add_library(lt_native_kernels_cuda OBJECT ${_here}/dispatch/native_kernels.cpp ${_objects})
  set_source_files_properties(${_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_include_directories(lt_native_kernels_cuda PUBLIC ${_here})
  target_link_libraries(lt_native_kernels_cuda PRIVATE lt_flags PUBLIC lt_base)
endif()
