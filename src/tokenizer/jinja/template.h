// A template as tokens and as a syntax tree, and what running it gives.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lora_train/base/error.h"
#include "value.h"

namespace lora_train::tokenizer::jinja {

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  std::string text;  ///< strings: unescaped
  int line;
};

/// Walks the tokens of a template. FormatError (name:line) for what is not expected.
class TokenReader {
 public:
  /// `name` appears in messages.
  TokenReader(std::string_view source, const std::string& name);

 protected:
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
    if (!accept_operator(text)) fail(fmt::format("expected \"{}\", found {}", text, found()));
  }
  void expect_kind(TokenKind kind, const char* what) {
    if (now().kind != kind) fail(fmt::format("expected {}, found {}", what, found()));
    take();
  }
  std::string expect_identifier() {
    if (now().kind != TokenKind::kName) fail("expected a name, found " + found());
    return take().text;
  }
  Value take_integer();
  Value take_float();

 private:
  const std::string& name_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

/// Arguments as written: positional ones first.
struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr unpacked = {}, unpacked_named = {};  ///< *list, **dict; null for none
};

enum class ExprKind {
  kLiteral,    // value
  kName,       // text
  kList,       // children; text is "tuple" if commas or parentheses made it
  kDict,       // children: key, value, key, value, ...
  kAttribute,  // children[0] . text
  kSubscript,  // children[0] [ children[1] ]
  kSlice,      // children[0] [ children[1] : children[2] : children[3] ], null = omitted
  kCall,       // children[0] ( arguments )
  kFilter,     // children[0] | text ( arguments )
  kTest,       // children[0] is text ( arguments )
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kBinary,     // text: + - * / // % ** ~
  kCompare,    // children[0] names[i] children[i + 1] ...; names: == != < <= > >= in, "not in"
  kCondition,  // children: then, if, else (null = undefined)
  kCaptured    // the output of the block to which a chain of filters is applied
};

struct Expr {
  ExprKind kind;
  int line = 0;
  std::string text = {};
  Value value = {};
  std::vector<ExprPtr> children = {};
  std::vector<std::string> names = {};
  CallArguments arguments = {};
  int depth = 1;  ///< of the tree, including this node; the parser bounds it, so recursion is safe
};

enum class StatementKind {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kWith,
  kFilterBlock,
  kMacro,
  kCallBlock,
  kGeneration,
  kBreak,
  kContinue
};

struct Statement;
using Block = std::vector<Statement>;

/// An assignment target: a name, or parts that each take one item of the value.
struct Target {
  std::string name;
  std::vector<Target> parts;
};

/// The names with a meaning in macros that occur in a body.
struct UsedNames {
  bool caller = false, varargs = false, kwargs = false;
};

/// The parameters of a macro or of the body of a call block.
struct Signature {
  std::vector<std::string> names;
  std::vector<ExprPtr> defaults;  ///< for the last parameters
  UsedNames uses = {};
};

struct Statement {
  StatementKind kind;
  int line = 0;
  std::string text = {};                 // kText; the name of a macro
  ExprPtr expr = {};                     // kPrint, kSet, kFor: the iterable; kCallBlock: the call;
                                         // kSetBlock, kFilterBlock: filters on kCaptured, null if none
  ExprPtr filter = {};                   // kFor: for x in y if filter
  bool is_recursive = false;             // kFor
  std::vector<Target> targets = {};      // kFor and kSet: one; kWith: one per value
  std::string attribute = {};            // set name.attribute = ...
  Signature signature = {};              // kMacro, kCallBlock
  std::vector<ExprPtr> conditions = {};  // kIf: one per branch except else; kWith: the values
  std::vector<Block> blocks = {};        // kIf: branches, then else; kFor: body, else; one for the others
};

struct ParsedTemplate {
  Block body;
  bool has_generation = false;  ///< true if it has {% generation %}
};

/// FormatError (name:line) for invalid syntax, for unsupported statements, filters and tests, and for nesting deeper
/// than 64.
ParsedTemplate parse(std::string_view source, const std::string& name);

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

}  // namespace lora_train::tokenizer::jinja
