// Python's formats: text % values and text.format(...). Rarer parts of their grammars are refused as not supported.

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "jinja.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

struct FormatSpec {
  std::string fill = " ";  ///< one character
  char align = 0;          ///< < > ^, = between sign and digits, 0 for the type's own
  std::string sign = {};   ///< "+" or " " if a number without a minus gets it
  bool alternate = false, grouped = false;
  std::size_t width = 0;  ///< in characters
  std::optional<std::size_t> precision = {};
  char type = 0;
};

constexpr std::size_t kMaxPrecision = 500;

[[noreturn]] void refuse_format(std::string_view format) {
  throw RenderError{fmt::format("the format \"{}\" is not supported", format), true};
}

[[noreturn]] void refuse_type(char type, const Value& value) {
  throw RenderError{fmt::format("unknown format code '{}' for an object of type '{}'", type, value.type_name())};
}

bool is_one_of(char type, std::string_view types) { return types.find(type) != std::string_view::npos; }

// Walks the characters of a format.
struct FormatReader {
  std::string_view format;
  std::size_t at = 0;

  // Passes the next character if it is one of these; else 0.
  char accept(std::string_view chars) {
    return at < format.size() && is_one_of(format[at], chars) ? format[at++] : '\0';
  }

  // A decimal number; 0 if there are no digits.
  std::size_t number() {
    std::size_t value = 0;
    const auto parsed = std::from_chars(format.data() + at, format.data() + format.size(), value);
    if (parsed.ec == std::errc::result_out_of_range) throw RenderError{"too many decimal digits in a format string"};
    at = static_cast<std::size_t>(parsed.ptr - format.data());
    return value;
  }

  // Without digits it is 0.
  void read_precision(FormatSpec& spec) {
    if (accept(".") == 0) return;
    spec.precision = number();
    if (*spec.precision > kMaxPrecision) refuse_format(format);
  }
};

/// [[fill]align][sign][#][0][width][,][.precision][type]
FormatSpec parse_format_spec(std::string_view format) {
  FormatSpec spec;
  FormatReader reader{format};
  const std::size_t first = std::max<std::size_t>(utf8_char(format, 0).length, 1);
  const bool has_fill = first < format.size() && is_one_of(format[first], "<>^=");
  if (has_fill) {
    spec.fill = format.substr(0, first);
    reader.at = first;
  }
  spec.align = reader.accept("<>^=");
  if (const char sign = reader.accept("+- "); sign != 0 && sign != '-') spec.sign = sign;
  spec.alternate = reader.accept("#") != 0;
  if (reader.accept("0") != 0) {
    if (!has_fill) spec.fill = "0";
    if (spec.align == 0) spec.align = '0';
  }
  spec.width = reader.number();
  spec.grouped = reader.accept(",") != 0;
  reader.read_precision(spec);
  const bool has_no_digits = format.substr(0, reader.at).ends_with('.');
  spec.type = reader.accept("sdxXeEfFgG%");
  if (has_no_digits || reader.at < format.size() || (spec.grouped && spec.fill == "0")) refuse_format(format);
  return spec;
}

/// [flags][width][.precision]type
FormatSpec parse_directive(FormatReader& reader) {
  FormatSpec spec;
  const std::size_t begin = reader.at;
  bool has_zero = false;
  while (const char flag = reader.accept("-0+ #")) {
    has_zero = has_zero || flag == '0';
    if (flag == '-') spec.align = '<';
    if (flag == '#') spec.alternate = true;
    if (flag == '+' || (flag == ' ' && spec.sign.empty())) spec.sign = flag;
  }
  if (spec.align == 0) {
    spec.align = has_zero ? '=' : '>';
    if (has_zero) spec.fill = "0";
  }
  spec.width = reader.number();
  reader.read_precision(spec);
  if (reader.at == reader.format.size()) throw RenderError{"incomplete format"};
  spec.type = reader.accept("srdiuxXeEfFgG");
  if (spec.type == 0) refuse_format("%" + std::string(reader.format.substr(begin, reader.at + 1 - begin)));
  if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
  return spec;
}

// A number without padding.
std::string written_number(const Value& value, const FormatSpec& spec) {
  const bool is_real = is_one_of(spec.type, "eEfFgG%"), is_percent = spec.type == '%';
  if (spec.precision && !is_real)
    throw RenderError{"a format precision without one of the types e, f, g and % is not supported", true};
  if (spec.alternate && !is_one_of(spec.type, "xX"))
    throw RenderError{"a # in a format of another type than x is not supported", true};
  if (spec.type == 0 && !value.is_whole()) {
    const double real = value.number();
    return (std::signbit(real) && !std::isnan(real) ? "" : spec.sign) + float_repr(real);
  }
  if (spec.type == 's' || (!is_real && !value.is_whole())) refuse_type(spec.type, value);
  const std::string format = fmt::format("{{:{}{}{}{}}}", spec.sign, spec.alternate ? "#" : "",
                                         spec.precision ? fmt::format(".{}", *spec.precision) : "",
                                         is_percent       ? 'f'
                                         : spec.type == 0 ? 'd'
                                                          : spec.type);
  if (!is_real) return fmt::format(fmt::runtime(format), value.whole());
  const double real = is_percent ? value.number() * 100 : value.number();
  return fmt::format(fmt::runtime(format), std::isnan(real) ? std::fabs(real) : real) + (is_percent ? "%" : "");
}

/// format(value, spec). RenderError if the type does not support it.
Text formatted(const Value& value, const FormatSpec& spec) {
  const bool is_text = value.as_text() != nullptr;
  if (!is_text && !value.is_number())
    throw RenderError{fmt::format("unsupported format string passed to {}.__format__", value.type_name())};
  Text body;
  std::size_t digits = 0;  // where they begin
  if (is_text) {
    if (spec.type != 0 && spec.type != 's') refuse_type(spec.type, value);
    if (spec.align == '=' || !spec.sign.empty() || spec.alternate || spec.grouped)
      throw RenderError{"a sign, zero, # or comma in the format of a string is not supported", true};
    const auto positions = char_positions(value.as_text()->bytes());
    const std::size_t count = positions.size() - 1;
    body = value.as_text()->slice(0, positions[std::min(spec.precision.value_or(count), count)]);
  } else {
    std::string number = written_number(value, spec);
    digits = number.find_first_not_of("+- ") + (spec.alternate ? 2 : 0);
    std::size_t whole_end = std::min(number.find_first_not_of("0123456789", digits), number.size());
    if (spec.grouped && is_one_of(spec.type, "xX")) refuse_type(spec.type, value);
    for (; spec.grouped && whole_end > digits + 3; whole_end -= 3) number.insert(whole_end - 3, ",");
    body = Text(number, kTemplate);
  }
  const char align = spec.align == '0' ? (is_text ? '<' : '=') : spec.align != 0 ? spec.align : is_text ? '<' : '>';
  const std::size_t missing = missing_chars(body, spec.width);
  const std::size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  return pad(body, align == '=' ? digits : 0, left, missing - left, spec.fill);
}

Text written(const Value& value, FormatSpec spec) {
  if (spec.type == 's' || spec.type == 'r') {  // which ignore the flags of numbers
    const bool is_quoted = spec.type == 'r' && (value.as_text() != nullptr || value.is_undefined());
    spec = {
        .align = spec.align == '=' ? '>' : spec.align, .width = spec.width, .precision = spec.precision, .type = 's'};
    return formatted(is_quoted ? Value::string(value.repr(), kComputed) : value.str(), spec);
  }
  if (!value.is_number() || (!value.is_whole() && is_one_of(spec.type, "xX")))
    throw RenderError{fmt::format("%{} format: a number is required, not {}", spec.type, value.type_name())};
  return formatted(spec.type == 'd' && !value.is_whole() ? truncated(value.number()) : value, spec);
}

}  // namespace

std::size_t missing_chars(const Text& text, std::size_t width) {
  check_text_size(width);
  return width - std::min(width, count_chars(text.bytes()));
}

Text pad(const Text& text, std::size_t at, std::size_t left, std::size_t right, std::string_view fill) {
  check_text_size((left + right) * fill.size());
  const auto filling = [&](std::size_t count) {
    std::string bytes;
    for (std::size_t i = 0; i < count; ++i) bytes += fill;
    return Text(bytes, kTemplate);
  };
  Text out = text.slice(0, at);
  out.append(filling(left));
  out.append(text, at, text.size());
  out.append(filling(right));
  return out;
}

Text percent_format(const Text& text, const Value& values) {
  const std::string_view format = text.bytes();
  const bool is_tuple = values.as_list() != nullptr && values.list_kind() == ListKind::kTuple;
  const List given = is_tuple ? *values.as_list() : List{values};
  std::size_t next = 0;
  // As in Python, which tolerates leftovers in anything with a subscript.
  const bool may_remain = !is_tuple && (values.as_dict() != nullptr || values.is_indexable() || values.is_undefined());
  const auto take = [&](FormatReader& reader) {
    if (reader.accept("(") == 0) {
      if (next == given.size()) throw RenderError{"not enough arguments for format string"};
      return given[next++];
    }
    const std::size_t end = format.find(')', reader.at);
    if (end == std::string_view::npos) throw RenderError{"incomplete format key"};
    const std::string_view name = format.substr(reader.at, end - reader.at);
    if (values.as_mapping() == nullptr) throw RenderError{"format requires a mapping"};
    const Value* found = values.as_mapping()->find(name);
    if (found == nullptr) throw RenderError{fmt::format("the format names \"{}\", which the mapping lacks", name)};
    reader.at = end + 1;
    return *found;
  };
  Text out;
  for (FormatReader reader{format}; reader.at < format.size();) {
    const std::size_t percent = std::min(format.find('%', reader.at), format.size());
    out.append(text, reader.at, percent);
    reader.at = std::min(percent + 1, format.size());
    if (percent == format.size()) break;
    if (reader.accept("%") != 0) {
      out.append("%", kTemplate);
      continue;
    }
    const Value value = take(reader);
    out.append(written(value, parse_directive(reader)));
  }
  if (next < given.size() && !may_remain) throw RenderError{"not all arguments converted during string formatting"};
  return out;
}

Text brace_format(const Text& text, const Arguments& arguments) {
  const std::string_view format = text.bytes();
  spend_bytes(format.size());
  std::size_t next = 0;
  bool has_numbers = false;
  const auto argument = [&](std::string_view name) {
    const auto number = whole_number<std::size_t>(name);
    has_numbers = has_numbers || number;
    if (has_numbers && (name.empty() || next > 0)) throw RenderError{"cannot mix {} and {0} in one format string"};
    const std::size_t index = number ? *number : name.empty() ? next++ : arguments.positional.size();
    if (const Value* value = arguments.get(index, name)) return *value;
    throw RenderError{fmt::format("the format string needs the argument {}, which is not given",
                                  name.empty() ? std::to_string(index) : fmt::format("\"{}\"", name))};
  };
  Text out;
  for (std::size_t at = 0; at < format.size();) {
    const std::size_t brace = std::min(format.find_first_of("{}", at), format.size());
    out.append(text, at, brace);
    if (brace == format.size()) break;
    at = brace + 1;
    if (at < format.size() && format[at] == format[brace]) {
      out.append(text, at, at + 1);
      ++at;
      continue;
    }
    if (format[brace] == '}') throw RenderError{"Single '}' encountered in format string"};
    const std::size_t end = format.find('}', at);
    if (end == std::string_view::npos) throw RenderError{"expected '}' before end of string"};
    // name, !r, :spec
    const std::string_view field = format.substr(at, end - at);
    const std::size_t mark = std::min(field.find_first_of("!:"), field.size());
    const std::string_view name = field.substr(0, mark);
    std::string_view spec = field.substr(mark);
    const bool is_repr = spec.starts_with("!r"), is_str = spec.starts_with("!s");
    if (is_repr || is_str) spec.remove_prefix(2);
    if (name.find_first_of(".[") != std::string_view::npos || field.find('{') != std::string_view::npos ||
        (!spec.empty() && spec[0] != ':'))
      refuse_format(field);
    const Value given = argument(name);
    const Value value = is_repr ? Value::string(given.repr(), kComputed) : is_str ? Value(given.str()) : given;
    out.append(spec.size() > 1 ? formatted(value, parse_format_spec(spec.substr(1))) : value.str());
    at = end + 1;
  }
  return out;
}

}  // namespace lora_train::tokenizer::jinja
