// Evaluates expressions.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "builtins.h"
#include "interpreter.h"
#include "lora_train/base/utf8.h"
#include "strings.h"

namespace lora_train::tokenizer::jinja {
namespace {

bool holds(const std::string& op, const Value& left, const Value& right) {
  if (op == "==") return equal(left, right);
  if (op == "!=") return !equal(left, right);
  if (op == "in") return contains(right, left);
  if (op == "not in") return !contains(right, left);
  const int order = compare(left, right);
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

// **value
void unpack_named(const Value& value, Arguments& arguments) {
  if (value.is_undefined()) throw RenderError{fmt::format("'{}' is undefined", std::get<Undefined>(value.data).name)};
  if (value.as_dict() == nullptr || value.as_namespace() != nullptr)
    throw RenderError{"argument after ** must be a mapping, not " + value.type_name()};
  for (const auto& [name, item] : value.as_dict()->items) {
    for (const auto& given : arguments.named) {
      if (given.first == name) throw RenderError{fmt::format("got multiple values for keyword argument '{}'", name)};
    }
    arguments.named.emplace_back(name, item);
  }
}

[[noreturn]] void no_operator(const std::string& op, const Value& left, const Value& right) {
  if (left.is_undefined() || right.is_undefined()) {
    const Value& missing = left.is_undefined() ? left : right;
    throw RenderError{fmt::format("'{}' is undefined", std::get<Undefined>(missing.data).name)};
  }
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

Value repeat(const Value& value, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (const Text* text = value.as_text()) {
    if (!text->empty() && times > kMaxTextBytes / text->size()) check_text_size(kMaxTextBytes + 1);
    Text out;
    for (std::size_t i = 0; i < times && !text->empty(); ++i) out.append(*text);
    return out;
  }
  const List& list = *value.as_list();
  if (!list.empty() && times > 1000000 / list.size())
    throw RenderError{"a list grew beyond 1,000,000 items", true, true};
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
  if (out.size() > 1000000) throw RenderError{"a list grew beyond 1,000,000 items", true, true};
  return {std::move(out), a.list_kind()};
}

// A list or tuple, the kinds that + and * accept.
bool is_plain_list(const Value& value) { return value.as_list() != nullptr && value.list_kind() <= ListKind::kTuple; }

struct SliceRange {
  std::int64_t start, stop, step;
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
  Text out;
  if (range.step == 1) {
    if (range.start < range.stop) {
      out =
          text.slice(positions[static_cast<std::size_t>(range.start)], positions[static_cast<std::size_t>(range.stop)]);
    }
    return out;
  }
  for (std::int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    out.append(text, positions[static_cast<std::size_t>(i)], positions[static_cast<std::size_t>(i) + 1]);
  }
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
  if (!object.is_undefined()) return Undefined{name};
  throw RenderError{fmt::format("'{}' is undefined", std::get<Undefined>(object.data).name)};
}

}  // namespace

Value Interpreter::lookup(const std::string& name) const {
  for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
    if (const auto found = frame->find(name); found != frame->end()) return found->second;
  }
  if (auto global = find_global(name)) return std::move(*global);
  return Undefined{name};
}

Value Interpreter::evaluate(const Expr& expr) {
  const Nested nested(depth_);
  line_ = expr.line;
  spend_step();
  return evaluate_node(expr);
}

Value Interpreter::evaluate_node(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kLiteral: return expr.value;
    case ExprKind::kName: return lookup(expr.text);
    case ExprKind::kCaptured: return captured_;
    case ExprKind::kNot: return !evaluate(*expr.children[0]).truth();
    case ExprKind::kAnd: {
      Value left = evaluate(*expr.children[0]);
      return left.truth() ? evaluate(*expr.children[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = evaluate(*expr.children[0]);
      return left.truth() ? left : evaluate(*expr.children[1]);
    }
    case ExprKind::kCondition: {
      if (evaluate(*expr.children[1]).truth()) return evaluate(*expr.children[0]);
      return expr.children[2] ? evaluate(*expr.children[2]) : Value(Undefined{"the value of an if without else"});
    }
    case ExprKind::kList: return evaluate_list(expr);
    case ExprKind::kDict: return evaluate_dict(expr);
    case ExprKind::kCompare: return evaluate_compare(expr);
    default: return evaluate_operands(expr);
  }
}

Value Interpreter::child(const Expr& expr, std::size_t index) {
  return expr.children[index] ? evaluate(*expr.children[index]) : Value(None{});
}

// Messages should name the line of the expression, not of its last operand.
Value Interpreter::evaluate_operands(const Expr& expr) {
  const Value first = child(expr, 0);
  switch (expr.kind) {
    case ExprKind::kAttribute: line_ = expr.line; return get_attribute(first, expr.text);
    case ExprKind::kSubscript: {
      const Value key = child(expr, 1);
      line_ = expr.line;
      return get_item(first, key);
    }
    case ExprKind::kSlice: {
      const Value start = child(expr, 1), stop = child(expr, 2), by = child(expr, 3);
      line_ = expr.line;
      return get_slice(first, start, stop, by);
    }
    case ExprKind::kBinary: {
      const Value right = child(expr, 1);
      line_ = expr.line;
      return binary(expr.text, first, right);
    }
    case ExprKind::kNegate:
    case ExprKind::kPlus: line_ = expr.line; return signed_number(first, expr.kind == ExprKind::kNegate);
    default: break;
  }
  const Arguments arguments = evaluate_arguments(expr.arguments);
  line_ = expr.line;
  return evaluate_call(expr, first, arguments);
}

Value Interpreter::evaluate_call(const Expr& expr, const Value& first, const Arguments& arguments) {
  if (expr.kind == ExprKind::kFilter) return apply_filter(expr.text, first, arguments);
  if (expr.kind == ExprKind::kTest) return apply_test(expr.text, first, arguments);
  if (const Callable* callable = first.as_callable()) return callable->call(arguments);
  if (const Loop* loop = first.as_loop()) {
    if (!loop->recurse) throw RenderError{"only a loop marked recursive can be called"};
    if (arguments.positional.size() != 1 || !arguments.named.empty()) throw RenderError{"loop() takes one argument"};
    return loop->recurse(arguments.positional[0]);
  }
  if (first.is_undefined()) {
    throw RenderError{fmt::format("'{}' is undefined, so it cannot be called", std::get<Undefined>(first.data).name)};
  }
  throw RenderError{fmt::format("'{}' object is not callable", first.type_name())};
}

Arguments Interpreter::evaluate_arguments(const CallArguments& written) {
  Arguments arguments;
  for (const ExprPtr& expr : written.positional) arguments.positional.push_back(evaluate(*expr));
  for (const auto& [name, expr] : written.named) arguments.named.emplace_back(name, evaluate(*expr));
  if (written.unpacked) {
    for (Value& item : iterate(evaluate(*written.unpacked))) arguments.positional.push_back(std::move(item));
  }
  if (written.unpacked_named) unpack_named(evaluate(*written.unpacked_named), arguments);
  return arguments;
}

Value Interpreter::evaluate_list(const Expr& expr) {
  List list;
  for (const ExprPtr& item : expr.children) list.push_back(evaluate(*item));
  return {std::move(list), expr.text.empty() ? ListKind::kList : ListKind::kTuple};
}

Value Interpreter::evaluate_dict(const Expr& expr) {
  Dict dict;
  for (std::size_t i = 0; i < expr.children.size(); i += 2) {
    const Value key = evaluate(*expr.children[i]);
    if (key.as_text() == nullptr) throw RenderError{"dictionary keys other than strings are not supported", true};
    dict.set(key.as_text()->bytes(), evaluate(*expr.children[i + 1]));
  }
  return dict;
}

Value Interpreter::evaluate_compare(const Expr& expr) {
  Value left = evaluate(*expr.children[0]);
  for (std::size_t i = 0; i < expr.names.size(); ++i) {
    Value right = evaluate(*expr.children[i + 1]);
    line_ = expr.line;
    if (!holds(expr.names[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

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
  if (!value.is_number()) {
    if (value.is_undefined()) throw RenderError{fmt::format("'{}' is undefined", std::get<Undefined>(value.data).name)};
    throw RenderError{fmt::format("bad operand type for unary {}: '{}'", negate ? "-" : "+", value.type_name())};
  }
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
  if (list == nullptr || !object.is_indexable()) {
    if (object.is_undefined()) no_member(object, "");
    throw RenderError{fmt::format("'{}' object cannot be sliced", object.type_name())};
  }
  const SliceRange range = slice_range(start, stop, step, list->size());
  List out;
  for (std::int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    out.push_back((*list)[static_cast<std::size_t>(i)]);
  }
  return {std::move(out), object.list_kind()};
}

}  // namespace lora_train::tokenizer::jinja
