// Filters on texts and numbers.
#include <charconv>
#include <cmath>

#include "builtins.h"
#include "format_spec.h"
#include "json.h"
#include "lora_train/base/text.h"
#include "strings.h"

namespace lora_train::tokenizer::jinja {
namespace {

Value tojson_filter(const Value& input, const Arguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = flag(arguments, 0, "ensure_ascii");
  style.sort_keys = flag(arguments, 3, "sort_keys");
  if (const Value* indent = arguments.get(1, "indent"); indent != nullptr && !indent->is_none()) {
    const std::int64_t width = indent->is_whole() ? std::max<std::int64_t>(indent->whole(), 0) : 0;
    if (width > 256) throw RenderError{"tojson: an indent beyond 256 is not supported", true};
    style.indent =
        indent->as_text() != nullptr ? indent->as_text()->bytes() : std::string(static_cast<std::size_t>(width), ' ');
    style.item_separator = ",";
  }
  if (const Value* separators = arguments.get(2, "separators"); separators != nullptr && !separators->is_none()) {
    const List pair = iterate(*separators);
    if (pair.size() != 2 || pair[0].as_text() == nullptr || pair[1].as_text() == nullptr)
      throw RenderError{"tojson: separators must be two strings"};
    style.item_separator = pair[0].as_text()->bytes();
    style.key_separator = pair[1].as_text()->bytes();
  }
  return to_json(input, style);
}

Value default_filter(const Value& input, const Arguments& arguments) {
  const bool replace_it = input.is_undefined() || (flag(arguments, 1, "boolean") && !input.truth());
  if (!replace_it) return input;
  const Value* fallback = arguments.get(0, "default_value");
  return fallback != nullptr ? *fallback : Value(Text());
}

Value trim_filter(const Value& input, const Arguments& arguments) {
  const Value* chars = arguments.get(0, "chars");
  if (chars == nullptr || chars->is_none()) return strip(input.str(), std::nullopt, true, true);
  if (chars->as_text() == nullptr) throw RenderError{"strip arg must be None or str"};
  return strip(input.str(), chars->as_text()->bytes(), true, true);
}

template <Case kCase>
Value case_filter(const Value& input, const Arguments&) {
  return change_case(input.str(), kCase);
}

// Of a text as Python's int() and float() read it: no white space around, no underscores between digits.
std::string number_text(const Text& text) {
  std::string out = strip(text, std::nullopt, true, true).bytes();
  for (std::size_t i = 1; i + 1 < out.size(); ++i) {
    const auto is_digit = [&](std::size_t at) { return out[at] >= '0' && out[at] <= '9'; };
    if (out[i] == '_' && is_digit(i - 1) && is_digit(i + 1)) out.erase(i, 1);
  }
  if (out.size() > 1 && out[0] == '+' && out[1] != '-') out.erase(0, 1);
  return out;
}

std::optional<double> parse_float(const Text& text) {
  const std::string digits = number_text(text);
  double value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (parsed.ptr != digits.data() + digits.size() || digits.empty() || digits.find('(') != std::string::npos)
    return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range)
    throw RenderError{"the number " + digits.substr(0, 40) + " is not supported", true};
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

Value truncated(double value) {
  if (std::isinf(value)) throw RenderError{"cannot convert float infinity to integer"};
  if (std::fabs(value) >= 9.2e18) throw RenderError{"an integer grew beyond 64 bits", true};
  return static_cast<std::int64_t>(value);
}

Value to_integer(const Value& input, const Arguments& arguments) {
  if (integer_argument(arguments, 1, "base", 10) != 10) throw RenderError{"int with a base is not supported", true};
  if (input.is_whole()) return input.whole();
  if (input.as_double() != nullptr && !std::isnan(*input.as_double())) return truncated(*input.as_double());
  if (input.as_text() != nullptr) {
    const std::string digits = number_text(*input.as_text());
    std::int64_t value = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (parsed.ptr == digits.data() + digits.size() && parsed.ec == std::errc::result_out_of_range)
      throw RenderError{"an integer grew beyond 64 bits", true};
    if (parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size()) return value;
    const auto real = parse_float(*input.as_text());
    if (real && std::isfinite(*real)) return truncated(*real);
  }
  const Value* fallback = arguments.get(0, "default");
  return fallback != nullptr ? *fallback : Value(std::int64_t{0});
}

Value to_float(const Value& input, const Arguments& arguments) {
  if (input.is_number()) return input.number();
  if (input.as_text() != nullptr) {
    if (const auto value = parse_float(*input.as_text())) return *value;
  }
  const Value* fallback = arguments.get(0, "default");
  return fallback != nullptr ? *fallback : Value(0.0);
}

Value abs_filter(const Value& input, const Arguments&) {
  if (!input.is_number()) throw RenderError{"bad operand type for abs(): '" + input.type_name() + "'"};
  if (!input.is_whole()) return std::fabs(input.number());
  if (input.whole() == INT64_MIN) throw RenderError{"an integer grew beyond 64 bits", true};
  return input.whole() < 0 ? -input.whole() : input.whole();
}

Value round_filter(const Value& input, const Arguments& arguments) {
  const std::int64_t precision = integer_argument(arguments, 0, "precision", 0);
  const Value* given = arguments.get(1, "method");
  const std::string method = given == nullptr ? "common" : given->str().bytes();
  if (method != "common" && method != "ceil" && method != "floor")
    throw RenderError{"method must be common, ceil or floor"};
  if (!input.is_number()) throw RenderError{"type " + input.type_name() + " cannot be rounded"};
  if (precision < 0 || precision > 15) throw RenderError{"round with a precision outside 0..15 is not supported", true};
  if (method == "common") {
    if (input.is_whole() || !std::isfinite(input.number())) return input.is_whole() ? Value(input.whole()) : input;
    return std::strtod(string_printf("%.*f", static_cast<int>(precision), input.number()).c_str(), nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = input.number() * scale;
  if (!std::isfinite(scaled)) throw RenderError{"cannot convert float to integer"};
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

Value indent_filter(const Value& input, const Arguments& arguments) {
  const Value* width = arguments.get(0, "width");
  if (input.as_text() == nullptr) throw RenderError{"indent needs a string"};
  if (width != nullptr && width->as_text() == nullptr && !width->is_whole())
    throw RenderError{"indent: width must be a number"};
  const std::int64_t spaces = width == nullptr || !width->is_whole() ? 4 : std::max<std::int64_t>(width->whole(), 0);
  if (spaces > 256) throw RenderError{"an indent beyond 256 is not supported", true};
  const std::string margin = width != nullptr && width->as_text() != nullptr
                                 ? width->as_text()->bytes()
                                 : std::string(static_cast<std::size_t>(spaces), ' ');
  Text with_end = *input.as_text();
  with_end.append("\n", kTemplate);
  Text out;
  bool is_first = true;
  for (const Value& line : split_lines(with_end, false)) {
    if (!is_first) out.append("\n", kTemplate);
    const bool wanted =
        is_first ? flag(arguments, 1, "first") : !line.as_text()->empty() || flag(arguments, 2, "blank");
    if (wanted) out.append(margin, kTemplate);
    out.append(*line.as_text());
    is_first = false;
  }
  return out;
}

Value replace_filter(const Value& input, const Arguments& arguments) {
  return replace(input.str(), required(arguments, 0, "old").str().bytes(), required(arguments, 1, "new").str(),
                 integer_argument(arguments, 2, "count", -1));
}

// The filter format: named arguments make a mapping, others a tuple; % decides.
Value format_filter(const Value& input, const Arguments& arguments) {
  if (arguments.named.empty()) return percent_format(input.str(), Value(arguments.positional, ListKind::kTuple));
  if (!arguments.positional.empty())
    throw RenderError{"can't handle positional and keyword arguments at the same time"};
  Dict named;
  for (const auto& [name, value] : arguments.named) named.set(name, value);
  return percent_format(input.str(), named);
}

}  // namespace

const FilterTable& scalar_filters() {
  static const FilterTable table = {
      {"tojson", {tojson_filter, {"ensure_ascii", "indent", "separators", "sort_keys"}}},
      {"default", {default_filter, {"default_value", "boolean"}}},
      {"d", {default_filter, {"default_value", "boolean"}}},
      {"trim", {trim_filter, {"chars"}}},
      {"upper", {case_filter<Case::kUpper>}},
      {"lower", {case_filter<Case::kLower>}},
      {"title", {case_filter<Case::kWordBegins>}},
      {"capitalize", {case_filter<Case::kCapitalize>}},
      {"int", {to_integer, {"default", "base"}}},
      {"float", {to_float, {"default"}}},
      {"abs", {abs_filter}},
      {"round", {round_filter, {"precision", "method"}}},
      {"indent", {indent_filter, {"width", "first", "blank"}}},
      {"replace", {replace_filter, {"old", "new", "count"}}},
      {"format", {format_filter, {"*"}}},
      {"string", {[](const Value& v, const Arguments&) { return Value(v.str()); }}},
      {"safe", {[](const Value& v, const Arguments&) { return Value(v.str()); }}},
  };
  return table;
}

}  // namespace lora_train::tokenizer::jinja
