// The tokens of a template and the expressions among them; the parser handles statements.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lexer.h"
#include "lora_train/base/error.h"
#include "parser.h"

namespace lora_train::tokenizer::jinja {

/// Walks tokens and parses expressions with Jinja's precedence. FormatError (name:line).
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

 protected:
  // Counts nested expressions and statements together; each level of an expression takes ten function calls.
  static constexpr int kMaxNesting = 64;
  // Depth of an expression's tree, which a chain such as a + b + c + ... makes deep without nesting.
  static constexpr int kMaxTreeDepth = 400;

  class Nested {
   public:
    explicit Nested(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxNesting) parser_.fail("nested deeper than 64 levels");
    }
    ~Nested() { --parser_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& parser_;
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

  // One expression, or several separated by commas, which make a list (a tuple in Jinja).
  ExprPtr parse_tuple(bool with_condition = true);
  ExprPtr parse_expression();
  // name(arguments) applied to `expr`, followed by any number of | name(arguments).
  ExprPtr parse_filter(ExprPtr expr);
  ExprPtr parse_filters(ExprPtr expr);
  ExprPtr captured(int line) const { return make(ExprKind::kCaptured, line); }

  // The names with a meaning in macros that occurred.
  struct UsedNames {
    bool caller = false, varargs = false, kwargs = false;
  };
  UsedNames used_;

 private:
  template <class... Children>
  ExprPtr node(ExprKind kind, int line, std::string text, Children... children) const {
    ExprPtr expr = make(kind, line, std::move(text));
    (adopt(*expr, std::move(children)), ...);
    return expr;
  }
  // Appends a child (null = omitted) and updates the depth.
  void adopt(Expr& parent, ExprPtr child) const;
  void deepen(Expr& parent, const Expr& child) const;
  ExprPtr make(ExprKind kind, int line, std::string text = {}) const;
  using Level = ExprPtr (ExpressionParser::*)();
  // Operands of the next level, separated by the word.
  ExprPtr parse_logical(std::string_view word, ExprKind kind, Level next);
  ExprPtr parse_or() { return parse_logical("or", ExprKind::kOr, &ExpressionParser::parse_and); }
  ExprPtr parse_and() { return parse_logical("and", ExprKind::kAnd, &ExpressionParser::parse_not); }
  ExprPtr parse_not();
  // Consumes the current comparison; "" if there is none.
  std::string take_comparison();
  ExprPtr parse_compare();
  // Arithmetic, loosest operators first.
  ExprPtr parse_binary(std::size_t level = 0);
  ExprPtr parse_signed(bool with_filter);
  ExprPtr literal(int line, Value value) const;
  ExprPtr parse_primary();
  ExprPtr parse_name();
  Value parse_integer();
  Value parse_float();
  ExprPtr parse_parentheses(int line);
  ExprPtr parse_list(int line);
  ExprPtr parse_dict(int line);
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr object, int line);
  ExprPtr parse_argument(Expr& call);
  void parse_named_argument(Expr& call);
  void parse_arguments(Expr& call);
  ExprPtr parse_test(ExprPtr subject);
  bool begins_test_argument() const;

  std::vector<Token> tokens_;
  const std::string& name_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace lora_train::tokenizer::jinja
