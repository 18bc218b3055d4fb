// Filters, tests, methods and global functions of the template language, and the operations on values that they share
// with its operators.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lora_train/base/utf8.h"
#include "value.h"

namespace lora_train::tokenizer::jinja {

struct Parameter {
  std::string name;
  std::optional<Value> fallback;  ///< none: the argument is required
};

/// The arguments of a builtin, by the position of its parameters.
struct Call {
  const std::string& who;  ///< for messages
  const Arguments& given;
  const std::vector<Parameter>& parameters;

  /// The argument or its default. RenderError if it is missing.
  const Value& operator[](std::size_t index) const;
  bool flag(std::size_t index) const { return (*this)[index].truth(); }
  /// A whole number; none stands for the default. RenderError for another type.
  std::int64_t integer(std::size_t index) const;
  /// A string, empty for none. RenderError for another type.
  std::optional<std::string> text(std::size_t index) const;
  /// RenderError for none.
  std::string required_text(std::size_t index) const;
};

struct Builtin {
  const char* names;       ///< separated by spaces
  const char* parameters;  ///< as Python writes them: "value, width=4"; "*" accepts anything
  std::function<Value(const Value& subject, const Call& call)> function;
};

class Builtins {
 public:
  Builtins(std::initializer_list<Builtin> builtins);
  bool contains(const std::string& name) const { return entries_.contains(name); }
  /// RenderError for arguments that are not in the parameters: no argument is ignored.
  Value call(const std::string& name, const std::string& who, const Value& subject, const Arguments& arguments) const;

 private:
  struct Entry {
    std::vector<Parameter> parameters;
    bool takes_anything;
    std::function<Value(const Value&, const Call&)> function;
  };
  std::unordered_map<std::string, Entry> entries_;
};

bool is_filter(const std::string& name);
bool is_test(const std::string& name);

/// `name` must be a filter (a test). RenderError for unsuitable arguments.
Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& input, const Arguments& arguments);

/// A bound method of a string, list, dictionary or loop; empty if there is none of that name.
std::optional<Value> find_method(const Value& object, const std::string& name);
/// range, namespace, dict, raise_exception, strftime_now; empty for other names.
std::optional<Value> find_global(const std::string& name);

/// object.name and object[key], looked up as in Jinja. Undefined if not found.
Value get_attribute(const Value& object, const std::string& name);
Value get_item(const Value& object, const Value& key);
/// object[start:stop:step]; none for an omitted part.
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step);

/// The elements that a loop iterates over: list items, keys, characters. Empty for an undefined value. Leaves a
/// generator empty.
List iterate(const Value& value);
bool contains(const Value& container, const Value& item);
/// < 0, 0, > 0. RenderError for values without an order.
int compare(const Value& a, const Value& b);
Value binary(const std::string& op, const Value& left, const Value& right);
Value signed_number(const Value& value, bool negate);

/// Byte position of each character of a text, and the size at the end.
std::vector<std::size_t> char_positions(const std::string& text);

// Strings: functions that track where bytes come from. Characters are Unicode code points.

/// kTitle: Python's str.title(). kWordBegins: Jinja's filter title.
enum class Case { kUpper, kLower, kTitle, kCapitalize, kWordBegins };

/// Python's str.isspace().
bool is_space(std::uint32_t code);
/// Strips white space, or the characters of `chars`.
Text strip(const Text& text, const std::optional<std::string>& chars, bool left, bool right);
/// At most `limit` cuts (< 0: no limit), optionally counted from the right.
List split_by(const Text& text, const std::string& separator, std::int64_t limit, bool from_right);
List split_by_space(const Text& text, std::int64_t limit, bool from_right);
List split_lines(const Text& text, bool keep_ends);
Text change_case(const Text& text, Case to);
/// At most `limit` replacements (< 0: no limit).
Text replace(const Text& text, const std::string& old, const Text& with, std::int64_t limit);
Text join_texts(const List& items, const Text& separator);
std::size_t count_of(const std::string& text, const std::string& needle);
/// Charges for a search, whose time may be the product of both sizes.
void spend_search(std::size_t text_size, std::size_t needle_size);

/// text % values.
Value percent_format(const Text& text, const Value& values);
/// text.format(...).
Value brace_format(const Text& text, const Arguments& arguments);

}  // namespace lora_train::tokenizer::jinja
