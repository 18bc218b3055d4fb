// Operators, attributes, items and iteration.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "builtins.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {
namespace {

[[noreturn]] void no_operator(const std::string& op, const Value& left, const Value& right) {
  left.check_defined();
  right.check_defined();
  throw RenderError{
      fmt::format("unsupported operand types for {}: '{}' and '{}'", op, left.type_name(), right.type_name())};
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) throw RenderError{"division by zero"};
  if (b == -1) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(a));
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value whole_arithmetic(const std::string& op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  if (op == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (op == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (op == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (op == "//") result = floor_divide(a, b);
  if (op == "%") result = b == -1 ? 0 : a - floor_divide(a, b) * b;
  if (overflow) throw RenderError{"an integer grew beyond 64 bits", true};
  return result;
}

// The remainder has the sign of the divisor, and the quotient fits it, as in CPython.
struct FloatDivision {
  double quotient, remainder;
};
FloatDivision divide_floor(double a, double b) {
  double remainder = std::fmod(a, b), quotient = (a - remainder) / b;
  if (remainder == 0.0) {
    remainder = std::copysign(0.0, b);
  } else if ((b < 0) != (remainder < 0)) {
    remainder += b;
    quotient -= 1.0;
  }
  if (quotient == 0.0) return {std::copysign(0.0, a / b), remainder};
  const double floored = std::floor(quotient);
  return {quotient - floored > 0.5 ? floored + 1.0 : floored, remainder};
}

Value power_of(double a, double b) {
  if (a == 0.0 && b < 0) throw RenderError{"0.0 cannot be raised to a negative power"};
  if (a < 0 && std::floor(b) != b && std::isfinite(a) && std::isfinite(b))
    throw RenderError{"complex numbers are not supported", true};
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) throw RenderError{"numerical result out of range"};
  return power;
}

Value real_arithmetic(const std::string& op, double a, double b) {
  if ((op == "/" || op == "//" || op == "%") && b == 0.0) throw RenderError{"division by zero"};
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "/") return a / b;
  if (op == "//") return divide_floor(a, b).quotient;
  if (op == "%") return divide_floor(a, b).remainder;
  return power_of(a, b);
}

Value arithmetic(const std::string& op, const Value& left, const Value& right) {
  const bool whole = left.is_whole() && right.is_whole();
  if (!whole || op == "/") return real_arithmetic(op, left.number(), right.number());
  if (op != "**") return whole_arithmetic(op, left.whole(), right.whole());
  if (right.whole() < 0) return power_of(left.number(), right.number());
  const double power = std::pow(left.number(), right.number());
  if (std::fabs(power) > 9e15) throw RenderError{"a power grew beyond 2^53", true};
  return static_cast<std::int64_t>(power);
}

constexpr std::size_t kMaxListItems = 1000000;
[[noreturn]] void refuse_long_list() { throw RenderError{"a list grew beyond 1,000,000 items", true, true}; }

Value repeat(const Value& value, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (const Text* text = value.as_text()) {
    if (!text->empty() && times > kMaxTextBytes / text->size()) check_text_size(kMaxTextBytes + 1);
    Text out;
    for (std::size_t i = 0; i < times && !text->empty(); ++i) out.append(*text);
    return out;
  }
  const List& list = *value.as_list();
  if (!list.empty() && times > kMaxListItems / list.size()) refuse_long_list();
  spend_bytes(times * list.size() * sizeof(Value));
  List out;
  for (std::size_t i = 0; i < times && !list.empty(); ++i) out.insert(out.end(), list.begin(), list.end());
  return {std::move(out), value.list_kind()};
}

Value concatenate(const Text& a, const Text& b) {
  Text out = a;
  spend_bytes(a.size());
  out.append(b);
  return out;
}

Value concatenate(const Value& a, const Value& b) {
  List out = *a.as_list();
  spend_bytes((out.size() + b.as_list()->size()) * sizeof(Value));
  out.insert(out.end(), b.as_list()->begin(), b.as_list()->end());
  if (out.size() > kMaxListItems) refuse_long_list();
  return {std::move(out), a.list_kind()};
}

// A list or tuple, the kinds that + and * accept.
bool is_plain_list(const Value& value) { return value.as_list() != nullptr && value.list_kind() <= ListKind::kTuple; }

struct SliceRange {
  std::int64_t start, stop, step;

  template <class Take>
  void for_each(Take take) const {
    for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) take(static_cast<std::size_t>(i));
  }
};

std::int64_t slice_part(const Value& part, std::int64_t fallback, std::int64_t low, std::int64_t high,
                        std::int64_t size) {
  if (part.is_none()) return fallback;
  if (!part.is_whole()) throw RenderError{"slice indices must be integers or None"};
  std::int64_t value = part.whole();
  if (value < 0) value += size;
  return std::clamp(value, low, high);
}

SliceRange slice_range(const Value& start, const Value& stop, const Value& step, std::size_t count) {
  const auto size = static_cast<std::int64_t>(count);
  if (!step.is_none() && !step.is_whole()) throw RenderError{"slice indices must be integers or None"};
  const std::int64_t by = step.is_none() ? 1 : std::clamp<std::int64_t>(step.whole(), -(1LL << 40), 1LL << 40);
  if (by == 0) throw RenderError{"slice step cannot be zero"};
  if (by > 0) return {slice_part(start, 0, 0, size, size), slice_part(stop, size, 0, size, size), by};
  return {slice_part(start, size - 1, -1, size - 1, size), slice_part(stop, -1, -1, size - 1, size), by};
}

Value slice_text(const Text& text, const Value& start, const Value& stop, const Value& step) {
  const auto positions = char_positions(text.bytes());
  const SliceRange range = slice_range(start, stop, step, positions.size() - 1);
  const auto begin = static_cast<std::size_t>(range.start), end = static_cast<std::size_t>(range.stop);
  if (range.step == 1) return begin < end ? text.slice(positions[begin], positions[end]) : Text();
  Text out;
  range.for_each([&](std::size_t i) { out.append(text, positions[i], positions[i + 1]); });
  return out;
}

std::optional<Value> loop_attribute(const Loop& loop, const std::string& name) {
  const std::size_t length = loop.items.size();
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return loop.index0 + 1 == length;
  if (name == "length") return Value::integer(length);
  if (name == "revindex") return Value::integer(length - loop.index0);
  if (name == "revindex0") return Value::integer(length - loop.index0 - 1);
  if (name == "depth") return static_cast<std::int64_t>(loop.depth);
  if (name == "depth0") return static_cast<std::int64_t>(loop.depth - 1);
  if (name == "previtem")
    return loop.index0 > 0 ? loop.items[loop.index0 - 1] : Value(Undefined{"there is no previous item"});
  if (name == "nextitem")
    return loop.index0 + 1 < length ? loop.items[loop.index0 + 1] : Value(Undefined{"there is no next item"});
  return std::nullopt;
}

Value no_member(const Value& object, const std::string& name) {
  object.check_defined();
  return Undefined{name};
}

}  // namespace

std::vector<std::size_t> char_positions(const std::string& text) {
  spend_bytes(8 * text.size());
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_continuation(text[i])) positions.push_back(i);
  }
  positions.push_back(text.size());
  return positions;
}

Value binary(const std::string& op, const Value& left, const Value& right) {
  if (op == "~") return concatenate(left.str(), right.str());
  if (left.is_number() && right.is_number()) return arithmetic(op, left, right);
  if (op == "+" && left.as_text() != nullptr && right.as_text() != nullptr) {
    return concatenate(*left.as_text(), *right.as_text());
  }
  if (op == "+" && is_plain_list(left) && is_plain_list(right) && left.list_kind() == right.list_kind()) {
    return concatenate(left, right);
  }
  const auto repeats = [](const Value& v) { return v.as_text() != nullptr || is_plain_list(v); };
  if (op == "*" && repeats(left) && right.is_whole()) return repeat(left, right.whole());
  if (op == "*" && repeats(right) && left.is_whole()) return repeat(right, left.whole());
  if (op == "%" && left.as_text() != nullptr) return percent_format(*left.as_text(), right);
  no_operator(op, left, right);
}

Value signed_number(const Value& value, bool negate) {
  value.check_defined();
  if (!value.is_number())
    throw RenderError{fmt::format("bad operand type for unary {}: '{}'", negate ? "-" : "+", value.type_name())};
  if (value.as_double() != nullptr) return negate ? -*value.as_double() : *value.as_double();
  return whole_arithmetic("*", value.whole(), negate ? -1 : 1);
}

int compare(const Value& a, const Value& b) {
  spend_bytes(32);
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return a.whole() < b.whole() ? -1 : a.whole() > b.whole() ? 1 : 0;
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  }
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    spend_bytes(std::min(a.as_text()->size(), b.as_text()->size()));
    return a.as_text()->bytes().compare(b.as_text()->bytes());
  }
  if (is_plain_list(a) && is_plain_list(b) && a.list_kind() == b.list_kind()) {
    const List& x = *a.as_list();
    const List& y = *b.as_list();
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i])) return compare(x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  no_operator("comparison", a, b);
}

List iterate(const Value& value) {
  if (const List* list = value.as_list()) {
    if (value.is_generator()) return std::exchange(*std::get<std::shared_ptr<List>>(value.data), List());
    spend_bytes(sizeof(Value) * list->size());
    return *list;
  }
  List out;
  const auto add = [&](Value item) {
    spend_bytes(sizeof(Value));
    out.push_back(std::move(item));
  };
  if (const Dict* dict = value.as_dict(); dict != nullptr && !dict->is_namespace) {
    for (const auto& item : dict->items) add(Value::string(item.first));
    return out;
  }
  if (const Text* text = value.as_text()) {
    const auto positions = char_positions(text->bytes());
    for (std::size_t i = 0; i + 1 < positions.size(); ++i) add(text->slice(positions[i], positions[i + 1]));
    return out;
  }
  if (value.is_undefined()) return out;
  throw RenderError{fmt::format("'{}' object is not iterable", value.type_name())};
}

bool contains(const Value& container, const Value& item) {
  if (const Text* text = container.as_text()) {
    if (item.as_text() == nullptr) {
      throw RenderError{"'in <string>' requires a string as left operand, not " + item.type_name()};
    }
    spend_search(text->size(), item.as_text()->size());
    return text->bytes().find(item.as_text()->bytes()) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict(); dict != nullptr && !dict->is_namespace) {
    return item.as_text() != nullptr && dict->find(item.as_text()->bytes()) != nullptr;
  }
  const List items = iterate(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& other) { return equal(other, item); });
}

Value get_attribute(const Value& object, const std::string& name) {
  if (const Loop* loop = object.as_loop()) {
    if (auto value = loop_attribute(*loop, name)) return std::move(*value);
  }
  const Dict* dict = object.as_dict();
  if (dict != nullptr && dict->is_namespace) {
    const Value* found = dict->find(name);
    return found != nullptr ? *found : Value(Undefined{name});
  }
  if (object.is_group() && (name == "grouper" || name == "list")) return (*object.as_list())[name == "list" ? 1 : 0];
  if (auto method = find_method(object, name)) return std::move(*method);
  if (dict != nullptr) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return no_member(object, name);
}

Value get_item(const Value& object, const Value& key) {
  if (key.is_whole() && (object.is_indexable() || object.as_text() != nullptr)) {
    const std::vector<std::size_t> positions =
        object.as_text() != nullptr ? char_positions(object.as_text()->bytes()) : std::vector<std::size_t>();
    const auto size =
        static_cast<std::int64_t>(object.as_list() != nullptr ? object.as_list()->size() : positions.size() - 1);
    const std::int64_t index = key.whole() < 0 ? key.whole() + size : key.whole();
    if (index < 0 || index >= size)
      return Undefined{fmt::format("{} object has no element {}", object.type_name(), key.whole())};
    const auto at = static_cast<std::size_t>(index);
    if (object.as_list() != nullptr) return (*object.as_list())[at];
    return object.as_text()->slice(positions[at], positions[at + 1]);
  }
  if (key.as_text() == nullptr) return no_member(object, key.str().bytes());
  const std::string& name = key.as_text()->bytes();
  if (const Dict* dict = object.as_dict()) {
    if (const Value* found = dict->find(name)) return *found;
  }
  return get_attribute(object, name);
}

Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (const Text* text = object.as_text()) return slice_text(*text, start, stop, step);
  const List* list = object.as_list();
  object.check_defined();
  if (list == nullptr || !object.is_indexable())
    throw RenderError{fmt::format("'{}' object cannot be sliced", object.type_name())};
  List out;
  slice_range(start, stop, step, list->size()).for_each([&](std::size_t i) { out.push_back((*list)[i]); });
  return {std::move(out), object.list_kind()};
}

}  // namespace lora_train::tokenizer::jinja
