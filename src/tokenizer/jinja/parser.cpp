#include "parser.h"

#include <fmt/core.h>

#include "expression_parser.h"

namespace lora_train::tokenizer::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  ParsedTemplate run() {
    ParsedTemplate parsed;
    parsed.body = parse_block({});
    parsed.has_generation = has_generation_;
    return parsed;
  }

 private:
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
      end_block();
      return {word == "break" ? StatementKind::kBreak : StatementKind::kContinue, line};
    }
    fail("statement {% " + word +
         " %} is not supported; expected one of if, for, set, with, filter, macro, call, generation, raw, break, "
         "continue");
  }

  // A body up to {% `end` %}, including both tags' ends.
  Block parse_body(std::string_view end) {
    end_block();
    Block body = parse_block({end});
    take();
    return body;
  }

  // A body that is its own function in Jinja: no break out of it, and its own caller, varargs, kwargs.
  Block parse_function_body(std::string_view end, Signature& signature) {
    const int loops = std::exchange(loops_, 0);
    const UsedNames outer = std::exchange(used_, {});
    Block body = parse_body(end);
    signature.uses_caller = used_.caller;
    signature.uses_varargs = used_.varargs;
    signature.uses_kwargs = used_.kwargs;
    used_ = outer;
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
      if (word == "else") {
        statement.blocks.push_back(parse_body("endif"));
      }
      end_block();
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
    end_block();
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
      end_block();
      return statement;
    }
    statement.kind = StatementKind::kSetBlock;
    if (is_operator("|")) statement.expr = parse_filters(captured(line));
    statement.blocks.push_back(parse_body("endset"));
    end_block();
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
    end_block();
    return statement;
  }

  Statement parse_filter_block(int line) {
    Statement statement{StatementKind::kFilterBlock, line};
    statement.expr = parse_filters(parse_filter(captured(line)));
    statement.blocks.push_back(parse_body("endfilter"));
    end_block();
    return statement;
  }

  void parse_signature(Signature& signature) {
    expect_operator("(");
    while (!accept_operator(")")) {
      signature.names.push_back(expect_identifier());
      if (accept_operator("="))
        signature.defaults.push_back(parse_expression());
      else if (!signature.defaults.empty())
        fail("a parameter without a default follows one with a default");
      if (!is_operator(")")) expect_operator(",");
    }
  }

  Statement parse_macro(int line) {
    Statement statement{StatementKind::kMacro, line};
    statement.text = expect_identifier();
    parse_signature(statement.signature);
    statement.blocks.push_back(parse_function_body("endmacro", statement.signature));
    if (now().kind == TokenKind::kName) take();
    end_block();
    return statement;
  }

  Statement parse_call(int line) {
    Statement statement{StatementKind::kCallBlock, line};
    if (is_operator("(")) parse_signature(statement.signature);
    statement.expr = parse_expression();
    if (statement.expr->kind != ExprKind::kCall) fail("{% call %} needs a call of a macro");
    statement.blocks.push_back(parse_function_body("endcall", statement.signature));
    end_block();
    return statement;
  }

  Statement parse_generation(int line) {
    Statement statement{StatementKind::kGeneration, line};
    has_generation_ = true;
    Signature none;
    statement.blocks.push_back(parse_function_body("endgeneration", none));
    used_.caller |= none.uses_caller;
    used_.varargs |= none.uses_varargs;
    used_.kwargs |= none.uses_kwargs;
    end_block();
    return statement;
  }

  int loops_ = 0;
  bool has_generation_ = false;
};

}  // namespace

ParsedTemplate parse(std::string_view source, const std::string& name) {
  return Parser(tokenize(source, name), name).run();
}

}  // namespace lora_train::tokenizer::jinja
