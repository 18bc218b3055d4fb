// Parses tokens into a syntax tree.
#include <fmt/core.h>

#include <algorithm>

#include "jinja.h"
#include "lora_train/base/error.h"

namespace lora_train::tokenizer::jinja {
namespace {

/// Expressions have Jinja's precedence. FormatError (name:line).
class Parser : private TokenReader {
 public:
  using TokenReader::TokenReader;

  ParsedTemplate run() {
    ParsedTemplate parsed;
    parsed.body = parse_block({});
    parsed.has_generation = has_generation_;
    return parsed;
  }

 private:
  // Counts nested expressions and statements together; each level of an expression takes ten function calls.
  static constexpr int kMaxNesting = 64;
  // Depth of an expression's tree, which a chain such as a + b + c + ... makes deep without nesting.
  static constexpr int kMaxTreeDepth = 400;

  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxNesting) parser_.fail("nested deeper than 64 levels");
    }
    ~Nested() { --parser_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& parser_;
  };

  ExprPtr make(ExprKind kind, int line, std::string text = {}) const {
    auto expr = std::make_unique<Expr>(Expr{kind, line});
    expr->text = std::move(text);
    return expr;
  }

  template <class... Children>
  ExprPtr node(ExprKind kind, int line, std::string text, Children... children) const {
    ExprPtr expr = make(kind, line, std::move(text));
    (adopt(*expr, std::move(children)), ...);
    return expr;
  }

  void deepen(Expr& parent, const Expr& child) const {
    parent.depth = std::max(parent.depth, child.depth + 1);
    if (parent.depth > kMaxTreeDepth) fail("an expression has more than 400 steps in a row");
  }

  // Appends a child (null = omitted) and updates the depth.
  void adopt(Expr& parent, ExprPtr child) const {
    if (child) deepen(parent, *child);
    parent.children.push_back(std::move(child));
  }

  // One expression, or several separated by commas, which make a list (a tuple in Jinja).
  ExprPtr parse_tuple(bool with_condition = true) {
    const int line = now().line;
    ExprPtr first = with_condition ? parse_expression() : parse_or();
    if (!is_operator(",")) return first;
    ExprPtr tuple = node(ExprKind::kList, line, "tuple", std::move(first));
    while (accept_operator(",")) {
      if (now().kind == TokenKind::kBlockEnd || now().kind == TokenKind::kPrintEnd || is_operator(")")) break;
      adopt(*tuple, with_condition ? parse_expression() : parse_or());
    }
    return tuple;
  }

  ExprPtr parse_expression() {
    const Nested nested(*this);
    ExprPtr expr = parse_or();
    while (is_name("if")) {
      const int line = take().line;
      ExprPtr condition = parse_or();
      ExprPtr otherwise = accept_name("else") ? parse_expression() : nullptr;
      expr = node(ExprKind::kCondition, line, {}, std::move(expr), std::move(condition), std::move(otherwise));
    }
    return expr;
  }

  using Level = ExprPtr (Parser::*)();
  // Operands of the next level, separated by the word.
  ExprPtr parse_logical(std::string_view word, ExprKind kind, Level next) {
    ExprPtr left = (this->*next)();
    while (is_name(word)) {
      const int line = take().line;
      left = node(kind, line, {}, std::move(left), (this->*next)());
    }
    return left;
  }

  ExprPtr parse_or() { return parse_logical("or", ExprKind::kOr, &Parser::parse_and); }
  ExprPtr parse_and() { return parse_logical("and", ExprKind::kAnd, &Parser::parse_not); }
  ExprPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Nested nested(*this);
    const int line = take().line;
    return node(ExprKind::kNot, line, {}, parse_not());
  }

  // Consumes the current comparison; "" if there is none.
  std::string take_comparison() {
    for (const char* name : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (accept_operator(name)) return name;
    }
    if (accept_name("in")) return "in";
    if (!is_name("not") || peek(1).kind != TokenKind::kName || peek(1).text != "in") return {};
    take();
    take();
    return "not in";
  }

  ExprPtr parse_compare() {
    const int line = now().line;
    ExprPtr left = parse_binary();
    std::string comparison = take_comparison();
    if (comparison.empty()) return left;
    ExprPtr compare = node(ExprKind::kCompare, line, {}, std::move(left));
    for (; !comparison.empty(); comparison = take_comparison()) {
      compare->names.push_back(comparison);
      adopt(*compare, parse_binary());
    }
    return compare;
  }

  // Arithmetic, loosest operators first.
  ExprPtr parse_binary(std::size_t level = 0) {
    constexpr std::string_view kLevels[][4] = {{"+", "-"}, {"~"}, {"*", "//", "/", "%"}, {"**"}};
    if (level == std::size(kLevels)) return parse_signed(true);
    const auto& operators = kLevels[level];
    ExprPtr left = parse_binary(level + 1);
    for (;;) {
      const auto* name =
          std::find_if(std::begin(operators), std::end(operators), [&](auto op) { return is_operator(op); });
      if (name == std::end(operators)) return left;
      const int line = take().line;
      ExprPtr right = parse_binary(level + 1);
      left = node(ExprKind::kBinary, line, std::string(*name), std::move(left), std::move(right));
    }
  }

  ExprPtr parse_signed(bool with_filter) {
    const Nested nested(*this);
    const int line = now().line;
    ExprPtr expr;
    if (accept_operator("-"))
      expr = node(ExprKind::kNegate, line, {}, parse_signed(false));
    else if (accept_operator("+"))
      expr = node(ExprKind::kPlus, line, {}, parse_signed(false));
    else
      expr = parse_primary();
    expr = parse_postfix(std::move(expr));
    return with_filter ? parse_filters(std::move(expr)) : std::move(expr);
  }

  ExprPtr literal(int line, Value value) const {
    ExprPtr expr = make(ExprKind::kLiteral, line);
    expr->value = std::move(value);
    return expr;
  }

  ExprPtr parse_primary() {
    const int line = now().line;
    switch (now().kind) {
      case TokenKind::kName: return parse_name();
      case TokenKind::kString: {
        std::string text;
        while (now().kind == TokenKind::kString) text += take().text;
        return literal(line, Value::string(text));
      }
      case TokenKind::kInteger: return literal(line, take_integer());
      case TokenKind::kFloat: return literal(line, take_float());
      default: break;
    }
    if (accept_operator("(")) return parse_parentheses(line);
    if (accept_operator("[")) return parse_list(line);
    if (accept_operator("{")) return parse_dict(line);
    fail("expected an expression, found " + found());
  }

  ExprPtr parse_name() {
    const Token token = take();
    if (token.text == "true" || token.text == "True") return literal(token.line, true);
    if (token.text == "false" || token.text == "False") return literal(token.line, false);
    if (token.text == "none" || token.text == "None") return literal(token.line, None{});
    used_.caller |= token.text == "caller";
    used_.varargs |= token.text == "varargs";
    used_.kwargs |= token.text == "kwargs";
    return make(ExprKind::kName, token.line, token.text);
  }

  ExprPtr parse_parentheses(int line) {
    if (accept_operator(")")) return make(ExprKind::kList, line, "tuple");
    ExprPtr inner = parse_tuple();
    expect_operator(")");
    return inner;
  }

  // Items separated by commas, up to the closing bracket.
  template <class ParseItem>
  void parse_items(std::string_view close, ParseItem parse_item) {
    while (!accept_operator(close)) {
      parse_item();
      if (!is_operator(close)) expect_operator(",");
    }
  }

  ExprPtr parse_list(int line) {
    ExprPtr list = make(ExprKind::kList, line);
    parse_items("]", [&] { adopt(*list, parse_expression()); });
    return list;
  }

  ExprPtr parse_dict(int line) {
    ExprPtr dict = make(ExprKind::kDict, line);
    parse_items("}", [&] {
      adopt(*dict, parse_expression());
      expect_operator(":");
      adopt(*dict, parse_expression());
    });
    return dict;
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    for (;;) {
      const int line = now().line;
      if (accept_operator(".")) {
        if (now().kind == TokenKind::kInteger) {
          ExprPtr index = literal(line, take_integer());
          expr = node(ExprKind::kSubscript, line, {}, std::move(expr), std::move(index));
        } else {
          std::string name = expect_identifier();
          expr = node(ExprKind::kAttribute, line, std::move(name), std::move(expr));
        }
      } else if (accept_operator("[")) {
        expr = parse_subscript(std::move(expr), line);
      } else if (is_operator("(")) {
        expr = node(ExprKind::kCall, line, {}, std::move(expr));
        parse_arguments(*expr);
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_subscript(ExprPtr object, int line) {
    ExprPtr parts[3];
    std::size_t part = 0;
    bool is_slice = false;
    while (!accept_operator("]")) {
      if (accept_operator(":")) {
        is_slice = true;
        if (++part > 2) fail("a slice has at most three parts");
      } else if (parts[part]) {
        fail("expected \"]\", found " + found());
      } else {
        parts[part] = parse_expression();
      }
    }
    if (is_slice) {
      return node(ExprKind::kSlice, line, {}, std::move(object), std::move(parts[0]), std::move(parts[1]),
                  std::move(parts[2]));
    }
    if (!parts[0]) fail("an empty subscript");
    return node(ExprKind::kSubscript, line, {}, std::move(object), std::move(parts[0]));
  }

  ExprPtr parse_argument(Expr& call) {
    ExprPtr argument = parse_expression();
    deepen(call, *argument);
    return argument;
  }

  void parse_named_argument(Expr& call) {
    std::string name = take().text;
    take();
    for (const auto& given : call.arguments.named) {
      if (given.first == name) fail("keyword argument repeated: " + name);
    }
    call.arguments.named.emplace_back(std::move(name), parse_argument(call));
  }

  // Positional ones, then named ones and one *list in any order, then one **dict.
  void parse_arguments(Expr& call) {
    CallArguments& arguments = call.arguments;
    expect_operator("(");
    parse_items(")", [&] {
      if (arguments.unpacked_named) fail("an argument follows **");
      if (accept_operator("**")) {
        arguments.unpacked_named = parse_argument(call);
      } else if (accept_operator("*")) {
        if (arguments.unpacked) fail("* twice in one call");
        arguments.unpacked = parse_argument(call);
      } else if (now().kind == TokenKind::kName && peek(1).kind == TokenKind::kOperator && peek(1).text == "=") {
        parse_named_argument(call);
      } else {
        if (!arguments.named.empty() || arguments.unpacked) fail("a positional argument follows a named one or *");
        arguments.positional.push_back(parse_argument(call));
      }
    });
  }

  // name(arguments) applied to `expr`.
  ExprPtr parse_filter(ExprPtr expr) {
    const int line = now().line;
    std::string name = expect_identifier();
    if (!is_filter(name)) fail(fmt::format("filter \"{}\" is not supported", name));
    expr = node(ExprKind::kFilter, line, std::move(name), std::move(expr));
    if (is_operator("(")) parse_arguments(*expr);
    return expr;
  }

  // Any number of | name(arguments), tests and calls.
  ExprPtr parse_filters(ExprPtr expr) {
    for (;;) {
      const int line = now().line;
      if (accept_operator("|")) {
        expr = parse_filter(std::move(expr));
      } else if (is_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (is_operator("(")) {
        expr = node(ExprKind::kCall, line, {}, std::move(expr));
        parse_arguments(*expr);
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_test(ExprPtr subject) {
    const int line = take().line;
    const bool negated = accept_name("not");
    std::string name = expect_identifier();
    if (!is_test(name)) fail(fmt::format("test \"{}\" is not supported", name));
    ExprPtr test = node(ExprKind::kTest, line, std::move(name), std::move(subject));
    if (is_operator("("))
      parse_arguments(*test);
    else if (begins_test_argument()) {
      test->arguments.positional.push_back(parse_postfix(parse_primary()));
      deepen(*test, *test->arguments.positional.back());
    }
    return negated ? node(ExprKind::kNot, line, {}, std::move(test)) : std::move(test);
  }

  bool begins_test_argument() const {
    switch (now().kind) {
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat: return true;
      case TokenKind::kOperator: return now().text == "[" || now().text == "{";
      case TokenKind::kName:
        for (const char* word : {"else", "or", "and", "if", "is", "in", "not", "recursive"}) {
          if (now().text == word) return false;
        }
        return true;
      default: return false;
    }
  }

  ExprPtr captured(int line) const { return make(ExprKind::kCaptured, line); }

  void end_block() { expect_kind(TokenKind::kBlockEnd, "\"%}\""); }

  // Statements up to a block that begins with one of `ends`, whose word is left as the current token.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Nested nested(*this);
    Block block;
    for (;;) {
      if (now().kind == TokenKind::kEnd) {
        if (ends.size() != 0) fail(fmt::format("expected {{% {} %}}, found the end of the template", *ends.begin()));
        return block;
      }
      if (now().kind == TokenKind::kText) {
        block.push_back({StatementKind::kText, now().line, now().text});
        take();
      } else if (now().kind == TokenKind::kPrintBegin) {
        const int line = take().line;
        block.push_back({StatementKind::kPrint, line});
        block.back().expr = parse_tuple();
        expect_kind(TokenKind::kPrintEnd, "\"}}\"");
      } else {
        expect_kind(TokenKind::kBlockBegin, "a tag");
        for (const std::string_view end : ends) {
          if (is_name(end)) return block;
        }
        block.push_back(parse_statement());
      }
    }
  }

  Statement parse_statement() {
    Statement statement = parse_tag();
    end_block();
    return statement;
  }

  // A statement without the end of its last tag.
  Statement parse_tag() {
    const int line = now().line;
    const std::string word = expect_identifier();
    if (word == "if") return parse_if(line);
    if (word == "for") return parse_for(line);
    if (word == "set") return parse_set(line);
    if (word == "with") return parse_with(line);
    if (word == "filter") return parse_filter_block(line);
    if (word == "macro") return parse_macro(line);
    if (word == "call") return parse_call(line);
    if (word == "generation") return parse_generation(line);
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail(fmt::format("{{% {} %}} outside a loop", word));
      return {word == "break" ? StatementKind::kBreak : StatementKind::kContinue, line};
    }
    fail("statement {% " + word +
         " %} is not supported; expected one of if, for, set, with, filter, macro, call, generation, raw, break, "
         "continue");
  }

  // A body up to {% `end`, with the end of the tag before it.
  Block parse_body(std::string_view end) {
    end_block();
    Block body = parse_block({end});
    take();
    return body;
  }

  // A body that is its own function in Jinja: no break out of it, and its own caller, varargs, kwargs.
  Block parse_function_body(std::string_view end, UsedNames& uses) {
    const int loops = std::exchange(loops_, 0);
    const UsedNames outer = std::exchange(used_, {});
    Block body = parse_body(end);
    uses = std::exchange(used_, outer);
    loops_ = loops;
    return body;
  }

  Statement parse_if(int line) {
    Statement statement{StatementKind::kIf, line};
    statement.conditions.push_back(parse_tuple(false));
    end_block();
    for (;;) {
      statement.blocks.push_back(parse_block({"endif", "elif", "else"}));
      const auto keyword = take();
      const std::string_view word = keyword.text;
      if (word == "elif") {
        statement.conditions.push_back(parse_tuple(false));
        end_block();
        continue;
      }
      if (word == "else") statement.blocks.push_back(parse_body("endif"));
      return statement;
    }
  }

  Statement parse_for(int line) {
    Statement statement{StatementKind::kFor, line};
    statement.targets.push_back(parse_target());
    if (!accept_name("in")) fail("expected \"in\", found " + found());
    statement.expr = parse_tuple(false);
    if (accept_name("if")) statement.filter = parse_expression();
    statement.is_recursive = accept_name("recursive");
    end_block();
    ++loops_;
    statement.blocks.push_back(parse_block({"endfor", "else"}));
    --loops_;
    const int outer = loops_;
    if (statement.is_recursive) loops_ = 0;  // its own function in Jinja
    if (take().text == "else") statement.blocks.push_back(parse_body("endfor"));
    loops_ = outer;
    return statement;
  }

  // a | a, b | (a, (b, c)) ...
  Target parse_target() {
    Target first = parse_target_part();
    if (!is_operator(",")) return first;
    Target tuple;
    tuple.parts.push_back(std::move(first));
    while (accept_operator(",")) {
      if (now().kind != TokenKind::kName && !is_operator("(")) break;
      if (is_name("in")) break;
      tuple.parts.push_back(parse_target_part());
    }
    return tuple;
  }

  Target parse_target_part() {
    const Nested nested(*this);
    if (!accept_operator("(")) {
      const std::string name = expect_identifier();
      for (const char* constant : {"true", "True", "false", "False", "none", "None"}) {
        if (name == constant) fail("cannot assign to " + name);
      }
      return {name, {}};
    }
    Target inner = parse_target();
    expect_operator(")");
    return inner;
  }

  Statement parse_set(int line) {
    Statement statement{StatementKind::kSet, line};
    statement.targets.push_back(parse_target());
    if (!statement.targets[0].name.empty() && accept_operator(".")) statement.attribute = expect_identifier();
    if (accept_operator("=")) {
      statement.expr = parse_tuple();
      return statement;
    }
    statement.kind = StatementKind::kSetBlock;
    if (is_operator("|")) statement.expr = parse_filters(captured(line));
    statement.blocks.push_back(parse_body("endset"));
    return statement;
  }

  Statement parse_with(int line) {
    Statement statement{StatementKind::kWith, line};
    while (now().kind != TokenKind::kBlockEnd) {
      if (!statement.targets.empty()) expect_operator(",");
      statement.targets.push_back(parse_target_part());
      expect_operator("=");
      statement.conditions.push_back(parse_expression());
    }
    statement.blocks.push_back(parse_body("endwith"));
    return statement;
  }

  Statement parse_filter_block(int line) {
    Statement statement{StatementKind::kFilterBlock, line};
    statement.expr = parse_filters(parse_filter(captured(line)));
    statement.blocks.push_back(parse_body("endfilter"));
    return statement;
  }

  void parse_signature(Signature& signature) {
    expect_operator("(");
    parse_items(")", [&] {
      signature.names.push_back(expect_identifier());
      if (accept_operator("="))
        signature.defaults.push_back(parse_expression());
      else if (!signature.defaults.empty())
        fail("a parameter without a default follows one with a default");
    });
  }

  Statement parse_macro(int line) {
    Statement statement{StatementKind::kMacro, line};
    statement.text = expect_identifier();
    parse_signature(statement.signature);
    statement.blocks.push_back(parse_function_body("endmacro", statement.signature.uses));
    if (now().kind == TokenKind::kName) take();
    return statement;
  }

  Statement parse_call(int line) {
    Statement statement{StatementKind::kCallBlock, line};
    if (is_operator("(")) parse_signature(statement.signature);
    statement.expr = parse_expression();
    if (statement.expr->kind != ExprKind::kCall) fail("{% call %} needs a call of a macro");
    statement.blocks.push_back(parse_function_body("endcall", statement.signature.uses));
    return statement;
  }

  Statement parse_generation(int line) {
    Statement statement{StatementKind::kGeneration, line};
    has_generation_ = true;
    const int loops = std::exchange(loops_, 0);
    statement.blocks.push_back(parse_body("endgeneration"));
    loops_ = loops;
    return statement;
  }

  int depth_ = 0, loops_ = 0;
  UsedNames used_;
  bool has_generation_ = false;
};

}  // namespace

ParsedTemplate parse(std::string_view source, const std::string& name) { return Parser(source, name).run(); }

}  // namespace lora_train::tokenizer::jinja
