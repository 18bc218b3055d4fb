#include "parser.h"

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
      if (accept_operator("="))
        statement.conditions.push_back(parse_expression());
      else if (!statement.conditions.empty())
        fail("a parameter without a default follows one with a default");
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

  int loops_ = 0;
  bool has_generation_ = false;
};

}  // namespace

ParsedTemplate parse(std::string_view source, const std::string& name) {
  return Parser(tokenize(source, name), name).run();
}

}  // namespace lora_train::tokenizer::jinja
