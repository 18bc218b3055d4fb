#include "expression_parser.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "builtins.h"

namespace lora_train::tokenizer::jinja {

void ExpressionParser::deepen(Expr& parent, const Expr& child) const {
  parent.depth = std::max(parent.depth, child.depth + 1);
  if (parent.depth > kMaxTreeDepth) fail("an expression has more than 400 steps in a row");
}

void ExpressionParser::adopt(Expr& parent, ExprPtr child) const {
  if (child) deepen(parent, *child);
  parent.children.push_back(std::move(child));
}

ExprPtr ExpressionParser::make(ExprKind kind, int line, std::string text) const {
  auto expr = std::make_unique<Expr>(Expr{kind, line});
  expr->text = std::move(text);
  return expr;
}

ExprPtr ExpressionParser::parse_tuple(bool with_condition) {
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

ExprPtr ExpressionParser::parse_expression() {
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

ExprPtr ExpressionParser::parse_logical(std::string_view word, ExprKind kind, Level next) {
  ExprPtr left = (this->*next)();
  while (is_name(word)) {
    const int line = take().line;
    left = node(kind, line, {}, std::move(left), (this->*next)());
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nested nested(*this);
  const int line = take().line;
  return node(ExprKind::kNot, line, {}, parse_not());
}

std::string ExpressionParser::take_comparison() {
  for (const char* name : {"==", "!=", "<=", ">=", "<", ">"}) {
    if (accept_operator(name)) return name;
  }
  if (accept_name("in")) return "in";
  if (!is_name("not") || peek(1).kind != TokenKind::kName || peek(1).text != "in") return {};
  take();
  take();
  return "not in";
}

ExprPtr ExpressionParser::parse_compare() {
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

ExprPtr ExpressionParser::parse_binary(std::size_t level) {
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

ExprPtr ExpressionParser::parse_signed(bool with_filter) {
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

ExprPtr ExpressionParser::literal(int line, Value value) const {
  ExprPtr expr = make(ExprKind::kLiteral, line);
  expr->value = std::move(value);
  return expr;
}

ExprPtr ExpressionParser::parse_primary() {
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

ExprPtr ExpressionParser::parse_name() {
  const Token token = take();
  if (token.text == "true" || token.text == "True") return literal(token.line, true);
  if (token.text == "false" || token.text == "False") return literal(token.line, false);
  if (token.text == "none" || token.text == "None") return literal(token.line, None{});
  used_.caller = used_.caller || token.text == "caller";
  used_.varargs = used_.varargs || token.text == "varargs";
  used_.kwargs = used_.kwargs || token.text == "kwargs";
  return make(ExprKind::kName, token.line, token.text);
}

Value ExpressionParser::parse_integer() {
  const std::string text = now().text;
  std::int64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc())
    fail("integer too large: " + text);
  take();
  return value;
}

Value ExpressionParser::parse_float() {
  const std::string text = take().text;
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  // A value that is too small also counts as out of range; it is 0.
  if (result.ec != std::errc() && std::isinf(std::strtod(text.c_str(), nullptr)))
    fail(fmt::format("the float {} is too large, infinity is not supported", text));
  return value;
}

ExprPtr ExpressionParser::parse_parentheses(int line) {
  if (accept_operator(")")) return make(ExprKind::kList, line, "tuple");
  ExprPtr inner = parse_tuple();
  expect_operator(")");
  return inner;
}

ExprPtr ExpressionParser::parse_list(int line) {
  ExprPtr list = make(ExprKind::kList, line);
  while (!accept_operator("]")) {
    adopt(*list, parse_expression());
    if (!is_operator("]")) expect_operator(",");
  }
  return list;
}

ExprPtr ExpressionParser::parse_dict(int line) {
  ExprPtr dict = make(ExprKind::kDict, line);
  while (!accept_operator("}")) {
    adopt(*dict, parse_expression());
    expect_operator(":");
    adopt(*dict, parse_expression());
    if (!is_operator("}")) expect_operator(",");
  }
  return dict;
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr expr) {
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
      parse_arguments(*expr);
    } else {
      return expr;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr object, int line) {
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

ExprPtr ExpressionParser::parse_argument(Expr& call) {
  ExprPtr argument = parse_expression();
  deepen(call, *argument);
  return argument;
}

void ExpressionParser::parse_named_argument(Expr& call) {
  std::string name = take().text;
  take();
  for (const auto& given : call.arguments.named) {
    if (given.first == name) fail("keyword argument repeated: " + name);
  }
  call.arguments.named.emplace_back(std::move(name), parse_argument(call));
}

// Positional ones, then named ones and one *list in any order, then one **dict.
void ExpressionParser::parse_arguments(Expr& call) {
  CallArguments& arguments = call.arguments;
  expect_operator("(");
  while (!accept_operator(")")) {
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
    if (!is_operator(")")) expect_operator(",");
  }
}

ExprPtr ExpressionParser::parse_filter(ExprPtr expr) {
  const int line = now().line;
  std::string name = expect_identifier();
  if (!is_filter(name)) fail(fmt::format("filter \"{}\" is not supported", name));
  expr = node(ExprKind::kFilter, line, std::move(name), std::move(expr));
  if (is_operator("(")) parse_arguments(*expr);
  return expr;
}

ExprPtr ExpressionParser::parse_filters(ExprPtr expr) {
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

ExprPtr ExpressionParser::parse_test(ExprPtr subject) {
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

bool ExpressionParser::begins_test_argument() const {
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

}  // namespace lora_train::tokenizer::jinja
