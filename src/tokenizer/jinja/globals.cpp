// The functions that every template can call.
#include <atomic>
#include <ctime>

#include "builtins.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::tokenizer {
namespace {

std::atomic<std::int64_t> fixed_time{-1};

}  // namespace

void set_template_time(std::int64_t unix_s) { fixed_time = unix_s; }

std::int64_t template_time() {
  const std::int64_t fixed = fixed_time;
  return fixed >= 0 ? fixed : static_cast<std::int64_t>(std::time(nullptr));
}

namespace jinja {
namespace {

Value make_range(const Arguments& arguments) {
  std::int64_t parts[3] = {0, 0, 1};
  const std::size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty()) throw RenderError{"range expected 1 to 3 arguments"};
  for (std::size_t i = 0; i < count; ++i) {
    if (!arguments.positional[i].is_whole()) throw RenderError{"range() takes integers"};
    parts[count == 1 ? 1 : i] = arguments.positional[i].whole();
  }
  if (parts[2] == 0) throw RenderError{"range() arg 3 must not be zero"};
  List out;
  for (std::int64_t i = parts[0]; parts[2] > 0 ? i < parts[1] : i > parts[1];) {
    if (out.size() >= 100000) throw RenderError{"a range of more than 100,000 items", true, true};
    out.push_back(i);
    if (__builtin_add_overflow(i, parts[2], &i)) break;
  }
  return {std::move(out), ListKind::kRange};
}

Value make_dict(const Arguments& arguments, bool is_namespace) {
  Dict dict;
  for (const Value& source : arguments.positional) {
    if (arguments.positional.size() > 1) throw RenderError{"namespace() and dict() take one dictionary at most"};
    if (source.as_dict() == nullptr || source.as_namespace() != nullptr)
      throw RenderError{"namespace() or dict() of something other than a dictionary is not supported", true};
    for (const auto& [key, value] : source.as_dict()->items) dict.set(key, value);
  }
  for (const auto& [key, value] : arguments.named) dict.set(key, value);
  for (const auto& item : dict.items) {
    if (is_namespace && item.second.holds_mutable())
      throw RenderError{"a namespace or loop inside a namespace is not supported", true};
  }
  dict.is_namespace = is_namespace;
  return dict;
}

Value format_now(const Arguments& arguments) {
  check_arguments("strftime_now", arguments, {"format"});
  const Value& format = required(arguments, 0, "format");
  if (format.as_text() == nullptr) throw RenderError{"strftime_now takes a string"};
  if (format.as_text()->empty()) return Text();
  if (format.as_text()->size() > 256) throw RenderError{"a time format of more than 256 bytes is not supported", true};
  const auto now = static_cast<std::time_t>(template_time());
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(65536, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.as_text()->bytes().c_str(), &local));
  return Value::string(out);
}

Value raise_exception(const Arguments& arguments) {
  const Value* message = arguments.get(0, "message");
  throw RenderError{message == nullptr ? "the template refuses this chat" : message->str().bytes()};
}

}  // namespace

std::optional<Value> find_global(const std::string& name) {
  if (name == "range") return Callable{name, make_range};
  if (name == "namespace") return Callable{name, [](const Arguments& a) { return make_dict(a, true); }};
  if (name == "dict") return Callable{name, [](const Arguments& a) { return make_dict(a, false); }};
  if (name == "strftime_now") return Callable{name, format_now};
  if (name == "raise_exception") return Callable{name, raise_exception};
  if (name != "cycler" && name != "joiner" && name != "lipsum") return std::nullopt;
  return Callable{name, [name](const Arguments&) -> Value { throw RenderError{name + "() is not supported", true}; }};
}

}  // namespace jinja
}  // namespace lora_train::tokenizer
