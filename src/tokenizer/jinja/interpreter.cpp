// Runs a template.
#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "jinja.h"
#include "lora_train/base/error.h"

namespace lora_train::tokenizer::jinja {
namespace {

constexpr int kMaxMacroDepth = 32;
constexpr int kMaxDepth = 1000;  // about 2 MiB of stack

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
  value.check_defined();
  if (value.as_mapping() == nullptr) throw RenderError{"argument after ** must be a mapping, not " + value.type_name()};
  for (const auto& [name, item] : value.as_dict()->items) {
    for (const auto& given : arguments.named) {
      if (given.first == name) throw RenderError{fmt::format("got multiple values for keyword argument '{}'", name)};
    }
    arguments.named.emplace_back(name, item);
  }
}

/// The state of a running template: scopes, output, and current position.
class Interpreter {
 public:
  explicit Interpreter(const Dict& variables) {
    frames_.emplace_back();
    for (const auto& [key, value] : variables.items) frames_.back()[key] = value;
    frames_.emplace_back();
  }

  void run(const Block& body) { execute(body); }
  /// Line of the current statement or expression.
  int line() const { return line_; }

  Rendered take() {
    rendered_.text = std::move(output_);
    return std::move(rendered_);
  }

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  // Names of one scope. Loop bodies, macros and capturing blocks have their own; if does not.
  using Frame = std::unordered_map<std::string, Value>;

  // Recursion of the interpreter, whatever the template nests.
  class Nested {
   public:
    explicit Nested(int& depth) : depth_(depth) {
      if (++depth > kMaxDepth)
        throw RenderError{"statements, expressions and macros are nested too deeply", true, true};
    }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    int& depth_;
  };

  Flow execute(const Block& block) {
    for (const Statement& statement : block) {
      const Flow flow = execute(statement);
      if (flow != Flow::kNormal) return flow;
    }
    return Flow::kNormal;
  }

  Flow execute(const Statement& statement) {
    const Nested nested(depth_);
    line_ = statement.line;
    spend_step();
    switch (statement.kind) {
      case StatementKind::kText: output_.append(statement.text, kTemplate); return Flow::kNormal;
      case StatementKind::kPrint: {
        const Value value = evaluate(*statement.expr);
        line_ = statement.line;
        output_.append(value.str());
        return Flow::kNormal;
      }
      case StatementKind::kIf: return execute_if(statement);
      case StatementKind::kFor: return execute_for(statement, evaluate(*statement.expr), 1);
      case StatementKind::kSet: assign(statement, evaluate(*statement.expr)); return Flow::kNormal;
      case StatementKind::kSetBlock: assign(statement, filtered(statement)); return Flow::kNormal;
      case StatementKind::kFilterBlock: output_.append(filtered(statement).str()); return Flow::kNormal;
      case StatementKind::kWith: return execute_with(statement);
      case StatementKind::kMacro: frames_.back()[statement.text] = make_macro(statement); return Flow::kNormal;
      case StatementKind::kCallBlock: execute_call_block(statement); return Flow::kNormal;
      case StatementKind::kGeneration: return execute_generation(statement);
      case StatementKind::kBreak: return Flow::kBreak;
      case StatementKind::kContinue: return Flow::kContinue;
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

  Flow execute_for(const Statement& statement, const Value& iterable, int depth) {
    const std::size_t visible = frames_.size();
    const auto loop = std::make_shared<Loop>();
    loop->items = loop_items(statement, iterable);
    loop->depth = depth;
    if (statement.is_recursive) {
      loop->recurse = [this, &statement, visible, depth](const Value& items) {
        return in_scopes(visible, [&] { return capture([&] { execute_for(statement, items, depth + 1); }); });
      };
    }
    const Value loop_value(loop);
    Flow flow = Flow::kNormal;
    bool completed = false;  // some pass; otherwise else runs, even if each pass met a continue or break, as in Jinja
    for (std::size_t i = 0; i < loop->items.size() && flow != Flow::kBreak; ++i) {
      line_ = statement.line;
      spend_step();
      loop->index0 = i;
      frames_.emplace_back();
      frames_.back()["loop"] = loop_value;
      bind(statement.targets[0], loop->items[i]);
      flow = execute_turn(statement.blocks[0], loop->items[i]);
      frames_.pop_back();
      completed = completed || flow == Flow::kNormal;
    }
    loop->recurse = nullptr;
    return !completed && statement.blocks.size() > 1 ? execute_scoped(statement.blocks[1]) : Flow::kNormal;
  }

  List loop_items(const Statement& statement, const Value& iterable) {
    line_ = statement.line;
    List items = iterate(iterable);
    if (!statement.filter) return items;
    List kept;
    for (Value& item : items) {
      spend_step();
      frames_.emplace_back();
      bind(statement.targets[0], item);
      if (evaluate(*statement.filter).truth()) kept.push_back(std::move(item));
      frames_.pop_back();
    }
    return kept;
  }

  void bind(const Target& target, const Value& value) {
    if (!target.name.empty()) {
      frames_.back()[target.name] = value;
      return;
    }
    const List parts = iterate(value);
    if (parts.size() != target.parts.size()) {
      throw RenderError{fmt::format("cannot unpack {} values into {} names", parts.size(), target.parts.size())};
    }
    for (std::size_t i = 0; i < parts.size(); ++i) bind(target.parts[i], parts[i]);
  }

  // One pass of a loop body; notes what it writes if it is on a message.
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

  Flow execute_scoped(const Block& block) {
    frames_.emplace_back();
    const Flow flow = execute(block);
    frames_.pop_back();
    return flow;
  }

  Flow execute_with(const Statement& statement) {
    List values;
    for (const ExprPtr& value : statement.conditions) values.push_back(evaluate(*value));
    frames_.emplace_back();
    for (std::size_t i = 0; i < values.size(); ++i) bind(statement.targets[i], values[i]);
    const Flow flow = execute(statement.blocks[0]);
    frames_.pop_back();
    return flow;
  }

  Flow execute_generation(const Statement& statement) {
    const std::size_t begin = output_.size();
    const Flow flow = execute_scoped(statement.blocks[0]);
    if (captures_ == 0 && output_.size() > begin) rendered_.generations.push_back({message_, begin, output_.size()});
    return flow;
  }

  void assign(const Statement& statement, const Value& value) {
    line_ = statement.line;
    if (statement.attribute.empty()) return bind(statement.targets[0], value);
    Value target = lookup(statement.targets[0].name);
    Dict* scope = target.as_namespace();
    if (scope == nullptr) throw RenderError{"cannot assign attribute on non-namespace object"};
    scope->set(statement.attribute, value);
  }

  // What `write` outputs.
  template <class Function>
  Value capture(Function write) {
    Text outer = std::exchange(output_, Text());
    ++captures_;
    write();
    --captures_;
    return std::exchange(output_, std::move(outer));
  }

  // The output of the statement's block, after the statement's filters.
  Value filtered(const Statement& statement) {
    captured_ = capture([&] { execute_scoped(statement.blocks[0]); });
    return statement.expr ? evaluate(*statement.expr) : captured_;
  }

  // Runs `body` in the scopes [0, visible), since a function sees the scopes it was defined in, not its caller's.
  template <class Function>
  Value in_scopes(std::size_t visible, Function body) {
    if (++macro_depth_ > kMaxMacroDepth) {
      throw RenderError{"macros and recursive loops call each other more than 32 levels deep", true, true};
    }
    std::vector<Frame> callers;
    while (frames_.size() > visible) {
      callers.push_back(std::move(frames_.back()));
      frames_.pop_back();
    }
    Value value = body();
    for (; !callers.empty(); callers.pop_back()) frames_.push_back(std::move(callers.back()));
    --macro_depth_;
    return value;
  }

  Callable make_macro(const Statement& macro) {
    const auto call = [this, &macro, visible = frames_.size()](const Arguments& arguments) {
      return in_scopes(visible, [&] {
        frames_.emplace_back();
        bind_parameters(macro, arguments);
        Value text = capture([&] { execute_scoped(macro.blocks[0]); });
        frames_.pop_back();
        return text;
      });
    };
    return {macro.text, call};
  }

  void bind_parameters(const Statement& macro, const Arguments& arguments) {
    const Signature& signature = macro.signature;
    const std::string who = macro.text.empty() ? "the call block" : fmt::format("macro '{}'", macro.text);
    const std::size_t count = signature.names.size(), first_default = count - signature.defaults.size();
    if (arguments.positional.size() > count && !signature.uses.varargs) {
      throw RenderError{fmt::format("{} takes not more than {} argument(s)", who, count)};
    }
    Value caller = Undefined{"No caller defined"};
    Dict rest;
    for (const auto& [name, value] : arguments.named) {
      const auto parameter = std::find(signature.names.begin(), signature.names.end(), name);
      const bool is_given = static_cast<std::size_t>(parameter - signature.names.begin()) < arguments.positional.size();
      if (parameter != signature.names.end() && !is_given) continue;
      if (name == "caller" && signature.uses.caller)
        caller = value;
      else if (signature.uses.kwargs && name != "caller")
        rest.set(name, value);
      else
        throw RenderError{fmt::format("{} takes no keyword argument '{}'", who, name)};
    }
    Frame& frame = frames_.back();
    if (signature.uses.caller) frame["caller"] = std::move(caller);
    if (signature.uses.kwargs) frame["kwargs"] = std::move(rest);
    if (signature.uses.varargs) {
      const auto extra =
          arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, arguments.positional.size()));
      frame["varargs"] = Value(List(extra, arguments.positional.end()), ListKind::kTuple);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const Value* given = arguments.get(i, signature.names[i]);
      Value value = given != nullptr     ? *given
                    : i >= first_default ? evaluate(*signature.defaults[i - first_default])
                                         : Value(Undefined{"parameter '" + signature.names[i] + "' was not provided"});
      frames_.back()[signature.names[i]] = std::move(value);
    }
  }

  void execute_call_block(const Statement& statement) {
    const Expr& call = *statement.expr;
    const Value callee = evaluate(*call.children[0]);
    Arguments arguments = evaluate_arguments(call.arguments);
    arguments.named.emplace_back("caller", make_macro(statement));
    line_ = statement.line;
    output_.append(evaluate_call(call, callee, arguments).str());
  }

  Value lookup(const std::string& name) const {
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
      if (const auto found = frame->find(name); found != frame->end()) return found->second;
    }
    if (auto global = find_global(name)) return std::move(*global);
    return Undefined{name};
  }

  Value evaluate(const Expr& expr) {
    const Nested nested(depth_);
    line_ = expr.line;
    spend_step();
    switch (expr.kind) {
      case ExprKind::kLiteral: return expr.value;
      case ExprKind::kName: return lookup(expr.text);
      case ExprKind::kCaptured: return captured_;
      case ExprKind::kAnd:
      case ExprKind::kOr: {
        Value left = evaluate(*expr.children[0]);
        return left.truth() == (expr.kind == ExprKind::kOr) ? left : evaluate(*expr.children[1]);
      }
      case ExprKind::kCondition: {
        if (evaluate(*expr.children[1]).truth()) return evaluate(*expr.children[0]);
        return expr.children[2] ? evaluate(*expr.children[2]) : Value(Undefined{"the value of an if without else"});
      }
      case ExprKind::kCompare: return evaluate_compare(expr);
      default: return evaluate_operands(expr);
    }
  }

  Value evaluate_operands(const Expr& expr) {
    List operands;
    operands.reserve(expr.children.size());
    for (const ExprPtr& child : expr.children) operands.push_back(child ? evaluate(*child) : Value(None{}));
    const Arguments arguments = evaluate_arguments(expr.arguments);
    line_ = expr.line;  // messages should name the line of the expression, not of its last operand
    switch (expr.kind) {
      case ExprKind::kList: return {std::move(operands), expr.text.empty() ? ListKind::kList : ListKind::kTuple};
      case ExprKind::kDict: return dict_of(std::move(operands));
      case ExprKind::kNot: return !operands[0].truth();
      case ExprKind::kAttribute: return get_attribute(operands[0], expr.text);
      case ExprKind::kSubscript: return get_item(operands[0], operands[1]);
      case ExprKind::kSlice: return get_slice(operands[0], operands[1], operands[2], operands[3]);
      case ExprKind::kBinary: return binary(expr.text, operands[0], operands[1]);
      case ExprKind::kNegate:
      case ExprKind::kPlus: return signed_number(operands[0], expr.kind == ExprKind::kNegate);
      default: return evaluate_call(expr, operands[0], arguments);
    }
  }

  Value evaluate_call(const Expr& expr, const Value& first, const Arguments& arguments) {
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

  Arguments evaluate_arguments(const CallArguments& written) {
    Arguments arguments;
    for (const ExprPtr& expr : written.positional) arguments.positional.push_back(evaluate(*expr));
    for (const auto& [name, expr] : written.named) arguments.named.emplace_back(name, evaluate(*expr));
    if (written.unpacked) {
      for (Value& item : iterate(evaluate(*written.unpacked))) arguments.positional.push_back(std::move(item));
    }
    if (written.unpacked_named) unpack_named(evaluate(*written.unpacked_named), arguments);
    return arguments;
  }

  // `items`: key, value, key, value, ...
  static Value dict_of(List items) {
    Dict dict;
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const Text* key = items[i].as_text();
      if (key == nullptr) throw RenderError{"dictionary keys other than strings are not supported", true};
      dict.set(key->bytes(), std::move(items[i + 1]));
    }
    return dict;
  }

  Value evaluate_compare(const Expr& expr) {
    Value left = evaluate(*expr.children[0]);
    for (std::size_t i = 0; i < expr.names.size(); ++i) {
      Value right = evaluate(*expr.children[i + 1]);
      line_ = expr.line;
      if (!holds(expr.names[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  std::vector<Frame> frames_;
  Text output_;
  Rendered rendered_;
  Value captured_;  // the value of ExprKind::kCaptured
  int line_ = 1, captures_ = 0, macro_depth_ = 0, depth_ = 0;
  int message_ = -1;  // the message that a loop is on
};

}  // namespace

Rendered run(const ParsedTemplate& parsed, const Dict& variables, const std::string& name, const Limits& limits) {
  const Budget budget(limits);
  Interpreter interpreter(variables);
  try {
    interpreter.run(parsed.body);
  } catch (const RenderError& error) {
    const std::string where = fmt::format("{}:{}", name, interpreter.line());
    if (error.is_format && !(error.is_limit && limits.blames_chat))
      throw FormatError(where, "chat template: " + error.message);
    throw DataError(where, "the chat template refuses this chat: " + error.message);
  }
  return interpreter.take();
}

}  // namespace lora_train::tokenizer::jinja
