#include "parser.h"

#include <charconv>
#include <initializer_list>

#include "builtins.h"
#include "lexer.h"
#include "lora_train/base/error.h"

namespace lora_train::tokenizer::jinja {
namespace {

// Nested expressions and statements together; each level of an expression passes through ten functions.
constexpr int kMaxNesting = 64;
// Of an expression's tree, which a chain such as a + b + c + ... makes deep without nesting.
constexpr int kMaxTreeDepth = 400;

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  ParsedTemplate run() {
    ParsedTemplate parsed;
    parsed.body = parse_block({});
    parsed.has_generation = has_generation_;
    return parsed;
  }

 private:
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

  [[noreturn]] void fail(const std::string& message) const {
    throw FormatError(name_ + ":" + std::to_string(now().line), "chat template: " + message);
  }

  const Token& now() const { return tokens_[at_]; }
  const Token& peek(std::size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token take() {
    Token token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is(TokenKind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool is_operator(std::string_view text) const { return is(TokenKind::kOperator, text); }
  bool is_name(std::string_view text) const { return is(TokenKind::kName, text); }
  bool accept_operator(std::string_view text) { return is_operator(text) ? (take(), true) : false; }
  bool accept_name(std::string_view text) { return is_name(text) ? (take(), true) : false; }
  std::string found() const {
    switch (now().kind) {
      case TokenKind::kEnd: return "the end of the template";
      case TokenKind::kText: return "text";
      case TokenKind::kBlockEnd: return "\"%}\"";
      case TokenKind::kPrintEnd: return "\"}}\"";
      default: return "\"" + now().text + "\"";
    }
  }
  void expect_operator(std::string_view text) {
    if (!accept_operator(text)) fail("expected \"" + std::string(text) + "\", found " + found());
  }
  void expect_kind(TokenKind kind, const char* what) {
    if (now().kind != kind) fail(std::string("expected ") + what + ", found " + found());
    take();
  }
  std::string expect_identifier() {
    if (now().kind != TokenKind::kName) fail("expected a name, found " + found());
    return take().text;
  }
  void end_block() { expect_kind(TokenKind::kBlockEnd, "\"%}\""); }

  // Statements up to a block that begins with one of `ends`, which is left with its word as the current token.
  Block parse_block(std::initializer_list<std::string_view> ends) {
    const Nested nested(*this);
    Block block;
    for (;;) {
      if (now().kind == TokenKind::kEnd) {
        if (ends.size() != 0) fail("expected {% " + std::string(*ends.begin()) + " %}, found the end of the template");
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
    const int line = now().line;
    const std::string word = expect_identifier();
    if (word == "if") return parse_if(line);
    if (word == "for") return parse_for(line);
    if (word == "set") return parse_set(line);
    if (word == "macro") return parse_macro(line);
    if (word == "generation") return parse_generation(line);
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail("{% " + word + " %} outside a loop");
      end_block();
      return {word == "break" ? StatementKind::kBreak : StatementKind::kContinue, line};
    }
    fail("statement {% " + word + " %} is not built; there are if, for, set, macro, generation, break, continue");
  }

  Statement parse_if(int line) {
    Statement statement{StatementKind::kIf, line};
    statement.conditions.push_back(parse_tuple());
    end_block();
    for (;;) {
      statement.blocks.push_back(parse_block({"endif", "elif", "else"}));
      const std::string word = take().text;
      if (word == "elif") {
        statement.conditions.push_back(parse_tuple());
        end_block();
        continue;
      }
      end_block();
      if (word == "endif") return statement;
      statement.blocks.push_back(parse_block({"endif"}));
      take();
      end_block();
      return statement;
    }
  }

  Statement parse_for(int line) {
    Statement statement{StatementKind::kFor, line};
    const bool parenthesised = accept_operator("(");
    statement.names = parse_targets();
    if (parenthesised) expect_operator(")");
    if (!accept_name("in")) fail("expected \"in\", found " + found());
    statement.expr = parse_tuple(false);
    if (accept_name("if")) statement.filter = parse_expression();
    if (is_name("recursive")) fail("a recursive loop is not built");
    end_block();
    ++loops_;
    statement.blocks.push_back(parse_block({"endfor", "else"}));
    --loops_;
    const bool has_else = take().text == "else";
    end_block();
    if (!has_else) return statement;
    statement.blocks.push_back(parse_block({"endfor"}));
    take();
    end_block();
    return statement;
  }

  std::vector<std::string> parse_targets() {
    std::vector<std::string> names{expect_identifier()};
    while (accept_operator(",")) names.push_back(expect_identifier());
    return names;
  }

  Statement parse_set(int line) {
    Statement statement{StatementKind::kSet, line};
    statement.names = parse_targets();
    if (statement.names.size() == 1 && accept_operator(".")) statement.attribute = expect_identifier();
    if (accept_operator("=")) {
      statement.expr = parse_tuple();
      end_block();
      return statement;
    }
    statement.kind = StatementKind::kSetBlock;
    if (is_operator("|")) fail("a filtered set block is not built");
    end_block();
    statement.blocks.push_back(parse_block({"endset"}));
    take();
    end_block();
    return statement;
  }

  Statement parse_macro(int line) {
    Statement statement{StatementKind::kMacro, line};
    statement.text = expect_identifier();
    expect_operator("(");
    while (!accept_operator(")")) {
      statement.names.push_back(expect_identifier());
      if (accept_operator("=")) statement.conditions.push_back(parse_expression());
      else if (!statement.conditions.empty()) fail("a parameter without a default follows one with a default");
      if (!is_operator(")")) expect_operator(",");
    }
    end_block();
    const int loops = std::exchange(loops_, 0);
    statement.blocks.push_back(parse_block({"endmacro"}));
    loops_ = loops;
    take();
    if (now().kind == TokenKind::kName) take();
    end_block();
    return statement;
  }

  Statement parse_generation(int line) {
    Statement statement{StatementKind::kGeneration, line};
    has_generation_ = true;
    end_block();
    statement.blocks.push_back(parse_block({"endgeneration"}));
    take();
    end_block();
    return statement;
  }

  ExprPtr make(ExprKind kind, int line, std::string text = {}) const {
    auto expr = std::make_unique<Expr>(Expr{kind, line});
    expr->text = std::move(text);
    return expr;
  }
  template <class... Children>
  ExprPtr node(ExprKind kind, int line, std::string text, Children... children) const {
    ExprPtr expr = make(kind, line, std::move(text));
    (expr->children.push_back(std::move(children)), ...);
    for (const ExprPtr& child : expr->children) {
      if (child) expr->depth = std::max(expr->depth, child->depth + 1);
    }
    if (expr->depth > kMaxTreeDepth) fail("an expression has more than 400 steps in a row");
    return expr;
  }

  // One expression, or several with commas between them, which make a list (a tuple of Jinja).
  ExprPtr parse_tuple(bool with_condition = true) {
    const int line = now().line;
    ExprPtr first = with_condition ? parse_expression() : parse_or();
    if (!is_operator(",")) return first;
    ExprPtr tuple = node(ExprKind::kList, line, {}, std::move(first));
    while (accept_operator(",")) {
      if (now().kind == TokenKind::kBlockEnd || now().kind == TokenKind::kPrintEnd || is_operator(")")) break;
      tuple->children.push_back(with_condition ? parse_expression() : parse_or());
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

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (is_name("or")) {
      const int line = take().line;
      left = node(ExprKind::kOr, line, {}, std::move(left), parse_and());
    }
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (is_name("and")) {
      const int line = take().line;
      left = node(ExprKind::kAnd, line, {}, std::move(left), parse_not());
    }
    return left;
  }

  ExprPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Nested nested(*this);
    const int line = take().line;
    return node(ExprKind::kNot, line, {}, parse_not());
  }

  // The comparison at hand, taken; "" for none.
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
    ExprPtr left = parse_sum();
    std::string comparison = take_comparison();
    if (comparison.empty()) return left;
    ExprPtr compare = node(ExprKind::kCompare, line, {}, std::move(left));
    for (; !comparison.empty(); comparison = take_comparison()) {
      compare->names.push_back(comparison);
      compare->children.push_back(parse_sum());
    }
    return compare;
  }

  using Level = ExprPtr (Parser::*)();
  ExprPtr parse_binary(std::initializer_list<std::string_view> operators, Level next) {
    ExprPtr left = (this->*next)();
    for (bool again = true; again;) {
      again = false;
      for (const std::string_view name : operators) {
        if (!is_operator(name)) continue;
        const int line = take().line;
        ExprPtr right = (this->*next)();
        left = node(ExprKind::kBinary, line, std::string(name), std::move(left), std::move(right));
        again = true;
        break;
      }
    }
    return left;
  }
  ExprPtr parse_sum() { return parse_binary({"+", "-"}, &Parser::parse_concatenation); }
  ExprPtr parse_concatenation() { return parse_binary({"~"}, &Parser::parse_product); }
  ExprPtr parse_product() { return parse_binary({"*", "//", "/", "%"}, &Parser::parse_power); }
  ExprPtr parse_power() { return parse_binary({"**"}, &Parser::parse_unary); }
  ExprPtr parse_unary() { return parse_signed(true); }

  ExprPtr parse_signed(bool with_filter) {
    const Nested nested(*this);
    const int line = now().line;
    ExprPtr expr;
    if (accept_operator("-")) expr = node(ExprKind::kNegate, line, {}, parse_signed(false));
    else if (accept_operator("+")) expr = node(ExprKind::kPlus, line, {}, parse_signed(false));
    else expr = parse_primary();
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
      case TokenKind::kInteger: return literal(line, parse_integer());
      case TokenKind::kFloat: return literal(line, parse_float());
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
    return make(ExprKind::kName, token.line, token.text);
  }

  Value parse_integer() {
    const std::string text = now().text;
    std::int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) fail("integer too large: " + text);
    take();
    return value;
  }
  Value parse_float() {
    const std::string text = take().text;
    double value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }

  ExprPtr parse_parentheses(int line) {
    if (accept_operator(")")) return make(ExprKind::kList, line);
    ExprPtr inner = parse_tuple();
    expect_operator(")");
    return inner;
  }

  ExprPtr parse_list(int line) {
    ExprPtr list = make(ExprKind::kList, line);
    while (!accept_operator("]")) {
      list->children.push_back(parse_expression());
      if (!is_operator("]")) expect_operator(",");
    }
    return list;
  }

  ExprPtr parse_dict(int line) {
    ExprPtr dict = make(ExprKind::kDict, line);
    while (!accept_operator("}")) {
      dict->children.push_back(parse_expression());
      expect_operator(":");
      dict->children.push_back(parse_expression());
      if (!is_operator("}")) expect_operator(",");
    }
    return dict;
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    for (;;) {
      const int line = now().line;
      if (accept_operator(".")) {
        if (now().kind == TokenKind::kInteger) {
          ExprPtr index = literal(line, parse_integer());
          expr = node(ExprKind::kSubscript, line, {}, std::move(expr), std::move(index));
        } else {
          std::string name = expect_identifier();
          expr = node(ExprKind::kAttribute, line, std::move(name), std::move(expr));
        }
      } else if (accept_operator("[")) {
        expr = parse_subscript(std::move(expr), line);
      } else if (is_operator("(")) {
        expr = node(ExprKind::kCall, line, {}, std::move(expr));
        expr->arguments = parse_arguments();
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
      return node(ExprKind::kSlice, line, {}, std::move(object), std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
    }
    if (!parts[0]) fail("an empty subscript");
    return node(ExprKind::kSubscript, line, {}, std::move(object), std::move(parts[0]));
  }

  CallArguments parse_arguments() {
    CallArguments arguments;
    expect_operator("(");
    while (!accept_operator(")")) {
      if (is_operator("*") || is_operator("**")) fail("unpacked arguments are not built");
      if (now().kind == TokenKind::kName && peek(1).kind == TokenKind::kOperator && peek(1).text == "=") {
        std::string name = take().text;
        take();
        arguments.named.emplace_back(std::move(name), parse_expression());
      } else {
        if (!arguments.named.empty()) fail("a positional argument follows a named one");
        arguments.positional.push_back(parse_expression());
      }
      if (!is_operator(")")) expect_operator(",");
    }
    return arguments;
  }

  ExprPtr parse_filters(ExprPtr expr) {
    for (;;) {
      const int line = now().line;
      if (accept_operator("|")) {
        std::string name = expect_identifier();
        if (!is_filter(name)) fail("filter \"" + name + "\" is not built");
        expr = node(ExprKind::kFilter, line, std::move(name), std::move(expr));
        if (is_operator("(")) expr->arguments = parse_arguments();
      } else if (is_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (is_operator("(")) {
        expr = node(ExprKind::kCall, line, {}, std::move(expr));
        expr->arguments = parse_arguments();
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_test(ExprPtr subject) {
    const int line = take().line;
    const bool negated = accept_name("not");
    std::string name = expect_identifier();
    if (!is_test(name)) fail("test \"" + name + "\" is not built");
    ExprPtr test = node(ExprKind::kTest, line, std::move(name), std::move(subject));
    if (is_operator("(")) test->arguments = parse_arguments();
    else if (begins_test_argument()) test->arguments.positional.push_back(parse_postfix(parse_primary()));
    return negated ? node(ExprKind::kNot, line, {}, std::move(test)) : std::move(test);
  }

  bool begins_test_argument() const {
    switch (now().kind) {
      case TokenKind::kString: case TokenKind::kInteger: case TokenKind::kFloat: return true;
      case TokenKind::kOperator: return now().text == "[" || now().text == "{";
      case TokenKind::kName:
        for (const char* word : {"else", "or", "and", "if", "is", "in", "not", "recursive"}) {
          if (now().text == word) return false;
        }
        return true;
      default: return false;
    }
  }

  std::vector<Token> tokens_;
  const std::string& name_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  bool has_generation_ = false;
};

}  // namespace

ParsedTemplate parse(std::string_view source, const std::string& name) {
  return Parser(tokenize(source, name), name).run();
}

}  // namespace lora_train::tokenizer::jinja
