#include "format_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "builtins.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

constexpr int kMaxPrecision = 500;

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

void append_fill(Text& out, const std::string& fill, std::size_t count) {
  check_text_size(count * fill.size());
  std::string padding;
  for (std::size_t i = 0; i < count; ++i) padding += fill;
  out.append(padding, kTemplate);
}

std::size_t missing_chars(const std::string& bytes, const FormatSpec& spec) {
  check_text_size(spec.width);
  return spec.width - std::min(spec.width, count_chars(bytes));
}

// `prefix` is the sign and 0x; padding goes around or between.
Text padded_number(const std::string& prefix, const std::string& digits, const FormatSpec& spec) {
  const std::size_t missing = missing_chars(prefix + digits, spec);
  const char align = spec.align == 0 ? '>' : spec.align;
  const std::size_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  Text out;
  append_fill(out, spec.fill, before);
  out.append(prefix, kTemplate);
  if (align == '=') append_fill(out, spec.fill, missing);
  out.append(digits, kTemplate);
  append_fill(out, spec.fill, align == '=' ? 0 : missing - before);
  return out;
}

std::string sign_of(bool negative, const FormatSpec& spec) {
  return negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
}

// Commas between thousands of the whole part.
std::string with_commas(std::string digits) {
  const std::size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (std::size_t at = whole; at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

// A whole precision, as printf takes it.
int checked_precision(std::size_t precision) {
  if (precision > kMaxPrecision) throw RenderError{"a format precision beyond 500 is not supported", true};
  return static_cast<int>(precision);
}

Text repr_of_real(double value, const FormatSpec& spec) {
  if (spec.precision >= 0 || spec.alternate)
    throw RenderError{"a float format with a precision or # and no type is not supported", true};
  std::string digits = float_repr(std::fabs(value));
  return padded_number(sign_of(std::signbit(value) && !std::isnan(value), spec),
                       spec.grouped ? with_commas(digits) : digits, spec);
}

Text format_number(const Value& value, const FormatSpec& spec) {
  const bool is_real_type = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != 0;
  if (is_real_type) return format_real(value.number(), spec);
  if (value.is_whole()) {
    if (spec.precision >= 0) throw RenderError{"precision is not allowed in an integer format"};
    return format_integer(value.whole(), spec);
  }
  if (spec.type == 0) return repr_of_real(value.number(), spec);
  throw RenderError{std::string("unknown format code '") + spec.type + "' for an object of type 'float'"};
}

}  // namespace

std::size_t take_number(std::string_view spec, std::size_t& at) {
  std::size_t value = 0;
  const auto parsed = std::from_chars(spec.data() + at, spec.data() + spec.size(), value);
  if (parsed.ec == std::errc::result_out_of_range) throw RenderError{"too many decimal digits in a format string"};
  at = static_cast<std::size_t>(parsed.ptr - spec.data());
  return value;
}

FormatSpec parse_format_spec(std::string_view spec) {
  FormatSpec parsed;
  std::size_t at = 0;
  const auto accept = [&](char c) { return at < spec.size() && spec[at] == c ? (++at, true) : false; };
  const std::size_t first = spec.empty() ? 0 : std::max<std::size_t>(utf8_char(std::string(spec), 0).length, 1);
  if (first < spec.size() && is_align(spec[first])) {
    parsed.fill = spec.substr(0, first);
    parsed.align = spec[first];
    at = first + 1;
  } else if (!spec.empty() && is_align(spec[0])) {
    parsed.align = spec[at++];
  }
  const bool has_fill = at > 1;
  if (at < spec.size() && (spec[at] == '+' || spec[at] == '-' || spec[at] == ' ')) parsed.sign = spec[at++];
  parsed.alternate = accept('#');
  if (accept('0')) {
    if (!has_fill) parsed.fill = "0";
    if (parsed.align == 0) parsed.align = '0';  // = for numbers, < for strings
  }
  parsed.width = take_number(spec, at);
  parsed.grouped = accept(',');
  if (accept('.')) {
    const std::size_t begin = at;
    const std::size_t precision = take_number(spec, at);
    if (at == begin) throw RenderError{"format specifier missing precision"};
    parsed.precision = checked_precision(precision);
  }
  if (at < spec.size()) parsed.type = spec[at++];
  if (at < spec.size() || std::string_view("\0sdxXobeEfFgG%", 14).find(parsed.type) == std::string_view::npos)
    throw RenderError{"the format \"" + std::string(spec) + "\" is not supported", true};
  if (parsed.grouped && (parsed.align == '0' || parsed.fill == "0"))
    throw RenderError{"a format with both 0 and , is not supported", true};
  return parsed;
}

Text format_text(const Text& text, const FormatSpec& spec) {
  Text body = text;
  if (spec.precision >= 0) {
    const auto positions = char_positions(text.bytes());
    const std::size_t kept = std::min(static_cast<std::size_t>(spec.precision), positions.size() - 1);
    body = text.slice(0, positions[kept]);
  }
  const std::size_t missing = missing_chars(body.bytes(), spec);
  const std::size_t before = spec.align == '>' ? missing : spec.align == '^' ? missing / 2 : 0;
  Text out;
  append_fill(out, spec.fill, before);
  out.append(body);
  append_fill(out, spec.fill, missing - before);
  return out;
}

Text format_integer(std::int64_t value, const FormatSpec& spec) {
  const int base = spec.type == 'x' || spec.type == 'X' ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  const std::uint64_t magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  std::array<char, 64> buffer{};
  std::string digits(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), magnitude, base).ptr);
  if (spec.type == 'X')
    std::transform(digits.begin(), digits.end(), digits.begin(),
                   [](char c) { return c >= 'a' ? static_cast<char>(c - 32) : c; });
  const auto least = static_cast<std::size_t>(std::max(spec.precision, 0));
  if (digits.size() < least) digits.insert(0, least - digits.size(), '0');
  std::string prefix = sign_of(value < 0, spec);
  if (spec.alternate && base != 10) (prefix += '0') += spec.type;
  if (spec.grouped && base != 10) throw RenderError{std::string("cannot specify ',' with '") + spec.type + "'"};
  return padded_number(prefix, spec.grouped ? with_commas(digits) : digits, spec);
}

Text format_real(double value, const FormatSpec& spec) {
  const bool is_percent = spec.type == '%';
  std::string format = spec.alternate ? "%#.*" : "%.*";
  format += is_percent ? 'f' : spec.type;
  std::array<char, 1024> buffer{};
  const int length =
      std::snprintf(buffer.data(), buffer.size(), format.c_str(), spec.precision < 0 ? 6 : spec.precision,
                    std::fabs(is_percent ? value * 100 : value));
  std::string digits(buffer.data(), static_cast<std::size_t>(length));
  if (spec.grouped) digits = with_commas(digits);
  const bool is_negative = std::signbit(value) && !std::isnan(value);
  return padded_number(sign_of(is_negative, spec), is_percent ? digits + '%' : digits, spec);
}

Text format_value(const Value& value, const FormatSpec& spec) {
  FormatSpec used = spec;
  if (value.is_number()) {
    if (spec.align == '0') used.align = '=';
    if (spec.type == 's')
      throw RenderError{"unknown format code 's' for an object of type '" + value.type_name() + "'"};
    return format_number(value, used);
  }
  if (value.as_text() == nullptr)
    throw RenderError{"unsupported format string passed to " + value.type_name() + ".__format__"};
  const bool is_plain = spec.align != '=' && spec.sign == '-' && !spec.alternate && !spec.grouped;
  if (!is_plain || (spec.type != 0 && spec.type != 's')) throw RenderError{"the format is not one for strings"};
  if (spec.align == '0') used.align = '<';
  return format_text(*value.as_text(), used);
}

}  // namespace lora_train::tokenizer::jinja
