# cmake -D SOURCE=folder -D HEADER=file -D SETTINGS=text -P write_build_id.cmake: writes into a header what program, engine and
# CUDA library have to agree on: a hash of every header of ours and of SETTINGS (compiler, flags, LibTorch). Only headers
# cross from one to the other, so an edit of a source leaves the id as it is, and with it the header.
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
