// Executes statements.
#include <algorithm>
#include <utility>

#include "builtins.h"
#include "interpreter.h"
#include "lora_train/base/error.h"

namespace lora_train::tokenizer::jinja {
namespace {

constexpr int kMaxMacroDepth = 32;
constexpr int kMaxDepth = 1000;  // about 2 MiB of stack

}  // namespace

Interpreter::Nested::Nested(int& depth) : depth_(depth) {
  if (++depth > kMaxDepth) throw RenderError{"statements, expressions and macros are nested too deeply", true, true};
}

Interpreter::Interpreter(const Dict& variables) {
  frames_.emplace_back();
  for (const auto& [key, value] : variables.items) frames_.back()[key] = value;
  frames_.emplace_back();
}

Rendered Interpreter::take() {
  rendered_.text = std::move(output_);
  return std::move(rendered_);
}

Interpreter::Flow Interpreter::execute(const Block& block) {
  for (const Statement& statement : block) {
    const Flow flow = execute(statement);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
  const Nested nested(depth_);
  line_ = statement.line;
  spend_step();
  switch (statement.kind) {
    case StatementKind::kText: output_.append(statement.text, kTemplate); return Flow::kNormal;
    case StatementKind::kPrint: {
      const Value value = evaluate(*statement.expr);
      line_ = statement.line;
      write(value.str());
      return Flow::kNormal;
    }
    case StatementKind::kIf: return execute_if(statement);
    case StatementKind::kFor: return execute_for(statement, evaluate(*statement.expr), 1);
    case StatementKind::kSet: assign(statement, evaluate(*statement.expr)); return Flow::kNormal;
    case StatementKind::kSetBlock:
      assign(statement, filtered(statement, capture(statement.blocks[0])));
      return Flow::kNormal;
    case StatementKind::kFilterBlock:
      write(filtered(statement, capture(statement.blocks[0])).str());
      return Flow::kNormal;
    case StatementKind::kWith: return execute_with(statement);
    case StatementKind::kMacro: frames_.back()[statement.text] = make_macro(statement); return Flow::kNormal;
    case StatementKind::kCallBlock: execute_call_block(statement); return Flow::kNormal;
    case StatementKind::kGeneration: return execute_generation(statement);
    case StatementKind::kBreak: return Flow::kBreak;
    case StatementKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement) {
  for (std::size_t i = 0; i < statement.conditions.size(); ++i) {
    if (evaluate(*statement.conditions[i]).truth()) return execute(statement.blocks[i]);
  }
  if (statement.blocks.size() > statement.conditions.size()) return execute(statement.blocks.back());
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement, const Value& iterable, int depth) {
  const std::size_t visible = frames_.size();
  const auto loop = std::make_shared<Loop>();
  loop->items = loop_items(statement, iterable);
  loop->depth = depth;
  if (statement.is_recursive) {
    loop->recurse = [this, &statement, visible, depth](const Value& items) {
      return in_scopes(visible, [&] {
        Text outer = std::exchange(output_, Text());
        ++captures_;
        execute_for(statement, items, depth + 1);
        --captures_;
        return Value(std::exchange(output_, std::move(outer)));
      });
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

List Interpreter::loop_items(const Statement& statement, const Value& iterable) {
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

void Interpreter::bind(const Target& target, const Value& value) {
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
Interpreter::Flow Interpreter::execute_turn(const Block& body, const Value& item) {
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

Interpreter::Flow Interpreter::execute_scoped(const Block& block) {
  frames_.emplace_back();
  const Flow flow = execute(block);
  frames_.pop_back();
  return flow;
}

Interpreter::Flow Interpreter::execute_with(const Statement& statement) {
  List values;
  for (const ExprPtr& value : statement.conditions) values.push_back(evaluate(*value));
  frames_.emplace_back();
  for (std::size_t i = 0; i < values.size(); ++i) bind(statement.targets[i], values[i]);
  const Flow flow = execute(statement.blocks[0]);
  frames_.pop_back();
  return flow;
}

Interpreter::Flow Interpreter::execute_generation(const Statement& statement) {
  const std::size_t begin = output_.size();
  const Flow flow = execute_scoped(statement.blocks[0]);
  if (captures_ == 0 && output_.size() > begin) rendered_.generations.push_back({message_, begin, output_.size()});
  return flow;
}

void Interpreter::assign(const Statement& statement, const Value& value) {
  line_ = statement.line;
  if (statement.attribute.empty()) return bind(statement.targets[0], value);
  Value target = lookup(statement.targets[0].name);
  Dict* scope = target.as_namespace();
  if (scope == nullptr) throw RenderError{"cannot assign attribute on non-namespace object"};
  if (value.holds_mutable()) throw RenderError{"a namespace or loop inside a namespace is not supported", true};
  scope->set(statement.attribute, value);
}

Text Interpreter::capture(const Block& block) {
  Text outer = std::exchange(output_, Text());
  ++captures_;
  execute_scoped(block);
  --captures_;
  return std::exchange(output_, std::move(outer));
}

Value Interpreter::filtered(const Statement& statement, Text captured) {
  if (!statement.expr) return captured;
  captured_ = std::move(captured);
  return evaluate(*statement.expr);
}

template <class Function>
Value Interpreter::in_scopes(std::size_t visible, Function body) {
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

Callable Interpreter::make_macro(const Statement& statement) {
  return {statement.text, [this, &statement, visible = frames_.size()](const Arguments& arguments) {
            return call_macro(statement, visible, arguments);
          }};
}

Value Interpreter::call_macro(const Statement& macro, std::size_t visible, const Arguments& arguments) {
  return in_scopes(visible, [&] {
    frames_.emplace_back();
    bind_parameters(macro, arguments);
    Text text = capture(macro.blocks[0]);
    frames_.pop_back();
    return Value(std::move(text));
  });
}

void Interpreter::bind_parameters(const Statement& macro, const Arguments& arguments) {
  const Signature& signature = macro.signature;
  const std::string who = macro.text.empty() ? "the call block" : fmt::format("macro '{}'", macro.text);
  const std::size_t count = signature.names.size(), first_default = count - signature.defaults.size();
  if (arguments.positional.size() > count && !signature.uses_varargs) {
    throw RenderError{fmt::format("{} takes not more than {} argument(s)", who, count)};
  }
  Value caller = Undefined{"No caller defined"};
  Dict rest;
  for (const auto& [name, value] : arguments.named) {
    const auto parameter = std::find(signature.names.begin(), signature.names.end(), name);
    const bool is_given = static_cast<std::size_t>(parameter - signature.names.begin()) < arguments.positional.size();
    if (parameter != signature.names.end() && !is_given) continue;
    if (name == "caller" && signature.uses_caller)
      caller = value;
    else if (signature.uses_kwargs && name != "caller")
      rest.set(name, value);
    else
      throw RenderError{fmt::format("{} takes no keyword argument '{}'", who, name)};
  }
  Frame& frame = frames_.back();
  if (signature.uses_caller) frame["caller"] = std::move(caller);
  if (signature.uses_kwargs) frame["kwargs"] = std::move(rest);
  if (signature.uses_varargs) {
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

void Interpreter::execute_call_block(const Statement& statement) {
  const Expr& call = *statement.expr;
  const Value callee = evaluate(*call.children[0]);
  Arguments arguments = evaluate_arguments(call.arguments);
  arguments.named.emplace_back("caller", make_macro(statement));
  line_ = statement.line;
  write(evaluate_call(call, callee, arguments).str());
}

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
