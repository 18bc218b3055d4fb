// Values of the template language, like Python's, converted from and to JSON; text that knows where its bytes come
// from; and the time and memory budget of one rendering. Creating or walking a value spends from it, so that neither a
// template nor a chat can exhaust time or memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lora_train/base/stop_request.h"

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

}  // namespace lora_train::tokenizer::jinja
