// Python's format specifications: how one value is written by "%" and by str.format().
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "value.h"

namespace lora_train::tokenizer::jinja {

struct FormatSpec {
  std::string fill = " ";  ///< one character
  char align = 0;          ///< < > ^, = between sign and digits, 0 for the type's own
  char sign = '-';         ///< + and ' ' show if there is no minus
  bool alternate = false, grouped = false;
  std::size_t width = 0;  ///< in characters
  int precision = -1;     ///< -1 when not given
  char type = 0;
};

/// [[fill]align][sign][#][0][width][,][.precision][type]. RenderError for anything else, or what is not supported.
FormatSpec parse_format_spec(std::string_view spec);
/// A decimal number that begins at spec[at], which moves past the number; 0 when there are no digits.
std::size_t take_number(std::string_view spec, std::size_t& at);

/// format(value, spec). RenderError if the type does not take it.
Text format_value(const Value& value, const FormatSpec& spec);
/// Cut to the precision and padded to the width.
Text format_text(const Text& text, const FormatSpec& spec);
/// Types d x X o b; a precision is the least number of digits.
Text format_integer(std::int64_t value, const FormatSpec& spec);
/// Types e E f F g G %.
Text format_real(double value, const FormatSpec& spec);

/// text % values.
Value percent_format(const Text& text, const Value& values);
/// text.format(...).
Value brace_format(const Text& text, const Arguments& arguments);

}  // namespace lora_train::tokenizer::jinja
