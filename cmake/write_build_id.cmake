# cmake -D SOURCE=folder -D HEADER=file -D SETTINGS=text -P write_build_id.cmake: writes into a header the id on which
# program, engine and CUDA library must agree: a hash of every header of ours and of SETTINGS (compiler, flags,
# LibTorch). They share only headers, so an edit of a source does not change the id or the header.
file(GLOB_RECURSE _headers RELATIVE ${SOURCE} ${SOURCE}/include/*.h ${SOURCE}/src/*.h)
list(SORT _headers)
set(_hashes "${SETTINGS}\n")
foreach(_header IN LISTS _headers)
  file(SHA256 ${SOURCE}/${_header} _hash)
  string(APPEND _hashes "${_header} ${_hash}\n")
endforeach()
string(SHA256 _id "${_hashes}")
string(SUBSTRING ${_id} 0 16 _id)
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define LORA_TRAIN_BUILD_ID \"${_id}\"\n")
