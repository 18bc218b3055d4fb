#include "lora_train/tokenizer/chat_template.h"

#include <algorithm>

#include "assistant_spans.h"
#include "jinja/evaluator.h"
#include "jinja/parser.h"
#include "json_place.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Rows are the caller's, so what is wrong with their JSON is a DataError.
OrderedJson parse_row_json(const std::string& text, const char* what, OrderedJson::value_t type) {
  OrderedJson json = OrderedJson::parse(text, nullptr, false);
  if (json.is_discarded() || json.type() != type) {
    throw DataError(what, type == OrderedJson::value_t::array ? "expected a JSON array" : "expected a JSON object");
  }
  return json;
}

jinja::Value message_value(const Message& message, int index) {
  OrderedJson json = {{"role", message.role}, {"content", message.content}};
  if (!message.extra_json.empty()) {
    const std::string what = "messages[" + std::to_string(index) + "]";
    const OrderedJson extra = parse_row_json(message.extra_json, what.c_str(), OrderedJson::value_t::object);
    for (const auto& [key, value] : extra.items()) json[key] = value;
  }
  return jinja::message_from_json(json, index);
}

bool is_assistant(const Message& message) { return message.role == "assistant"; }

std::vector<bool> rendered_contents(std::span<const Message> messages, const jinja::Text& text) {
  std::vector<bool> rendered(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) rendered[i] = messages[i].content.empty();
  for (const auto& run : text.runs()) {
    const int message = jinja::message_of(run.origin);
    if (message >= 0 && jinja::field_of(run.origin) == jinja::Field::kContent)
      rendered[static_cast<std::size_t>(message)] = true;
  }
  return rendered;
}

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(std::string source, std::string name, const std::filesystem::path& folder)
      : source_(std::move(source)), name_(std::move(name)), parsed_(jinja::parse(source_, name_)) {
    std::string identity = source_;
    if (!folder.empty()) {
      for (const auto& [key, token] : read_special_tokens(folder).named) {
        if (token) special_tokens_.set(key, jinja::Value::string(*token));
        identity += '\0' + key + '=' + token.value_or("");
      }
    }
    fingerprint_ = hash128_hex(identity);
  }

  RenderedChat render(std::span<const Message> messages, const RenderOptions& options) const override {
    jinja::Rendered rendered = jinja::run(parsed_, variables(messages, options), name_);
    RenderedChat chat;
    const auto& turns = parsed_.has_generation ? rendered.generations : rendered.turns;
    for (const jinja::Region& turn : turns) {
      if (!parsed_.has_generation && !is_assistant(messages[static_cast<std::size_t>(turn.message)])) continue;
      const ByteRange span = parsed_.has_generation ? ByteRange(static_cast<std::uint32_t>(turn.begin),
                                                                static_cast<std::uint32_t>(turn.end))
                                                    : assistant_span(rendered.text, turn);
      if (span.first >= span.second) continue;
      chat.spans.push_back(span);
      chat.span_message.push_back(turn.message);
    }
    chat.content_rendered = rendered_contents(messages, rendered.text);
    chat.text = rendered.text.bytes();
    return chat;
  }

  const std::string& source() const override { return source_; }
  const std::string& name() const override { return name_; }

 private:
  jinja::Dict variables(std::span<const Message> messages, const RenderOptions& options) const {
    jinja::Dict variables = special_tokens_;
    jinja::List list;
    for (std::size_t i = 0; i < messages.size(); ++i) list.push_back(message_value(messages[i], static_cast<int>(i)));
    variables.set("messages", std::move(list));
    variables.set("add_generation_prompt", options.add_generation_prompt);
    // Hugging Face always passes tools and documents; what is not given is None.
    variables.set("documents", jinja::None{});
    variables.set("tools", options.tools_json.empty() ? jinja::Value(jinja::None{})
                                                      : jinja::from_json(parse_row_json(options.tools_json, "tools",
                                                                                        OrderedJson::value_t::array)));
    if (!options.kwargs_json.empty()) {
      const OrderedJson kwargs =
          parse_row_json(options.kwargs_json, "chat_template_kwargs", OrderedJson::value_t::object);
      for (const auto& [key, value] : kwargs.items()) variables.set(key, jinja::from_json(value));
    }
    return variables;
  }

  std::string source_, name_;
  jinja::ParsedTemplate parsed_;
  jinja::Dict special_tokens_;
};

// chat_template of tokenizer_config.json: a string, or a list of named ones.
std::string template_of_config(const JsonPlace& place) {
  if (!place.value().is_array()) return place.string();
  std::vector<std::string> names;
  for (const JsonPlace& entry : place.elements()) {
    names.push_back(entry.at("name").string());
    if (names.back() == "default") return entry.at("template").string();
  }
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  place.fail("no template named \"default\" among: " + known + "; put the one you want into chat_template.jinja");
}

}  // namespace

std::unique_ptr<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder) {
  const auto file = folder / "chat_template.jinja", config = folder / "tokenizer_config.json";
  if (std::filesystem::exists(file)) return parse(read_file(file), file.string(), folder);
  if (std::filesystem::exists(config)) {
    const Json json = parse_json_file(config);
    if (const auto place = JsonPlace(json, config.string()).find("chat_template")) {
      return parse(template_of_config(*place), place->where(), folder);
    }
  }
  throw FormatError(folder.string(),
                    "no chat template: neither chat_template.jinja nor chat_template in "
                    "tokenizer_config.json; set chat_template to a .jinja file");
}

std::unique_ptr<ChatTemplate> ChatTemplate::parse(std::string source, std::string name,
                                                  const std::filesystem::path& folder) {
  return std::make_unique<JinjaChatTemplate>(std::move(source), std::move(name), folder);
}

}  // namespace lora_train::tokenizer
