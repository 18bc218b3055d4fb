# cmake -D OUT=FILE -D STYLE=FILE -D SCRIPTS=FILE;... -P embed_text.cmake: text files as string constants.
# Pieces of 8,000 characters: the standard does not guarantee longer literals.
function(lt_literal variable text)
  string(LENGTH "${text}" _length)
  set(_out "")
  set(_at 0)
  while(_at LESS _length)
    string(SUBSTRING "${text}" ${_at} 8000 _piece)
    string(APPEND _out "\n  R\"lora_train(${_piece})lora_train\"")
    math(EXPR _at "${_at} + 8000")
  endwhile()
  set(${variable} "${_out}" PARENT_SCOPE)
endfunction()

file(READ "${STYLE}" _style)
set(_script "")
foreach(_file IN LISTS SCRIPTS)
  file(READ "${_file}" _text)
  string(APPEND _script "${_text}")
endforeach()
lt_literal(_style_literal "${_style}")
lt_literal(_script_literal "${_script}")
file(WRITE "${OUT}" "// Made by cmake/embed_text.cmake.
#include <string_view>

namespace lora_train::report {

extern const std::string_view kPageStyle, kPageScript;

const std::string_view kPageStyle =${_style_literal};

const std::string_view kPageScript =${_script_literal};

}  // namespace lora_train::report
")
