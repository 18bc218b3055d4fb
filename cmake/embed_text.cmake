# cmake -D OUT=FILE -D NAMESPACE=N -D "CONSTANTS=kA;kB" -D "kA=FILE;..." -D "kB=FILE;..." -P embed_text.cmake: text files as
# string constants. Pieces of 8,000 characters: the standard does not guarantee longer literals.
set(_names "")
set(_definitions "")
foreach(_name IN LISTS CONSTANTS)
  set(_text "")
  foreach(_file IN LISTS ${_name})
    file(READ "${_file}" _part)
    string(APPEND _text "${_part}")
  endforeach()
  string(LENGTH "${_text}" _length)
  string(APPEND _definitions "\nconst std::string_view ${_name} =")
  set(_at 0)
  while(_at LESS _length)
    string(SUBSTRING "${_text}" ${_at} 8000 _piece)
    string(APPEND _definitions "\n  R\"lora_train(${_piece})lora_train\"")
    math(EXPR _at "${_at} + 8000")
  endwhile()
  string(APPEND _definitions ";\n")
  list(APPEND _names ${_name})
endforeach()
list(JOIN _names ", " _names)
file(WRITE "${OUT}" "// Made by cmake/embed_text.cmake.
#include <string_view>

namespace ${NAMESPACE} {

extern const std::string_view ${_names};
${_definitions}
}  // namespace ${NAMESPACE}
")
