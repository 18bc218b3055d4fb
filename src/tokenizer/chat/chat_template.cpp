#include "lora_train/tokenizer/chat/chat_template.h"

#include <algorithm>
#include <set>

#include "assistant_spans.h"
#include "audit.h"
#include "jinja/evaluator.h"
#include "jinja/json.h"
#include "jinja/parser.h"
#include "json/json_place.h"
#include "lora_train/base/hash.h"
#include "lora_train/storage/model_file.h"
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
  if (message.json.empty()) {
    return jinja::message_from_json({{"role", message.role}, {"content", message.content}}, index);
  }
  const std::string what = "messages[" + std::to_string(index) + "]";
  return jinja::message_from_json(parse_row_json(message.json, what.c_str(), OrderedJson::value_t::object), index);
}

bool is_assistant(const Message& message) { return message.role == "assistant"; }

constexpr std::size_t kLargeChatBytes = std::size_t{1} << 20U;

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
    generation_prompt_ = find_generation_prompt();
  }

  RenderedChat render(std::span<const Message> messages, const RenderOptions& options) const override {
    const jinja::Dict globals = variables(messages, options);
    // What a large chat makes of an innocent template is the row's fault.
    const bool is_large = chat_bytes(messages, options) > kLargeChatBytes;
    jinja::Rendered rendered = jinja::run(parsed_, globals, name_, {.blames_chat = is_large});
    RenderedChat chat;
    const auto& turns = parsed_.has_generation ? rendered.generations : rendered.turns;
    for (const jinja::Region& turn : turns) {
      if (!parsed_.has_generation && !is_assistant(messages[static_cast<std::size_t>(turn.message)])) continue;
      const ByteRange span = parsed_.has_generation ? ByteRange(static_cast<std::uint32_t>(turn.begin),
                                                                static_cast<std::uint32_t>(turn.end))
                                                    : assistant_span(rendered.text, turn, generation_prompt_);
      if (span.first >= span.second) continue;
      chat.spans.push_back(span);
      chat.span_message.push_back(turn.message);
    }
    chat.omissions = find_omissions(globals, rendered.text);
    chat.text = rendered.text.bytes();
    return chat;
  }

  const std::string& source() const override { return source_; }
  const std::string& name() const override { return name_; }

 private:
  // What the template appends for a question when an answer is to follow; "" when it cannot be told.
  std::string find_generation_prompt() const {
    const std::vector<Message> question = {{"user", "Hi"}};
    try {
      const auto render_question = [&](bool with_prompt) {
        const jinja::Dict globals = variables(question, {.add_generation_prompt = with_prompt});
        return jinja::run(parsed_, globals, name_, {.steps = 20000, .bytes = std::size_t{8} << 20U}).text.bytes();
      };
      const std::string without = render_question(false), with = render_question(true);
      return with.starts_with(without) ? with.substr(without.size()) : std::string();
    } catch (const StopError&) {
      throw;
    } catch (const Error&) {
      return {};  // it refuses this chat, which says nothing about others
    }
  }

  static std::size_t chat_bytes(std::span<const Message> messages, const RenderOptions& options) {
    std::size_t bytes = options.tools_json.size() + options.kwargs_json.size();
    for (const Message& message : messages) bytes += message.content.size() + message.json.size();
    return bytes;
  }

  jinja::Dict variables(std::span<const Message> messages, const RenderOptions& options) const {
    try {
      return make_variables(messages, options);
    } catch (const jinja::RenderError& error) {
      throw DataError("", "the chat cannot be passed to the template: " + error.message);
    }
  }

  jinja::Dict make_variables(std::span<const Message> messages, const RenderOptions& options) const {
    const jinja::Budget budget(jinja::Limits{});
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
      for (const auto& [key, value] : kwargs.items()) {
        if (key == "messages" || key == "tools" || key == "documents" || key == "add_generation_prompt")
          throw DataError("chat_template_kwargs", "\"" + key + "\" is set by the trainer itself; remove it");
        variables.set(key, jinja::from_json(value));
      }
    }
    return variables;
  }

  std::string source_, name_, generation_prompt_;
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
  if (std::filesystem::exists(file)) return parse(storage::read_model_file(file), file.string(), folder);
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

namespace {

/// The trained tokens behind an answer; empty if there are none, or the template refuses the chat.
struct EndOfTurn {
  std::vector<std::int32_t> ids = {};
  std::string text = {};
};

EndOfTurn end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const std::string answer = "Yes.";
  const std::vector<Message> chat = {{"user", "Hi"}, {"assistant", answer}};
  try {
    const RenderedChat rendered = chat_template.render(chat);
    if (rendered.spans.empty()) return {};
    const Encoding encoding = tokenizer.encode(rendered.text, /*with_offsets=*/true);
    const auto trained = trained_tokens(encoding.offsets, rendered.spans);
    const std::size_t answer_end = rendered.text.rfind(answer) + answer.size();
    EndOfTurn end;
    std::size_t text_end = answer_end;
    for (std::size_t i = 0; i < trained.size(); ++i) {
      if (trained[i] == 0 || encoding.offsets[i].first < answer_end) continue;
      end.ids.push_back(encoding.ids[i]);
      text_end = encoding.offsets[i].second;
    }
    end.text = rendered.text.substr(answer_end, text_end - answer_end);
    return end;
  } catch (const StopError&) {
    throw;
  } catch (const Error&) {
    return {};  // the template refuses this chat, which says nothing about others
  }
}

bool is_in_pieces(const EndOfTurn& end, const Tokenizer& tokenizer) {
  return end.ids.size() > 1 && std::ranges::none_of(end.ids, [&](std::int32_t id) { return tokenizer.is_special(id); });
}

}  // namespace

std::optional<std::int32_t> end_of_turn_id(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const EndOfTurn end = end_of_turn(chat_template, tokenizer);
  return end.ids.empty() || is_in_pieces(end, tokenizer) ? std::nullopt : std::optional(end.ids.back());
}

std::optional<std::string> end_of_turn_in_pieces(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const EndOfTurn end = end_of_turn(chat_template, tokenizer);
  return is_in_pieces(end, tokenizer) ? std::optional(end.text) : std::nullopt;
}

std::vector<std::int32_t> stop_token_ids(const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  const auto& of_file = tokenizer.generation_eos_ids();
  std::set<std::int32_t> ids(of_file.begin(), of_file.end());
  if (tokenizer.eos_id()) ids.insert(*tokenizer.eos_id());
  if (chat_template != nullptr) {
    if (const auto id = end_of_turn_id(*chat_template, tokenizer)) ids.insert(*id);
  }
  return {ids.begin(), ids.end()};
}

std::vector<std::uint8_t> trained_tokens(std::span<const ByteRange> offsets, std::span<const ByteRange> spans) {
  std::vector<std::uint8_t> trained(offsets.size(), 0);
  std::size_t first = 0;  // spans before it end before every token still to come
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const auto [begin, end] = offsets[i];
    while (first < spans.size() && spans[first].second <= begin) ++first;
    trained[i] = first < spans.size() && spans[first].first < end && begin < end ? 1 : 0;
  }
  return trained;
}

}  // namespace lora_train::tokenizer
