// Python's formats: text % values. Numbers take what means the same in Python and in fmt; other formats are refused as
// not supported.

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

/// A number by [sign][0][width][.precision] and a type of "dxXeEfFgG".
std::string formatted(const Value& value, std::string_view spec, char type) {
  const std::size_t point = std::min(spec.find('.'), spec.size());
  const std::string_view width = spec.substr(0, point), precision = spec.substr(point);
  const std::size_t sign = width.starts_with('+') || width.starts_with(' ') ? 1 : 0;
  const bool is_real = is_one_of(type, "eEfFgG");
  const bool is_good = width.find_first_not_of(kDigits, sign) == std::string_view::npos && width.size() < sign + 4 &&
                       precision.size() != 1 && precision.size() < 4 &&
                       precision.find_first_not_of(kDigits, 1) == std::string_view::npos;
  if (!is_good || (!is_real && !precision.empty())) refuse_format(spec);
  const double real = value.number();
  if (is_real && !std::isfinite(real) && width.size() > sign) refuse_format(spec);
  const std::string format = fmt::format("{{:{}{}}}", spec, type);
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

}  // namespace lora_train::tokenizer::jinja
