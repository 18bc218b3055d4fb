// The state of a running template: scopes, output, and current position.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "parser.h"
#include "value.h"

namespace lora_train::tokenizer::jinja {

/// Output bytes [begin, end) that a template wrote for one item.
struct Region {
  int message;  ///< index in the chat, -1 = none
  std::size_t begin, end;
};

struct Rendered {
  Text text;
  /// Text written while a loop was on a message of the chat, ascending; the innermost such loop counts.
  std::vector<Region> turns;
  /// Text written inside {% generation %}, ascending.
  std::vector<Region> generations;
};

/// `variables` are the template's globals. `name` appears in messages. DataError if the template refuses the chat or
/// fails on it, FormatError for unsupported features or exceeded limits; both give name:line.
Rendered run(const ParsedTemplate& parsed, const Dict& variables, const std::string& name, const Limits& limits = {});

class Interpreter {
 public:
  explicit Interpreter(const Dict& variables);

  void run(const Block& body) { execute(body); }
  /// Line of the current statement or expression.
  int line() const { return line_; }
  Rendered take();

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  // Names of one scope. Loop bodies, macros and capturing blocks have their own; if does not.
  using Frame = std::unordered_map<std::string, Value>;

  // Recursion of the interpreter, whatever the template nests.
  class Nested {
   public:
    explicit Nested(int& depth);
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    int& depth_;
  };

  // Statements (statements.cpp).
  Flow execute(const Block& block);
  Flow execute(const Statement& statement);
  Flow execute_if(const Statement& statement);
  Flow execute_for(const Statement& statement, const Value& iterable, int depth);
  List loop_items(const Statement& statement, const Value& iterable);
  Flow execute_turn(const Block& body, const Value& item);
  Flow execute_with(const Statement& statement);
  Flow execute_generation(const Statement& statement);
  Flow execute_scoped(const Block& block);
  void execute_call_block(const Statement& statement);
  void assign(const Statement& statement, const Value& value);
  void bind(const Target& target, const Value& value);
  // The output of a block as a value; the block has its own names.
  Text capture(const Block& block);
  Value filtered(const Statement& statement, Text captured);
  // Runs `body` in the scopes [0, visible), since a function sees the scopes it was defined in, not its caller's.
  template <class Function>
  Value in_scopes(std::size_t visible, Function body);
  Callable make_macro(const Statement& statement);
  Value call_macro(const Statement& macro, std::size_t visible, const Arguments& arguments);
  void bind_parameters(const Statement& macro, const Arguments& arguments);
  void write(const Text& text) { output_.append(text); }

  // Expressions (expressions.cpp).
  Value lookup(const std::string& name) const;
  Value evaluate(const Expr& expr);
  Value evaluate_node(const Expr& expr);
  Value evaluate_operands(const Expr& expr);
  Value evaluate_call(const Expr& expr, const Value& first, const Arguments& arguments);
  Arguments evaluate_arguments(const CallArguments& written);
  Value evaluate_list(const Expr& expr);
  Value evaluate_dict(const Expr& expr);
  Value evaluate_compare(const Expr& expr);
  Value child(const Expr& expr, std::size_t index);

  std::vector<Frame> frames_;
  Text output_;
  Rendered rendered_;
  Value captured_;  // the value of ExprKind::kCaptured
  int line_ = 1, captures_ = 0, macro_depth_ = 0, depth_ = 0;
  int message_ = -1;  // the message that a loop is on
};

}  // namespace lora_train::tokenizer::jinja
