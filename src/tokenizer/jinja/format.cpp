// Python's formats: text % values and text.format(...). Numbers take what means the same in Python and in fmt; other formats
// are refused as not supported.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "jinja.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

constexpr std::string_view kDigits = "0123456789";

[[noreturn]] void refuse_format(std::string_view format) {
  throw RenderError{fmt::format("the format \"{}\" is not supported", format), true};
}

bool is_one_of(char type, std::string_view types) { return type != 0 && types.find(type) != std::string_view::npos; }

/// A number by [sign][0][width][.precision] and a type of "dxXeEfFgG", or 0 for the value's own.
std::string formatted(const Value& value, std::string_view spec, char type) {
  const std::size_t point = std::min(spec.find('.'), spec.size());
  const std::string_view width = spec.substr(0, point), precision = spec.substr(point);
  const std::size_t sign = width.starts_with('+') || width.starts_with(' ') ? 1 : 0;
  const bool is_real = is_one_of(type, "eEfFgG") || (type == 0 && !value.is_whole());
  const bool is_good = width.find_first_not_of(kDigits, sign) == std::string_view::npos && width.size() < sign + 4 &&
                       precision.size() != 1 && precision.size() < 4 &&
                       precision.find_first_not_of(kDigits, 1) == std::string_view::npos;
  if (!is_good || (!is_real && !precision.empty())) refuse_format(spec);
  if (!is_real && !value.is_whole())
    throw RenderError{fmt::format("unknown format code '{}' for an object of type '{}'", type, value.type_name())};
  const double real = value.number();
  if (is_real && ((type == 0 && !spec.empty()) || (!std::isfinite(real) && width.size() > sign))) refuse_format(spec);
  if (is_real && type == 0) return float_repr(real);
  const std::string format = fmt::format("{{:{}{}}}", spec, type == 0 ? 'd' : type);
  return is_real ? fmt::format(fmt::runtime(format), std::isnan(real) ? std::fabs(real) : real)
                 : fmt::format(fmt::runtime(format), value.whole());
}

/// What the directive of `type` writes for a value.
Text written(const Value& value, std::string_view spec, char type) {
  if (type == 's' || type == 'r') {
    if (!spec.empty()) refuse_format(spec);
    const bool is_quoted = type == 'r' && (value.as_text() != nullptr || value.is_undefined());
    return is_quoted ? Text(value.repr(), kComputed) : value.str();
  }
  if (!is_one_of(type, "diuxXeEfFgG")) refuse_format(std::string("%") + type);
  if (!value.is_number() || (!value.is_whole() && is_one_of(type, "xX")))
    throw RenderError{fmt::format("%{} format: a number is required, not {}", type, value.type_name())};
  if (!is_one_of(type, "diu")) return Text(formatted(value, spec, type), kTemplate);
  return Text(formatted(value.is_whole() ? value : truncated(value.number()), spec, 'd'), kTemplate);
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
  const auto take = [&](std::size_t& at) {
    if (at == format.size() || format[at] != '(') {
      if (next == given.size()) throw RenderError{"not enough arguments for format string"};
      return given[next++];
    }
    const std::size_t end = format.find(')', at);
    if (end == std::string_view::npos) throw RenderError{"incomplete format key"};
    const std::string_view name = format.substr(at + 1, end - at - 1);
    if (values.as_mapping() == nullptr) throw RenderError{"format requires a mapping"};
    const Value* found = values.as_mapping()->find(name);
    if (found == nullptr) throw RenderError{fmt::format("the format names \"{}\", which the mapping lacks", name)};
    at = end + 1;
    return *found;
  };
  Text out;
  for (std::size_t at = 0; at < format.size();) {
    const std::size_t percent = std::min(format.find('%', at), format.size());
    out.append(text, at, percent);
    at = percent + 1;
    if (percent == format.size()) break;
    if (at < format.size() && format[at] == '%') {
      out.append("%", kTemplate);
      ++at;
      continue;
    }
    const Value value = take(at);
    const std::size_t type = format.find_first_not_of("-+ #.0123456789", at);
    if (type == std::string_view::npos) throw RenderError{"incomplete format"};
    out.append(written(value, format.substr(at, type - at), format[type]));
    at = type + 1;
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
    spec.remove_prefix(spec.empty() ? 0 : 1);
    if (spec.empty()) {
      out.append(value.str());
    } else if (!value.is_number()) {
      refuse_format(field);
    } else {
      const char type = is_one_of(spec.back(), "dxXeEfFgG") ? spec.back() : '\0';
      out.append(formatted(value, spec.substr(0, spec.size() - (type == 0 ? 0 : 1)), type), kTemplate);
    }
    at = end + 1;
  }
  return out;
}

}  // namespace lora_train::tokenizer::jinja
