#include "evaluator.h"

#include <unordered_map>

#include "builtins.h"
#include "lora_train/base/error.h"

namespace lora_train::tokenizer::jinja {
namespace {

constexpr int kMaxSteps = 1000000;
constexpr std::size_t kMaxWorkBytes = std::size_t{4} << 30U;
constexpr int kMaxMacroDepth = 32;
constexpr int kMaxDepth = 2000;  // of evaluate() inside itself: about 2 MiB of stack

enum class Flow { kNormal, kBreak, kContinue };

// Names of one scope. A loop body and a macro have their own; if, set blocks and generation do not.
using Frame = std::unordered_map<std::string, Value>;

class Evaluator {
 public:
  explicit Evaluator(const Dict& variables) {
    frames_.emplace_back();
    for (const auto& [key, value] : variables.items) frames_.back()[key] = value;
    frames_.emplace_back();
  }

  void run_block(const Block& block) { execute(block); }
  int line() const { return line_; }
  Rendered take() {
    rendered_.text = std::move(output_);
    return std::move(rendered_);
  }

 private:
  void step(int line) {
    line_ = line;
    if (++steps_ > kMaxSteps) throw RenderError{"the template takes more than 1,000,000 steps", true};
  }

  // What an operation on a value costs, so that a million steps on large texts do not take hours.
  void charge(const Value& value) {
    if (const Text* text = value.as_text()) work_ += text->size();
    if (const List* list = value.as_list()) work_ += sizeof(Value) * list->size();
    if (work_ > kMaxWorkBytes) throw RenderError{"the template moves more than 4 GiB of text and lists", true};
  }

  void write(const Text& text) {
    check_text_size(output_.size() + text.size());
    output_.append(text);
  }

  // Statements.

  Flow execute(const Block& block) {
    for (const Statement& statement : block) {
      const Flow flow = execute(statement);
      if (flow != Flow::kNormal) return flow;
    }
    return Flow::kNormal;
  }

  Flow execute(const Statement& statement) {
    step(statement.line);
    switch (statement.kind) {
      case StatementKind::kText:
        check_text_size(output_.size() + statement.text.size());
        output_.append(statement.text, kTemplate);
        return Flow::kNormal;
      case StatementKind::kPrint:
        write(evaluate(*statement.expr).str());
        return Flow::kNormal;
      case StatementKind::kIf:
        return execute_if(statement);
      case StatementKind::kFor:
        return execute_for(statement);
      case StatementKind::kSet:
        assign(statement, evaluate(*statement.expr));
        return Flow::kNormal;
      case StatementKind::kSetBlock:
        assign(statement, capture(statement.blocks[0]));
        return Flow::kNormal;
      case StatementKind::kMacro:
        define_macro(statement);
        return Flow::kNormal;
      case StatementKind::kGeneration:
        return execute_generation(statement);
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNormal;
  }

  Flow execute_if(const Statement& statement) {
    for (std::size_t i = 0; i < statement.conditions.size(); ++i) {
      if (evaluate(*statement.conditions[i]).truth()) return execute(statement.blocks[i]);
    }
    if (statement.blocks.size() > statement.conditions.size()) return execute(statement.blocks.back());
    return Flow::kNormal;
  }

  Flow execute_for(const Statement& statement) {
    const List items = loop_items(statement);
    if (items.empty()) return statement.blocks.size() > 1 ? execute(statement.blocks[1]) : Flow::kNormal;
    ++loop_depth_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      step(statement.line);
      frames_.emplace_back();
      frames_.back()["loop"] = Loop{&items, i, loop_depth_};
      bind(statement.names, items[i]);
      const Flow flow = execute_turn(statement.blocks[0], items[i]);
      frames_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    --loop_depth_;
    return Flow::kNormal;
  }

  List loop_items(const Statement& statement) {
    const Value iterable = evaluate(*statement.expr);
    line_ = statement.line;
    charge(iterable);
    List items = iterate(iterable);
    if (!statement.filter) return items;
    List kept;
    for (Value& item : items) {
      step(statement.line);
      frames_.emplace_back();
      bind(statement.names, item);
      if (evaluate(*statement.filter).truth()) kept.push_back(std::move(item));
      frames_.pop_back();
    }
    return kept;
  }

  void bind(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) {
      frames_.back()[names[0]] = value;
      return;
    }
    const List parts = iterate(value);
    if (parts.size() != names.size()) {
      throw RenderError{"cannot unpack " + std::to_string(parts.size()) + " values into " +
                        std::to_string(names.size()) + " names"};
    }
    for (std::size_t i = 0; i < names.size(); ++i) frames_.back()[names[i]] = parts[i];
  }

  // One pass of a loop body, noting what it writes when it stands on a message.
  Flow execute_turn(const Block& body, const Value& item) {
    const int message = item.as_dict() != nullptr ? item.as_dict()->message : -1;
    if (message < 0 || captures_ > 0) return execute(body);
    const std::size_t begin = output_.size(), turns_before = rendered_.turns.size();
    const int outer = std::exchange(message_, message);
    const Flow flow = execute(body);
    message_ = outer;
    if (rendered_.turns.size() == turns_before && output_.size() > begin) {
      rendered_.turns.push_back({message, begin, output_.size()});
    }
    return flow;
  }

  Flow execute_generation(const Statement& statement) {
    const std::size_t begin = output_.size();
    const Flow flow = execute(statement.blocks[0]);
    if (captures_ == 0 && output_.size() > begin) rendered_.generations.push_back({message_, begin, output_.size()});
    return flow;
  }

  void assign(const Statement& statement, const Value& value) {
    line_ = statement.line;
    if (statement.attribute.empty()) return bind(statement.names, value);
    Value target = lookup(statement.names[0]);
    Dict* scope = target.as_namespace();
    if (scope == nullptr) throw RenderError{"cannot assign attribute on non-namespace object"};
    if (value.holds_namespace()) throw RenderError{"a namespace inside another is not built", true};
    scope->set(statement.attribute, value);
  }

  // What a block writes, as a value.
  Text capture(const Block& block) {
    Text outer = std::exchange(output_, Text());
    ++captures_;
    execute(block);
    --captures_;
    return std::exchange(output_, std::move(outer));
  }

  void define_macro(const Statement& statement) {
    const std::size_t visible = frames_.size();
    frames_.back()[statement.text] = Callable{statement.text, [this, &statement, visible](const Arguments& arguments) {
                                                return call_macro(statement, visible, arguments);
                                              }};
  }

  Value call_macro(const Statement& macro, std::size_t visible, const Arguments& arguments) {
    if (++macro_depth_ > kMaxMacroDepth) throw RenderError{"macros call each other more than 32 levels deep", true};
    if (arguments.positional.size() > macro.names.size()) {
      throw RenderError{"macro '" + macro.text + "' takes not more than " + std::to_string(macro.names.size()) +
                        " argument(s)"};
    }
    // The macro sees the scopes it was defined in, not its caller's.
    std::vector<Frame> callers;
    while (frames_.size() > visible) {
      callers.push_back(std::move(frames_.back()));
      frames_.pop_back();
    }
    frames_.emplace_back();
    const std::size_t first_default = macro.names.size() - macro.conditions.size();
    for (std::size_t i = 0; i < macro.names.size(); ++i) {
      const Value* given = arguments.get(i, macro.names[i]);
      Value value = given != nullptr     ? *given
                    : i >= first_default ? evaluate(*macro.conditions[i - first_default])
                                         : Value(Undefined{macro.names[i]});
      frames_.back()[macro.names[i]] = std::move(value);
    }
    Text text = capture(macro.blocks[0]);
    frames_.pop_back();
    for (; !callers.empty(); callers.pop_back()) frames_.push_back(std::move(callers.back()));
    --macro_depth_;
    return text;
  }

  // Expressions.

  Value lookup(const std::string& name) const {
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
      if (const auto found = frame->find(name); found != frame->end()) return found->second;
    }
    if (auto global = find_global(name)) return std::move(*global);
    return Undefined{name};
  }

  Value evaluate(const Expr& expr) {
    step(expr.line);
    if (++depth_ > kMaxDepth) throw RenderError{"expressions and macros are nested too deeply", true};
    Value value = evaluate_node(expr);
    --depth_;
    return value;
  }

  Value evaluate_node(const Expr& expr) {
    switch (expr.kind) {
      case ExprKind::kLiteral:
        return expr.value;
      case ExprKind::kName:
        return lookup(expr.text);
      case ExprKind::kNot:
        return !evaluate(*expr.children[0]).truth();
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
      default:
        return evaluate_operands(expr);
    }
  }

  Value child(const Expr& expr, std::size_t index) {
    return expr.children[index] ? evaluate(*expr.children[index]) : Value(None{});
  }

  Value evaluate_operands(const Expr& expr) {
    if (expr.kind == ExprKind::kList) return evaluate_list(expr);
    if (expr.kind == ExprKind::kDict) return evaluate_dict(expr);
    if (expr.kind == ExprKind::kCompare) return evaluate_compare(expr);
    const Value first = child(expr, 0);
    charge(first);
    switch (expr.kind) {
      case ExprKind::kAttribute:
        return at_line(expr, [&] { return get_attribute(first, expr.text); });
      case ExprKind::kSubscript: {
        const Value key = child(expr, 1);
        return at_line(expr, [&] { return get_item(first, key); });
      }
      case ExprKind::kSlice: {
        const Value start = child(expr, 1), stop = child(expr, 2), by = child(expr, 3);
        return at_line(expr, [&] { return get_slice(first, start, stop, by); });
      }
      case ExprKind::kBinary: {
        const Value right = child(expr, 1);
        return at_line(expr, [&] { return binary(expr.text, first, right); });
      }
      case ExprKind::kNegate:
        return at_line(expr, [&] { return binary("*", first, std::int64_t{-1}); });
      case ExprKind::kPlus:
        return first;
      default:
        break;
    }
    const Arguments arguments = evaluate_arguments(expr.arguments);
    return at_line(expr, [&] { return evaluate_call(expr, first, arguments); });
  }

  // The line of an expression, not of its last operand, is what a message should name.
  template <class Function>
  Value at_line(const Expr& expr, Function function) {
    line_ = expr.line;
    Value value = function();
    charge(value);
    return value;
  }

  Value evaluate_call(const Expr& expr, const Value& first, const Arguments& arguments) {
    if (expr.kind == ExprKind::kFilter) return apply_filter(expr.text, first, arguments);
    if (expr.kind == ExprKind::kTest) return apply_test(expr.text, first, arguments);
    if (const Callable* callable = first.as_callable()) return callable->call(arguments);
    if (first.is_undefined())
      throw RenderError{"'" + std::get<Undefined>(first.data).name + "' is undefined or not built"};
    throw RenderError{"'" + first.type_name() + "' object is not callable"};
  }

  Arguments evaluate_arguments(const CallArguments& written) {
    Arguments arguments;
    for (const ExprPtr& expr : written.positional) arguments.positional.push_back(evaluate(*expr));
    for (const auto& [name, expr] : written.named) arguments.named.emplace_back(name, evaluate(*expr));
    return arguments;
  }

  Value evaluate_list(const Expr& expr) {
    List list;
    for (const ExprPtr& item : expr.children) list.push_back(evaluate(*item));
    return expr.text.empty() ? Value(std::move(list)) : Value::tuple(std::move(list));
  }

  Value evaluate_dict(const Expr& expr) {
    Dict dict;
    for (std::size_t i = 0; i < expr.children.size(); i += 2) {
      const Value key = evaluate(*expr.children[i]);
      if (key.as_text() == nullptr) throw RenderError{"dictionary keys other than strings are not built", true};
      dict.set(key.as_text()->bytes(), evaluate(*expr.children[i + 1]));
    }
    return dict;
  }

  Value evaluate_compare(const Expr& expr) {
    Value left = evaluate(*expr.children[0]);
    for (std::size_t i = 0; i < expr.names.size(); ++i) {
      Value right = evaluate(*expr.children[i + 1]);
      line_ = expr.line;
      charge(right);
      if (!holds(expr.names[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  static bool holds(const std::string& op, const Value& left, const Value& right) {
    if (op == "==") return equal(left, right);
    if (op == "!=") return !equal(left, right);
    if (op == "in") return contains(right, left);
    if (op == "not in") return !contains(right, left);
    const int order = compare(left, right);
    if (op == "<") return order < 0;
    if (op == "<=") return order <= 0;
    return op == ">" ? order > 0 : order >= 0;
  }

  std::vector<Frame> frames_;
  Text output_;
  Rendered rendered_;
  int line_ = 1, steps_ = 0, loop_depth_ = 0, captures_ = 0, macro_depth_ = 0, depth_ = 0;
  std::size_t work_ = 0;
  int message_ = -1;  // the message a loop stands on
};

}  // namespace

Rendered run(const ParsedTemplate& parsed, const Dict& variables, const std::string& name) {
  Evaluator evaluator(variables);
  try {
    evaluator.run_block(parsed.body);
  } catch (const RenderError& error) {
    const std::string where = name + ":" + std::to_string(evaluator.line());
    if (error.is_format) throw FormatError(where, "chat template: " + error.message);
    throw DataError(where, "the chat template refuses this chat: " + error.message);
  }
  return evaluator.take();
}

}  // namespace lora_train::tokenizer::jinja
