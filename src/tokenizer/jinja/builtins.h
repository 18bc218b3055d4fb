// Filters, tests, methods and global functions of the template language.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "value.h"

namespace lora_train::tokenizer::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);

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

/// A function with its parameter names; a "*" among them accepts anything.
template <class Function>
struct Builtin {
  Function function;
  std::vector<std::string_view> parameters = {};
};
/// RenderError for arguments that are not in `parameters`: no argument is ignored.
void check_arguments(const std::string& who, const Arguments& arguments,
                     const std::vector<std::string_view>& parameters);
/// RenderError if the argument is missing.
const Value& required(const Arguments& arguments, std::size_t index, const char* name);
/// False if the argument is missing.
bool flag(const Arguments& arguments, std::size_t index, const char* name);
/// A whole number, or `fallback` if the argument is missing or none. RenderError for another type.
std::int64_t integer_argument(const Arguments& arguments, std::size_t index, const char* name, std::int64_t fallback);

}  // namespace lora_train::tokenizer::jinja
