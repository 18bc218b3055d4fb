// Python's format specifications: how "%" and str.format() write a value.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "jinja.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

struct FormatSpec {
  std::string fill = " ";  ///< one character
  char align = 0;          ///< < > ^, = between sign and digits, 0 for the type's own
  char sign = '-';         ///< + and ' ' appear if there is no minus
  bool alternate = false, grouped = false;
  std::size_t width = 0;  ///< in characters
  int precision = -1;     ///< -1 if not given
  char type = 0;
};

constexpr std::size_t kMaxPrecision = 500;

// The body within the width; `begin` of its bytes, the sign and 0x of a number, come before a padding in between.
Text padded(const Text& body, std::size_t begin, const FormatSpec& spec) {
  check_text_size(spec.width);
  const std::size_t missing = spec.width - std::min(spec.width, count_chars(body.bytes()));
  check_text_size(missing * spec.fill.size());
  const std::size_t before = spec.align == '>' ? missing : spec.align == '^' ? missing / 2 : 0;
  const auto fill = [&](std::size_t count) {
    std::string padding;
    for (std::size_t i = 0; i < count; ++i) padding += spec.fill;
    return padding;
  };
  Text out(fill(before), kTemplate);
  out.append(body, 0, begin);
  if (spec.align == '=') out.append(fill(missing), kTemplate);
  out.append(body, begin, body.size());
  if (spec.align != '=') out.append(fill(missing - before), kTemplate);
  return out;
}

Text padded_number(const std::string& prefix, const std::string& digits, FormatSpec spec) {
  if (spec.align == 0) spec.align = '>';
  return padded(Text(prefix + digits, kTemplate), prefix.size(), spec);
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

Text repr_of_real(double value, const FormatSpec& spec) {
  if (spec.precision >= 0 || spec.alternate)
    throw RenderError{"a float format with a precision or # and no type is not supported", true};
  std::string digits = float_repr(std::fabs(value));
  return padded_number(sign_of(std::signbit(value) && !std::isnan(value), spec),
                       spec.grouped ? with_commas(digits) : digits, spec);
}

// Walks the characters of a format.
struct FormatReader {
  std::string_view format;
  std::size_t at = 0;

  bool is_at_end() const { return at >= format.size(); }
  bool accept(char c) {
    const bool is_there = !is_at_end() && format[at] == c;
    if (is_there) ++at;
    return is_there;
  }
  // A decimal number; 0 if there are no digits.
  std::size_t number() {
    std::size_t value = 0;
    const auto parsed = std::from_chars(format.data() + at, format.data() + format.size(), value);
    if (parsed.ec == std::errc::result_out_of_range) throw RenderError{"too many decimal digits in a format string"};
    at = static_cast<std::size_t>(parsed.ptr - format.data());
    return value;
  }
  // As int, as printf takes it.
  int precision() {
    const std::size_t value = number();
    if (value > kMaxPrecision) throw RenderError{"a format precision beyond 500 is not supported", true};
    return static_cast<int>(value);
  }
};

bool is_one_of(char type, std::string_view types) { return types.find(type) != std::string_view::npos; }
bool is_real_type(char type) { return is_one_of(type, "eEfFgG%"); }

/// [[fill]align][sign][#][0][width][,][.precision][type]. RenderError for anything else or unsupported.
FormatSpec parse_format_spec(std::string_view spec) {
  FormatSpec parsed;
  FormatReader reader{spec};
  const auto accept_one_of = [&](std::string_view chars, char& found) {
    if (!reader.is_at_end() && is_one_of(spec[reader.at], chars)) found = spec[reader.at++];
  };
  const std::size_t first = spec.empty() ? 0 : std::max<std::size_t>(utf8_char(spec, 0).length, 1);
  const bool has_fill = first < spec.size() && is_one_of(spec[first], "<>^=");
  if (has_fill) {
    parsed.fill = spec.substr(0, first);
    reader.at = first;
  }
  accept_one_of("<>^=", parsed.align);
  accept_one_of("+- ", parsed.sign);
  parsed.alternate = reader.accept('#');
  if (reader.accept('0')) {
    if (!has_fill) parsed.fill = "0";
    if (parsed.align == 0) parsed.align = '0';  // = for numbers, < for strings
  }
  parsed.width = reader.number();
  parsed.grouped = reader.accept(',');
  if (reader.accept('.')) {
    const std::size_t begin = reader.at;
    parsed.precision = reader.precision();
    if (reader.at == begin) throw RenderError{"format specifier missing precision"};
  }
  accept_one_of("sdxXobeEfFgG%", parsed.type);
  if (!reader.is_at_end()) throw RenderError{fmt::format("the format \"{}\" is not supported", spec), true};
  if (parsed.grouped && (parsed.align == '0' || parsed.fill == "0"))
    throw RenderError{"a format with both 0 and , is not supported", true};
  return parsed;
}

/// Cut to the precision and padded to the width.
Text format_text(const Text& text, const FormatSpec& spec) {
  if (spec.precision < 0) return padded(text, 0, spec);
  const auto positions = char_positions(text.bytes());
  const std::size_t kept = std::min(static_cast<std::size_t>(spec.precision), positions.size() - 1);
  return padded(text.slice(0, positions[kept]), 0, spec);
}

/// Types d x X o b; a precision is the minimum number of digits.
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
  if (spec.grouped && base != 10) throw RenderError{fmt::format("cannot specify ',' with '{}'", spec.type)};
  return padded_number(prefix, spec.grouped ? with_commas(digits) : digits, spec);
}

/// Types e E f F g G %.
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

Text format_number(const Value& value, const FormatSpec& spec) {
  if (is_real_type(spec.type)) return format_real(value.number(), spec);
  if (value.is_whole()) {
    if (spec.precision >= 0) throw RenderError{"precision is not allowed in an integer format"};
    return format_integer(value.whole(), spec);
  }
  if (spec.type == 0) return repr_of_real(value.number(), spec);
  throw RenderError{fmt::format("unknown format code '{}' for an object of type 'float'", spec.type)};
}

/// format(value, spec). RenderError if the type does not support it.
Text format_value(const Value& value, const FormatSpec& spec) {
  FormatSpec used = spec;
  if (value.is_number()) {
    if (spec.align == '0') used.align = '=';
    if (spec.type == 's')
      throw RenderError{fmt::format("unknown format code 's' for an object of type '{}'", value.type_name())};
    return format_number(value, used);
  }
  if (value.as_text() == nullptr)
    throw RenderError{fmt::format("unsupported format string passed to {}.__format__", value.type_name())};
  const bool is_plain = spec.align != '=' && spec.sign == '-' && !spec.alternate && !spec.grouped;
  if (!is_plain || (spec.type != 0 && spec.type != 's')) throw RenderError{"the format is not one for strings"};
  if (spec.align == '0') used.align = '<';
  return format_text(*value.as_text(), used);
}

// The values for the directives of a "%" format, taken in order or by name.
class PercentValues {
 public:
  explicit PercentValues(const Value& values) : all_(values) {
    const bool is_tuple = values.as_list() != nullptr && values.list_kind() == ListKind::kTuple;
    rest_ = is_tuple ? *values.as_list() : List{values};
    // As in Python, which tolerates leftovers in anything with a subscript.
    may_remain_ = !is_tuple && (values.as_dict() != nullptr || values.is_indexable() || values.is_undefined());
  }

  const Value& next() {
    if (at_ == rest_.size()) throw RenderError{"not enough arguments for format string"};
    return rest_[at_++];
  }

  Value named(const std::string& name) {
    if (all_.as_dict() == nullptr || all_.as_namespace() != nullptr) throw RenderError{"format requires a mapping"};
    const Value* found = all_.as_dict()->find(name);
    if (found == nullptr) throw RenderError{fmt::format("the format names \"{}\", which the mapping lacks", name)};
    may_remain_ = true;
    return *found;
  }

  void finish() const {
    if (at_ < rest_.size() && !may_remain_) throw RenderError{"not all arguments converted during string formatting"};
  }

 private:
  const Value& all_;
  List rest_;
  std::size_t at_ = 0;
  bool may_remain_ = false;
};

// %[(name)][flags][width][.precision]type
struct Directive {
  FormatSpec spec;
  std::optional<std::string> name;
  bool is_left = false, is_zero = false;
};

Directive parse_directive(FormatReader& reader) {
  Directive parsed;
  if (reader.accept('(')) {
    const std::size_t end = reader.format.find(')', reader.at);
    if (end == std::string_view::npos) throw RenderError{"incomplete format key"};
    parsed.name = std::string(reader.format.substr(reader.at, end - reader.at));
    if (parsed.name->find('(') != std::string::npos)
      throw RenderError{"parentheses inside a % format's name are not supported", true};
    reader.at = end + 1;
  }
  for (; !reader.is_at_end() && is_one_of(reader.format[reader.at], "-0+ #"); ++reader.at) {
    const char flag = reader.format[reader.at];
    parsed.is_left |= flag == '-';
    parsed.is_zero |= flag == '0';
    parsed.spec.alternate |= flag == '#';
    if (flag == '+' || (flag == ' ' && parsed.spec.sign != '+')) parsed.spec.sign = flag;
  }
  if (reader.accept('*')) throw RenderError{"a * in a % format is not supported", true};
  parsed.spec.width = reader.number();
  if (reader.accept('.')) parsed.spec.precision = reader.precision();
  if (reader.is_at_end()) throw RenderError{"incomplete format"};
  parsed.spec.type = reader.format[reader.at++];
  return parsed;
}

std::int64_t whole_of(const Value& value, char type) {
  if (value.is_whole()) return value.whole();
  if (value.as_double() == nullptr || type != 'd')
    throw RenderError{fmt::format("%{} format: a number is required, not {}", type, value.type_name())};
  const double real = *value.as_double();
  if (!(std::abs(real) < 9.2e18)) throw RenderError{"a float beyond 64 bits in %d is not supported", true};
  return static_cast<std::int64_t>(real);
}

Text written(const Value& value, Directive& directive) {
  FormatSpec& spec = directive.spec;
  if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
  const bool is_whole = is_one_of(spec.type, "dxXo");
  spec.align = directive.is_left ? '<' : '>';
  if (spec.type == 's') return format_text(value.str(), spec);
  if (spec.type == 'r') {
    if (value.is_undefined()) return format_text(Text("Undefined", kComputed), spec);
    return format_text(value.as_text() == nullptr ? value.str() : Text(value.repr(), kComputed), spec);
  }
  if (spec.type == '%') throw RenderError{"unsupported format character '%' after flags, a width or a name"};
  if (!is_real_type(spec.type) && !is_whole)
    throw RenderError{fmt::format("the format %{} is not supported", spec.type), true};
  if (directive.is_zero && !directive.is_left) {
    spec.align = '=';
    spec.fill = "0";
  }
  if (is_whole) return format_integer(whole_of(value, spec.type), spec);
  if (!value.is_number()) throw RenderError{"must be real number, not " + value.type_name()};
  return format_real(value.number(), spec);
}

// {[name][!conversion][:spec]} and the texts between.
class BraceFormat {
 public:
  BraceFormat(const Text& text, const Arguments& arguments)
      : text_(text), format_(text.bytes()), arguments_(arguments) {}

  Text run() {
    spend_bytes(format_.size());
    for (std::size_t at = 0; at < format_.size();) {
      const std::size_t brace = std::min(format_.find_first_of("{}", at), format_.size());
      out_.append(text_, at, brace);
      at = brace;
      if (at == format_.size()) break;
      const bool is_doubled = at + 1 < format_.size() && format_[at + 1] == format_[at];
      if (is_doubled) {
        out_.append(text_, at, at + 1);
        at += 2;
      } else if (format_[at] == '}') {
        throw RenderError{"Single '}' encountered in format string"};
      } else {
        at = replace_field(at + 1);
      }
    }
    return std::move(out_);
  }

 private:
  // Replaces the field whose text begins at `begin`; returns where the text continues.
  std::size_t replace_field(std::size_t begin) {
    const std::size_t end = format_.find('}', begin);
    if (end == std::string_view::npos) throw RenderError{"expected '}' before end of string"};
    const std::string_view field = format_.substr(begin, end - begin);
    if (field.find('{') != std::string_view::npos)
      throw RenderError{"braces inside a format field are not supported", true};
    const std::size_t mark = std::min(field.find_first_of("!:"), field.size());
    Value value = lookup(field.substr(0, mark));
    std::string_view rest = field.substr(mark);
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':'))
        throw RenderError{"expected ':' after conversion specifier"};
      value = converted(value, rest[1]);
      rest.remove_prefix(2);
    }
    if (rest.size() > 1)
      out_.append(format_value(value, parse_format_spec(rest.substr(1))));
    else
      out_.append(value.str());
    return end + 1;
  }

  static Value converted(const Value& value, char conversion) {
    if (conversion == 's') return value.str();
    if (conversion == 'r') return Value::string(value.repr(), kComputed);
    if (conversion == 'a') throw RenderError{"the conversion !a is not supported", true};
    throw RenderError{std::string("Unknown conversion specifier ") + conversion};
  }

  // name, 0 or nothing, then any number of .attribute and [key].
  Value lookup(std::string_view path) {
    const std::size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = argument(path.substr(0, end));
    std::size_t at = end;
    while (at < path.size()) {
      const bool is_key = path[at] == '[';
      const std::size_t stop = std::min(is_key ? path.find(']', at) : path.find_first_of(".[", at + 1), path.size());
      const std::string_view part = path.substr(at + 1, stop - at - 1);
      if (part.empty() || (is_key && stop == path.size())) throw RenderError{"a format field is not well formed"};
      value = is_key ? get_item(value, key_of(part)) : get_attribute(value, std::string(part));
      at = is_key ? stop + 1 : stop;
      if (is_key && at < path.size() && path[at] != '.' && path[at] != '[')
        throw RenderError{"Only '.' or '[' may follow ']' in format field specifier"};
    }
    return value;
  }

  static bool is_number(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  }

  static Value key_of(std::string_view part) {
    return is_number(part) ? Value::integer(FormatReader{part}.number()) : Value::string(part);
  }

  Value argument(std::string_view name) {
    const bool is_counted = name.empty(), is_numbered = is_number(name);
    counts_ = counts_ || is_counted;
    numbers_ = numbers_ || is_numbered;
    if (counts_ && numbers_) throw RenderError{"cannot mix {} and {0} in one format string"};
    if (is_counted || is_numbered) {
      const std::size_t index = is_counted ? next_++ : FormatReader{name}.number();
      if (index < arguments_.positional.size()) return arguments_.positional[index];
      throw RenderError{fmt::format("the format string needs argument {}, which is not given", index)};
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    throw RenderError{fmt::format("the format string names \"{}\", which is not given", name)};
  }

  const Text& text_;
  std::string_view format_;
  const Arguments& arguments_;
  Text out_;
  std::size_t next_ = 0;
  bool counts_ = false, numbers_ = false;
};

}  // namespace

Value percent_format(const Text& text, const Value& values) {
  const std::string_view format = text.bytes();
  PercentValues given(values);
  Text out;
  for (FormatReader reader{format}; !reader.is_at_end();) {
    const std::size_t percent = std::min(format.find('%', reader.at), format.size());
    out.append(text, reader.at, percent);
    if (percent == format.size()) break;
    reader.at = percent + 1;
    if (reader.accept('%')) {
      out.append("%", kTemplate);
      continue;
    }
    Directive directive = parse_directive(reader);
    out.append(written(directive.name ? given.named(*directive.name) : given.next(), directive));
  }
  given.finish();
  return out;
}

Value brace_format(const Text& text, const Arguments& arguments) { return BraceFormat(text, arguments).run(); }

}  // namespace lora_train::tokenizer::jinja
