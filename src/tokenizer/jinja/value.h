// Values of the template language, as Python has them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text.h"

namespace lora_train::tokenizer::jinja {

/// What goes wrong while a template runs; the evaluator adds the line and makes a DataError of it (the chat does not
/// suit the template) or a FormatError (not built, or beyond a limit).
struct RenderError {
  std::string message;
  bool is_format = false;
};

class Value;
using List = std::vector<Value>;

/// An ordered dictionary with string keys. Small, so it is searched linearly.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
  bool is_namespace = false;
  int message = -1;  ///< index in the chat when this is one of its messages
  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};

/// Positional and named arguments of a call.
struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
  /// The argument at `index` or named `name`; null when it is not given.
  const Value* get(std::size_t index, std::string_view name) const;
};

/// What `loop` is inside a for.
struct Loop {
  const List* items = nullptr;
  std::size_t index0 = 0;
  int depth = 1;
};

struct Undefined {
  std::string name;  ///< what was looked for, for messages
};
struct None {};
struct Callable {
  std::string name;
  std::function<Value(const Arguments&)> call;
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const Text>,
                            std::shared_ptr<List>, std::shared_ptr<Dict>, std::shared_ptr<const Callable>, Loop>;

  Value() : data(Undefined{}) {}
  Value(None) : data(None{}) {}  // NOLINT: values are made implicitly all over the evaluator
  Value(Undefined undefined) : data(std::move(undefined)) {}                 // NOLINT
  Value(bool value) : data(value) {}                                         // NOLINT
  Value(std::int64_t value) : data(value) {}                                 // NOLINT
  Value(double value) : data(value) {}                                       // NOLINT
  Value(Text text) : data(std::make_shared<const Text>(std::move(text))) {}  // NOLINT
  Value(List list);                                                          // NOLINT: RenderError beyond kMaxDepth
  Value(Dict dict);                                                          // NOLINT: as above
  Value(Callable callable) : data(std::make_shared<const Callable>(std::move(callable))) {}  // NOLINT
  Value(Loop loop) : data(loop) {}                                                           // NOLINT
  Value(const char*) = delete;
  static Value string(std::string_view bytes, Origin origin = kTemplate) { return Text(bytes, origin); }
  static Value integer(std::size_t value) { return static_cast<std::int64_t>(value); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data); }
  bool is_none() const { return std::holds_alternative<None>(data); }
  const bool* as_bool() const { return std::get_if<bool>(&data); }
  const std::int64_t* as_int() const { return std::get_if<std::int64_t>(&data); }
  const double* as_double() const { return std::get_if<double>(&data); }
  const Text* as_text() const { return pointee<std::shared_ptr<const Text>>(); }
  const List* as_list() const { return pointee<std::shared_ptr<List>>(); }
  const Dict* as_dict() const { return pointee<std::shared_ptr<Dict>>(); }
  Dict* as_namespace() const;
  const Callable* as_callable() const { return pointee<std::shared_ptr<const Callable>>(); }
  const Loop* as_loop() const { return std::get_if<Loop>(&data); }
  bool is_number() const { return as_bool() != nullptr || as_int() != nullptr || as_double() != nullptr; }
  /// Of a number; booleans count as 0 and 1.
  double number() const;
  /// Of an int or bool; call only on those.
  std::int64_t whole() const;
  bool is_whole() const { return as_bool() != nullptr || as_int() != nullptr; }

  bool truth() const;
  /// Python's name of the type, for messages.
  std::string type_name() const;
  /// str(): what {{ }} writes.
  Text str() const;
  std::string repr() const;

  /// Lists and dictionaries inside each other, this one included, so that walking and freeing them is safe.
  static constexpr int kMaxDepth = 100;
  int depth() const { return depth_; }
  /// A list that Python would have made a tuple; only repr() tells.
  static Value tuple(List list) {
    Value value(std::move(list));
    value.is_tuple_ = true;
    return value;
  }
  /// Namespaces are the only values that change, so the only ones that could come to hold themselves.
  bool holds_namespace() const { return holds_namespace_; }

  Data data;

 private:
  void hold(const Value& item);

  template <class Pointer>
  auto pointee() const -> decltype(std::get<Pointer>(data).get()) {
    const auto* pointer = std::get_if<Pointer>(&data);
    return pointer == nullptr ? nullptr : pointer->get();
  }

  int depth_ = 0;
  bool holds_namespace_ = false, is_tuple_ = false;
};

bool equal(const Value& a, const Value& b);

/// DataError when nested deeper than Value::kMaxDepth. Every string in it gets the origin; at the top level of a
/// message, role and content have their own.
Value from_json(const nlohmann::ordered_json& json, Origin origin = kTemplate, int depth = 0);
Value message_from_json(const nlohmann::ordered_json& json, int message);

/// json.dumps(value, ensure_ascii=..., indent=...) of Python; `indent` < 0 = one line.
std::string to_json(const Value& value, int indent = -1, bool ensure_ascii = false, bool sort_keys = false);

/// repr() of a float in Python.
std::string float_repr(double value);

}  // namespace lora_train::tokenizer::jinja
