// text % values and text.format(...).
#include <algorithm>

#include "builtins.h"
#include "format_spec.h"

namespace lora_train::tokenizer::jinja {
namespace {

// The values that the directives of a "%" format take one after another, or by name.
class PercentValues {
 public:
  explicit PercentValues(const Value& values) : all_(values) {
    const bool is_tuple = values.as_list() != nullptr && values.list_kind() == ListKind::kTuple;
    rest_ = is_tuple ? *values.as_list() : List{values};
    // As Python, which lets what has a subscript be left over.
    may_remain_ = !is_tuple && (values.as_dict() != nullptr || values.is_indexable() || values.is_undefined());
  }

  const Value& next() {
    if (at_ == rest_.size()) throw RenderError{"not enough arguments for format string"};
    return rest_[at_++];
  }

  Value named(const std::string& name) {
    if (all_.as_dict() == nullptr || all_.as_namespace() != nullptr) throw RenderError{"format requires a mapping"};
    const Value* found = all_.as_dict()->find(name);
    if (found == nullptr) throw RenderError{"the format names \"" + name + "\", which the mapping lacks"};
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

Directive parse_directive(std::string_view format, std::size_t& at) {
  Directive parsed;
  const auto accept = [&](char c) { return at < format.size() && format[at] == c ? (++at, true) : false; };
  if (accept('(')) {
    const std::size_t end = format.find(')', at);
    if (end == std::string_view::npos) throw RenderError{"incomplete format key"};
    parsed.name = std::string(format.substr(at, end - at));
    if (parsed.name->find('(') != std::string::npos)
      throw RenderError{"parentheses inside a % format's name are not supported", true};
    at = end + 1;
  }
  for (bool again = true; again;) {
    again = true;
    if (accept('-'))
      parsed.is_left = true;
    else if (accept('0'))
      parsed.is_zero = true;
    else if (accept('+'))
      parsed.spec.sign = '+';
    else if (accept(' '))
      parsed.spec.sign = parsed.spec.sign == '+' ? '+' : ' ';
    else if (accept('#'))
      parsed.spec.alternate = true;
    else
      again = false;
  }
  if (at < format.size() && format[at] == '*') throw RenderError{"a * in a % format is not supported", true};
  parsed.spec.width = take_number(format, at);
  if (accept('.')) {
    const std::size_t precision = take_number(format, at);
    if (precision > 500) throw RenderError{"a format precision beyond 500 is not supported", true};
    parsed.spec.precision = static_cast<int>(precision);
  }
  if (at >= format.size()) throw RenderError{"incomplete format"};
  parsed.spec.type = format[at++];
  return parsed;
}

std::int64_t whole_of(const Value& value, char type) {
  if (value.is_whole()) return value.whole();
  if (value.as_double() == nullptr || type != 'd')
    throw RenderError{std::string("%") + type + " format: a number is required, not " + value.type_name()};
  const double real = *value.as_double();
  if (!(std::abs(real) < 9.2e18)) throw RenderError{"a float beyond 64 bits in %d is not supported", true};
  return static_cast<std::int64_t>(real);
}

Text written(const Value& value, Directive& directive) {
  FormatSpec& spec = directive.spec;
  if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
  const bool is_real = std::string_view("eEfFgG").find(spec.type) != std::string_view::npos;
  const bool is_whole = std::string_view("dxXo").find(spec.type) != std::string_view::npos;
  spec.align = directive.is_left ? '<' : '>';
  if (spec.type == 's') return format_text(value.str(), spec);
  if (spec.type == 'r') {
    if (value.is_undefined()) return format_text(Text("Undefined", kComputed), spec);
    return format_text(value.as_text() == nullptr ? value.str() : Text(value.repr(), kComputed), spec);
  }
  if (spec.type == '%') throw RenderError{"unsupported format character '%' after flags, a width or a name"};
  if (!is_real && !is_whole) throw RenderError{std::string("the format %") + spec.type + " is not supported", true};
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
  // Of the field whose text begins at `begin`; returns where the text goes on.
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

  // name, 0 or nothing, then .attribute and [key] as often as they come.
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
    std::size_t at = 0;
    return is_number(part) ? Value::integer(take_number(part, at)) : Value::string(part);
  }

  Value argument(std::string_view name) {
    const bool is_counted = name.empty(), is_numbered = is_number(name);
    counts_ = counts_ || is_counted;
    numbers_ = numbers_ || is_numbered;
    if (counts_ && numbers_) throw RenderError{"cannot mix {} and {0} in one format string"};
    if (is_counted || is_numbered) {
      std::size_t at = 0;
      const std::size_t index = is_counted ? next_++ : take_number(name, at);
      if (index < arguments_.positional.size()) return arguments_.positional[index];
      throw RenderError{"the format string needs argument " + std::to_string(index) + ", which is not given"};
    }
    for (const auto& [key, value] : arguments_.named) {
      if (key == name) return value;
    }
    throw RenderError{"the format string names \"" + std::string(name) + "\", which is not given"};
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
  for (std::size_t at = 0; at < format.size();) {
    const std::size_t percent = std::min(format.find('%', at), format.size());
    out.append(text, at, percent);
    if (percent == format.size()) break;
    at = percent + 1;
    if (at < format.size() && format[at] == '%') {
      out.append("%", kTemplate);
      ++at;
      continue;
    }
    Directive directive = parse_directive(format, at);
    out.append(written(directive.name ? given.named(*directive.name) : given.next(), directive));
  }
  given.finish();
  return out;
}

Value brace_format(const Text& text, const Arguments& arguments) { return BraceFormat(text, arguments).run(); }

}  // namespace lora_train::tokenizer::jinja
