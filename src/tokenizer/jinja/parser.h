// Parses tokens into a syntax tree.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "value.h"

namespace lora_train::tokenizer::jinja {

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

/// The parameters of a macro or of the body of a call block.
struct Signature {
  std::vector<std::string> names;
  std::vector<ExprPtr> defaults;  ///< for the last parameters
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
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

}  // namespace lora_train::tokenizer::jinja
