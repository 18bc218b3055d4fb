# CUDA is detected automatically. Only the series of torch's own CUDA is accepted.
#   LT_NVCC           the compiler of our own kernels
#   lt_cuda           headers and libraries for building liblora_train_cuda.so; not set if any of them is missing
#   LT_CUDA_ABSENT    then: the missing part
#   LT_CUDART_STATIC  the CUDA runtime as an archive, for tests without LibTorch; LT_CUDART_STATIC-NOTFOUND if none

file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/dependencies.sh _cuda_series REGEX "^CUDA_SERIES=")
string(REPLACE "CUDA_SERIES=" "" _cuda_series "${_cuda_series}")
find_program(_nvcc_in_path nvcc NO_CACHE)
foreach(_nvcc ${_nvcc_in_path} /usr/local/cuda/bin/nvcc ${PROJECT_SOURCE_DIR}/.deps/cuda/bin/nvcc)
  if(NOT LT_NVCC AND EXISTS ${_nvcc})
    execute_process(COMMAND ${_nvcc} --version OUTPUT_VARIABLE _nvcc_version ERROR_QUIET)
    if(_nvcc_version MATCHES "release ${_cuda_series},")
      set(LT_NVCC ${_nvcc})
    endif()
  endif()
endforeach()
if(NOT LT_NVCC)
  message(STATUS "CPU-only build: no nvcc of CUDA ${_cuda_series} found")
  return()
endif()
message(STATUS "CUDA ${_cuda_series} found: ${LT_NVCC}")

# The wheels that torch requires have the headers and libraries of exactly that CUDA; crt/ comes with nvcc.
string(REGEX REPLACE "\\..*" "" _cuda_major ${_cuda_series})
get_filename_component(_site ${LORA_TRAIN_TORCH_DIR} DIRECTORY)
get_filename_component(_toolkit ${LT_NVCC} REALPATH)  # .deps/cuda/bin is a link
get_filename_component(_toolkit ${_toolkit} DIRECTORY)
get_filename_component(_toolkit ${_toolkit} DIRECTORY)
set(_frontend ${PROJECT_SOURCE_DIR}/.deps/cudnn-frontend/include)
set(LT_CUDA_ABSENT "")
set(_includes "")
foreach(_header cublasLt.h cudnn.h nccl.h cudnn_frontend.h crt/host_defines.h)
  set(_found "")
  foreach(_folder ${_site}/nvidia/cu${_cuda_major}/include ${_site}/nvidia/cudnn/include ${_site}/nvidia/nccl/include
          ${_frontend} ${_toolkit}/include)
    if(NOT _found AND EXISTS ${_folder}/${_header})
      set(_found ${_folder})
    endif()
  endforeach()
  if(_found)
    list(APPEND _includes ${_found})
  else()
    list(APPEND LT_CUDA_ABSENT ${_header})
  endif()
endforeach()
set(_libraries "")
foreach(_library torch/lib/libtorch_cuda.so torch/lib/libc10_cuda.so nvidia/cu${_cuda_major}/lib/libcudart.so.${_cuda_major}
                 nvidia/cu${_cuda_major}/lib/libcublasLt.so.${_cuda_major} nvidia/cudnn/lib/libcudnn.so.9
                 nvidia/nccl/lib/libnccl.so.2)
  if(EXISTS ${_site}/${_library})
    list(APPEND _libraries ${_site}/${_library})
  else()
    list(APPEND LT_CUDA_ABSENT ${_library})
  endif()
endforeach()
if(LT_CUDA_ABSENT)
  list(JOIN LT_CUDA_ABSENT ", " _absent)
  message(STATUS "liblora_train_cuda.so is not built: no ${_absent}. Run scripts/install_deps.sh")
  return()
endif()
find_file(LT_CUDART_STATIC libcudart_static.a PATHS ${_site}/nvidia/cu${_cuda_major}/lib ${_toolkit}/lib64
          NO_DEFAULT_PATH NO_CACHE)
list(REMOVE_DUPLICATES _includes)
add_library(lt_cuda INTERFACE IMPORTED GLOBAL)
target_include_directories(lt_cuda SYSTEM INTERFACE ${_includes})
target_link_libraries(lt_cuda INTERFACE ${_libraries})
