// What expressions give.
#include "builtins.h"
#include "interpreter.h"

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
  if (value.is_undefined()) throw RenderError{"'" + std::get<Undefined>(value.data).name + "' is undefined"};
  if (value.as_dict() == nullptr || value.as_namespace() != nullptr)
    throw RenderError{"argument after ** must be a mapping, not " + value.type_name()};
  for (const auto& [name, item] : value.as_dict()->items) {
    for (const auto& given : arguments.named) {
      if (given.first == name) throw RenderError{"got multiple values for keyword argument '" + name + "'"};
    }
    arguments.named.emplace_back(name, item);
  }
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

// The line of an expression, not of its last operand, is what a message should name.
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
    if (!loop->recurse) throw RenderError{"a loop needs the word recursive to be called"};
    if (arguments.positional.size() != 1 || !arguments.named.empty()) throw RenderError{"loop() takes one argument"};
    return loop->recurse(arguments.positional[0]);
  }
  if (first.is_undefined()) {
    throw RenderError{"'" + std::get<Undefined>(first.data).name + "' is undefined, so it cannot be called"};
  }
  throw RenderError{"'" + first.type_name() + "' object is not callable"};
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

}  // namespace lora_train::tokenizer::jinja
