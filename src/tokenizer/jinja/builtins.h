// Filters, tests, methods and global functions of the template language.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "value.h"

namespace lora_train::tokenizer::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);

/// `name` must be a filter (a test). RenderError when the arguments do not suit.
Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& input, const Arguments& arguments);

/// A bound method of a string, list or dictionary; nothing when there is none of that name.
std::optional<Value> find_method(const Value& object, const std::string& name);
/// range, namespace, dict, raise_exception, strftime_now; nothing for other names.
std::optional<Value> find_global(const std::string& name);

/// object.name and object[key] as Jinja looks them up. Undefined when there is nothing.
Value get_attribute(const Value& object, const std::string& name);
Value get_item(const Value& object, const Value& key);
/// object[start:stop:step]; none for a part left out.
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step);

/// The elements that a loop runs over: list items, keys, characters. Nothing in an undefined value.
List iterate(const Value& value);
bool contains(const Value& container, const Value& item);
/// < 0, 0, > 0. RenderError for values without an order.
int compare(const Value& a, const Value& b);
Value binary(const std::string& op, const Value& left, const Value& right);

/// Characters of a text: byte positions of their begins, and the size at the end.
std::vector<std::size_t> char_positions(const std::string& text);

/// RenderError when a text would pass the limit.
void check_text_size(std::size_t bytes);

}  // namespace lora_train::tokenizer::jinja
