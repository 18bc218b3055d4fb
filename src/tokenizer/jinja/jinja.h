// The template language of chat templates, Jinja. Values are like Python's, converted from and to JSON; a text knows
// where its bytes come from; creating or walking a value spends from the time and memory budget of one rendering, so
// that neither a template nor a chat can exhaust them. Then filters, tests, methods, global functions and operators;
// and a template as tokens, as a syntax tree, and what running it gives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer::jinja {

/// An error in a running template; run() adds the line and turns it into a DataError (the chat does not suit the
/// template) or a FormatError (unsupported, or over a limit).
struct RenderError {
  std::string message;
  bool is_format = false, is_limit = false;
};

struct Limits {
  std::size_t steps = 1000000;                 ///< statements and expressions evaluated
  std::size_t bytes = std::size_t{512} << 20;  ///< in values made or walked through
  bool blames_chat = false;                    ///< exceeding them is a DataError, not a FormatError
};

/// This thread's budget while it lives; an outer one is suspended meanwhile.
class Budget {
 public:
  explicit Budget(const Limits& limits);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

 private:
  friend void spend_step();
  friend void spend_bytes(std::size_t bytes);

  Limits left_;
  StopPoll stop_poll_;
  const Limits given_;
  Budget* outer_;
};

/// RenderError if this thread's budget is used up, StopError on a stop request. Free without a budget.
void spend_step();
void spend_bytes(std::size_t bytes);

/// Where bytes come from: the template's own text, a field of a message of the chat, or something made from values,
/// possibly the chat's.
using Origin = std::int32_t;
enum class Field { kRole, kContent, kReasoning, kToolCalls, kOther };
inline constexpr int kNumFields = 5;
inline constexpr Origin kTemplate = 0, kComputed = -1;
inline Origin origin_of(int message, Field field) { return 1 + kNumFields * message + static_cast<int>(field); }
/// The index in the chat; -1 if none.
inline int message_of(Origin origin) { return origin <= 0 ? -1 : (origin - 1) / kNumFields; }
/// For an origin that has a message.
inline Field field_of(Origin origin) { return static_cast<Field>((origin - 1) % kNumFields); }

/// Size limit for any text.
inline constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20U;
/// RenderError if a text would exceed the limit.
void check_text_size(std::size_t bytes);

class Text {
 public:
  /// Bytes [previous run's end, end) share an origin.
  struct Run {
    std::size_t end;
    Origin origin;
  };

  Text() = default;
  Text(std::string_view bytes, Origin origin) { append(bytes, origin); }

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }

  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, std::size_t begin, std::size_t end);
  /// The run of byte `at`; the end for the size.
  std::vector<Run>::const_iterator run_at(std::size_t at) const;
  /// Bytes [begin, end).
  Text slice(std::size_t begin, std::size_t end) const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

class Value;
using List = std::vector<Value>;

/// An ordered dictionary with string keys. Small, so it is searched linearly.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
  bool is_namespace = false;
  int message = -1;  ///< index in the chat if this is one of its messages
  const Value* find(std::string_view key) const;
  /// RenderError for a namespace or loop inside a namespace.
  void set(const std::string& key, Value value);
};

/// Positional and named arguments of a call.
struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
  /// The argument at `index` or named `name`; null if not given.
  const Value* get(std::size_t index, std::string_view name) const;
};

struct Loop;
struct Undefined {
  std::string name;  ///< the name looked up, for messages
};
struct None {};
struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

/// The Python type behind our list. A generator is walked once: iterate() empties it.
enum class ListKind : std::uint8_t { kList, kTuple, kRange, kGenerator, kKeys, kValues, kItems };

class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<List>,
                   std::shared_ptr<Dict>, std::shared_ptr<const Callable>, std::shared_ptr<Loop>>;

  Value() : data(Undefined{}) {}
  Value(None) : data(None{}) {}  // NOLINT: values are made implicitly throughout the evaluator
  Value(Undefined undefined) : data(std::move(undefined)) {}  // NOLINT
  Value(bool value) : data(value) {}                          // NOLINT
  Value(std::int64_t value) : data(value) {}                  // NOLINT
  Value(double value) : data(value) {}                        // NOLINT
  Value(Text text);                                           // NOLINT
  Value(List list);                                           // NOLINT: RenderError beyond kMaxDepth
  Value(Dict dict);                                           // NOLINT: as above
  Value(Callable callable) : data(std::make_shared<const Callable>(std::move(callable))) {}  // NOLINT
  Value(std::shared_ptr<Loop> loop);                                                         // NOLINT
  Value(const char*) = delete;
  Value(List list, ListKind kind) : Value(std::move(list)) { list_kind_ = kind; }
  /// An item of groupby: a tuple whose items are also named grouper and list.
  static Value group(Value grouper, List items);
  /// A method of `object`, which it keeps alive.
  Value(Callable method, const Value& object);
  static Value string(std::string_view bytes, Origin origin = kTemplate) { return Text(bytes, origin); }
  static Value integer(std::size_t value) { return static_cast<std::int64_t>(value); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data); }
  /// RenderError for an undefined value.
  void check_defined() const;
  bool is_none() const { return std::holds_alternative<None>(data); }
  const bool* as_bool() const { return std::get_if<bool>(&data); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&data); }
  const double* as_double() const { return std::get_if<double>(&data); }
  const Text* as_text() const { return pointee<std::shared_ptr<const Text>>(); }
  const List* as_list() const { return pointee<std::shared_ptr<List>>(); }
  const Dict* as_dict() const { return pointee<std::shared_ptr<Dict>>(); }
  Dict* as_namespace() const;
  /// A dictionary that is no namespace.
  const Dict* as_mapping() const { return as_namespace() == nullptr ? as_dict() : nullptr; }
  const Callable* as_callable() const { return pointee<std::shared_ptr<const Callable>>(); }
  Loop* as_loop() const { return pointee<std::shared_ptr<Loop>>(); }
  bool is_number() const { return as_bool() != nullptr || as_int() != nullptr || as_double() != nullptr; }
  /// Value of a number; booleans count as 0 and 1.
  double number() const;
  /// Value of an int or bool; call only on those.
  std::int64_t whole() const;
  bool is_whole() const { return as_bool() != nullptr || as_int() != nullptr; }

  /// Meaningful for lists.
  ListKind list_kind() const { return list_kind_; }
  /// list, tuple or range: types with positions.
  bool is_indexable() const { return as_list() != nullptr && list_kind_ <= ListKind::kRange; }
  bool is_group() const { return is_group_; }
  bool is_generator() const { return as_list() != nullptr && list_kind_ == ListKind::kGenerator; }

  bool truth() const;
  /// Python's name of the type, for messages.
  std::string type_name() const;
  /// str(): what {{ }} writes. RenderError for values that print an address (functions, generators).
  Text str() const;
  std::string repr() const;

  /// Nesting of lists and dictionaries, including this one; bounded so that walking and freeing are safe.
  static constexpr int kMaxDepth = 100;
  int depth() const { return depth_; }
  /// Only namespaces and loops change, so only they could come to contain themselves.
  bool holds_mutable() const { return holds_mutable_; }

  Data data;

 private:
  void hold(const Value& item);

  template <class Pointer>
  auto pointee() const -> decltype(std::get<Pointer>(data).get()) {
    const auto* pointer = std::get_if<Pointer>(&data);
    return pointer == nullptr ? nullptr : pointer->get();
  }

  int depth_ = 0;
  bool holds_mutable_ = false, is_group_ = false;
  ListKind list_kind_ = ListKind::kList;
};

/// The `loop` variable inside a for.
struct Loop {
  List items;
  std::size_t index0 = 0;
  int depth = 1;                               ///< nesting of a recursive loop
  std::optional<List> changed;                 ///< argument of the last loop.changed() call
  std::function<Value(const Value&)> recurse;  ///< loop(items) in a recursive loop, else empty
};

bool equal(const Value& a, const Value& b);

/// Python's repr() of a float.
std::string float_repr(double value);

/// DataError if nested deeper than Value::kMaxDepth or with an integer beyond 64 bits. Every string in it gets the
/// origin; at the top level of a message, role and content have their own.
Value from_json(const nlohmann::ordered_json& json, Origin origin = kTemplate, int depth = 0);
Value message_from_json(const nlohmann::ordered_json& json, int message);
/// The field for a key of a message.
Field field_named(std::string_view key);

/// Options of Python's json.dumps.
struct JsonStyle {
  std::optional<std::string> indent = {};  ///< for one level; none = one line
  std::string item_separator = ", ", key_separator = ": ";
  bool ensure_ascii = false, sort_keys = false;
};
Text to_json(const Value& value, const JsonStyle& style = {});

struct Parameter {
  std::string name;
  std::optional<Value> fallback;  ///< none: the argument is required
};

/// The arguments of a builtin, by the position of its parameters.
struct Call {
  const std::string& who;  ///< for messages
  const Arguments& given;
  const std::vector<Parameter>& parameters;

  /// The argument or its default. RenderError if it is missing.
  const Value& operator[](std::size_t index) const;
  bool flag(std::size_t index) const { return (*this)[index].truth(); }
  /// A whole number; none stands for the default. RenderError for another type.
  std::int64_t integer(std::size_t index) const;
  /// A string, empty for none. RenderError for another type.
  std::optional<std::string> text(std::size_t index) const;
  /// RenderError for none.
  std::string required_text(std::size_t index) const;
};

struct Builtin {
  const char* names;       ///< separated by spaces
  const char* parameters;  ///< as Python writes them: "value, width=4"; "*" accepts anything
  std::function<Value(const Value& subject, const Call& call)> function;
};

class Builtins {
 public:
  Builtins(std::initializer_list<Builtin> builtins);
  bool contains(const std::string& name) const { return entries_.contains(name); }
  /// RenderError for arguments that are not in the parameters: no argument is ignored.
  Value call(const std::string& name, const std::string& who, const Value& subject, const Arguments& arguments) const;

 private:
  struct Entry {
    std::vector<Parameter> parameters;
    bool takes_anything;
    std::function<Value(const Value&, const Call&)> function;
  };
  std::unordered_map<std::string, Entry> entries_;
};

bool is_filter(const std::string& name);
bool is_test(const std::string& name);

/// `name` must be a filter (a test). RenderError for unsuitable arguments.
Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& input, const Arguments& arguments);

/// A bound method of a string, list, dictionary or loop; empty if there is none of that name.
std::optional<Value> find_method(const Value& object, const std::string& name);
/// range, namespace, dict, raise_exception, strftime_now; empty for other names. `time`: what strftime_now formats, in
/// seconds since 1970; undefined: the current time.
std::optional<Value> find_global(const std::string& name, const Value& time = {});

/// object.name and object[key], looked up as in Jinja. Undefined if not found.
Value get_attribute(const Value& object, const std::string& name);
Value get_item(const Value& object, const Value& key);
/// object[start:stop:step]; none for an omitted part.
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step);

/// The elements that a loop iterates over: list items, keys, characters. Empty for an undefined value. Leaves a
/// generator empty.
List iterate(const Value& value);
/// (key, value) of a mapping.
List pairs_of(const Value& mapping);
bool contains(const Value& container, const Value& item);
/// < 0, 0, > 0. RenderError for values without an order.
int compare(const Value& a, const Value& b);
Value binary(const std::string& op, const Value& left, const Value& right);
Value signed_number(const Value& value, bool negate);
/// Python's int(). RenderError beyond 64 bits.
Value truncated(double value);

/// Byte position of each character of a text, and the size at the end.
std::vector<std::size_t> char_positions(const std::string& text);

// Strings: functions that track where bytes come from. Characters are Unicode code points.

/// kTitle: Python's str.title(). kWordBegins: Jinja's filter title.
enum class Case { kUpper, kLower, kTitle, kCapitalize, kWordBegins };

/// Python's str.isspace().
bool is_space(std::uint32_t code);
/// Strips white space, or the characters of `chars`.
Text strip(const Text& text, const std::optional<std::string>& chars, bool left, bool right);
/// At most `limit` cuts (< 0: no limit), optionally counted from the right.
List split_by(const Text& text, const std::string& separator, std::int64_t limit, bool from_right);
List split_by_space(const Text& text, std::int64_t limit, bool from_right);
List split_lines(const Text& text, bool keep_ends);
Text change_case(const Text& text, Case to);
/// At most `limit` replacements (< 0: no limit).
Text replace(const Text& text, const std::string& old, const Text& with, std::int64_t limit);
Text join_texts(const List& items, const Text& separator);
std::size_t count_of(const std::string& text, const std::string& needle);
/// Charges for a search, whose time may be the product of both sizes.
void spend_search(std::size_t text_size, std::size_t needle_size);

/// How many characters a text lacks to a width. RenderError for a width beyond the limit of a text.
std::size_t missing_chars(const Text& text, std::size_t width);
/// Inserts `left` characters before byte `at`, and appends `right`; `fill` is one character.
Text pad(const Text& text, std::size_t at, std::size_t left, std::size_t right, std::string_view fill);

/// text % values.
Text percent_format(const Text& text, const Value& values);

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
