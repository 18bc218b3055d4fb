#include "lora_train/tokenizer/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <vector>

#include "jinja/jinja.h"
#include "json/json_place.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_output.h"
#include "special_tokens.h"
#include "tokenizer_files.h"

namespace lora_train::tokenizer {
namespace {

namespace fs = std::filesystem;
using jinja::Text;

using FieldBytes = std::array<std::size_t, jinja::kNumFields>;

std::string without_blanks(std::string_view text) {
  std::string out(text);
  std::erase_if(out, [](unsigned char c) { return std::isspace(c) != 0; });
  return out;
}

// All strings of a value, concatenated; without the wrapping of tool calls and parts (type, id), which many templates
// omit.
void append_strings(const jinja::Value& value, std::string& out, bool is_wrapped = false) {
  if (const auto* text = value.as_text()) out += text->bytes();
  if (const auto* list = value.as_list()) {
    for (const jinja::Value& item : *list) append_strings(item, out, is_wrapped);
  }
  if (const auto* dict = value.as_dict()) {
    for (const auto& [name, part] : dict->items) {
      if (!is_wrapped || (name != "type" && name != "id")) append_strings(part, out);
    }
  }
}

// Finds texts in another one, all without blanks; each search first continues after the last match.
class InkSearch {
 public:
  explicit InkSearch(const std::string& text) : ink_(without_blanks(text)) {}
  bool has(const std::string& wanted) {
    std::size_t at = find(wanted, from_);
    if (at == std::string::npos) at = find(wanted, 0);
    if (at == std::string::npos) return false;
    from_ = at + wanted.size();
    return true;
  }

 private:
  /// Linear time, which std::string::find() does not guarantee.
  std::size_t find(const std::string& wanted, std::size_t from) const {
    const void* const found = ::memmem(ink_.data() + from, ink_.size() - from, wanted.data(), wanted.size());
    return found == nullptr ? std::string::npos
                            : static_cast<std::size_t>(static_cast<const char*>(found) - ink_.data());
  }

  std::string ink_;
  std::size_t from_ = 0;
};

const jinja::Value* member(const jinja::Value& value, const char* name) {
  return value.as_dict() == nullptr ? nullptr : value.as_dict()->find(name);
}

// The text that a template must write to show a tool: its name, or its first text if it has no name.
std::string mark_of(const jinja::Value& tool) {
  const jinja::Value* const function = member(tool, "function");
  const jinja::Value* const name = member(function == nullptr ? tool : *function, "name");
  std::string strings;
  append_strings(name == nullptr ? tool : *name, strings);
  return strings;
}

/// What reached the text.
struct Shown {
  std::vector<FieldBytes> ink;  ///< of each message's fields
  std::string own_text;         ///< without parts from messages: a call of a tool there does not show the tool
};

Shown find_shown(std::size_t num_messages, const jinja::Text& text) {
  Shown shown{std::vector<FieldBytes>(num_messages, FieldBytes{}), {}};
  std::size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    const std::string_view bytes = std::string_view(text.bytes()).substr(begin, run.end - begin);
    if (const int message = jinja::message_of(run.origin); message >= 0)
      shown.ink[static_cast<std::size_t>(message)][static_cast<std::size_t>(jinja::field_of(run.origin))] +=
          without_blanks(bytes).size();
    else if (run.origin == jinja::kTemplate)
      shown.own_text += bytes;
    begin = run.end;
  }
  return shown;
}

/// Ordered by message, tools last. `variables` hold the messages and tools rendered to `text`.
std::vector<Omission> find_omissions(const jinja::Dict& variables, const jinja::Text& text, const Shown& shown) {
  const jinja::List& messages = *variables.find("messages")->as_list();
  std::optional<InkSearch> search;
  std::vector<Omission> omissions;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    for (const auto& [key, value] : messages[i].as_dict()->items) {
      const jinja::Field field = jinja::field_named(key);
      if (field == jinja::Field::kRole || field == jinja::Field::kOther) continue;
      std::string strings;
      append_strings(value, strings, field == jinja::Field::kToolCalls || field == jinja::Field::kContent);
      const std::string wanted = without_blanks(strings);
      const std::size_t rendered = shown.ink[i][static_cast<std::size_t>(field)];
      if (rendered >= wanted.size()) continue;
      // A template may write part of a content itself (think tags) or through repr(): the text still has it.
      if (!search) search.emplace(text.bytes());
      if (!search->has(wanted)) omissions.push_back({static_cast<int>(i), key, rendered > 0});
    }
  }
  const jinja::Value* tools = variables.find("tools");
  if (tools == nullptr || tools->as_list() == nullptr) return omissions;
  const auto num_shown = std::ranges::count_if(*tools->as_list(), [&](const jinja::Value& tool) {
    return shown.own_text.find(mark_of(tool)) != std::string::npos;
  });
  if (num_shown < std::ssize(*tools->as_list())) omissions.push_back({Omission::kTools, "tools", num_shown > 0});
  return omissions;
}

bool is_role(jinja::Origin origin) {
  return jinja::message_of(origin) >= 0 && jinja::field_of(origin) == jinja::Field::kRole;
}

// Position after the last role that the turn writes before anything else from the chat; if there is none, the turn's
// start.
std::size_t behind_role(const Text& text, const jinja::Region& turn) {
  constexpr std::string_view kAssistant = "assistant";
  std::size_t behind = turn.begin;
  for (std::size_t at = turn.begin; at < turn.end;) {
    const Text::Run& run = *text.run_at(at);
    const std::size_t end = std::min(run.end, turn.end);
    if (is_role(run.origin)) behind = end;
    if (run.origin == jinja::kTemplate) {
      const std::size_t found = std::string_view(text.bytes()).substr(at, end - at).rfind(kAssistant);
      if (found != std::string_view::npos) behind = at + found + kAssistant.size();
    }
    if (run.origin != jinja::kTemplate && !is_role(run.origin)) break;
    at = end;
  }
  return behind;
}

// The template's own bytes from `at` up to the end of the turn.
std::string_view template_bytes(const Text& text, std::size_t at, std::size_t end) {
  if (at >= end) return {};
  const Text::Run& run = *text.run_at(at);
  if (run.origin != jinja::kTemplate) return {};
  return std::string_view(text.bytes()).substr(at, std::min(run.end, end) - at);
}

std::size_t skip(std::string_view bytes, std::string_view what) {
  const std::size_t end = bytes.find_first_not_of(what);
  return end == std::string_view::npos ? bytes.size() : end;
}

// Number of bytes that the turn shares with the generation prompt, which the model never writes itself.
std::size_t shared_bytes(const Text& text, const jinja::Region& turn, std::string_view generation_prompt) {
  const std::string_view bytes = std::string_view(text.bytes()).substr(turn.begin, turn.end - turn.begin);
  std::size_t shared = 0;
  while (shared < std::min(bytes.size(), generation_prompt.size()) && bytes[shared] == generation_prompt[shared]) {
    const jinja::Origin origin = text.run_at(turn.begin + shared)->origin;
    if (origin != jinja::kTemplate && !is_role(origin)) break;
    ++shared;
  }
  while (shared > 0 && shared < bytes.size() && is_continuation(bytes[shared])) --shared;
  return shared;
}

std::size_t header_end(const Text& text, const jinja::Region& turn, std::string_view generation_prompt) {
  std::size_t at = behind_role(text, turn);
  const std::size_t prompt_end = turn.begin + shared_bytes(text, turn, generation_prompt);
  if (at == turn.begin) {
    // Without a role, the prompt defines the header; anything it opens after that ("<think>") counts as header too.
    if (prompt_end > turn.begin) return prompt_end;
    return at + skip(template_bytes(text, at, turn.end), " \t\r\n");
  }
  const std::string_view rest = template_bytes(text, at, turn.end);
  if (rest.starts_with("|>")) {
    at += 2;
  } else if (rest.starts_with("<|") && rest.find("|>") != std::string_view::npos) {
    at += rest.find("|>") + 2;
  }
  at += skip(template_bytes(text, at, turn.end), "\r\n");
  // "assistant: " and similar, as far as the generation prompt also writes it.
  if (at < prompt_end) at += skip(template_bytes(text, at, prompt_end), " \t\r\n:>*");
  return at;
}

/// The trained range of an assistant message that a template wrote, without the header and the white space after the
/// end token. Empty if nothing is left.
///
/// The header is the template's own text up to and including the message's role (or the word "assistant"), the end of
/// the role's tag ("<|end_header_id|>", "|>") and line feeds, and the colon or blanks after it that are also in the
/// generation prompt. Without a role ("<|Assistant|>", "<start_of_turn>model"), the header is what the turn shares with
/// the generation prompt; if that is nothing (Mistral), the turn begins after the template's own white space. Bytes
/// from the chat never belong to a header.
/// generation_prompt: what the template appends for add_generation_prompt; "" if nothing.
ByteRange assistant_span(const Text& text, const jinja::Region& turn, std::string_view generation_prompt) {
  const std::size_t begin = header_end(text, turn, generation_prompt);
  std::size_t end = turn.end;
  while (end > begin && std::string_view(" \t\r\n").find(text.bytes()[end - 1]) != std::string_view::npos &&
         text.run_at(end - 1)->origin == jinja::kTemplate) {
    --end;
  }
  return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(std::max(begin, end))};
}

using OrderedJson = nlohmann::ordered_json;

// Chats come from the caller, so problems in their JSON are DataErrors.
OrderedJson parse_chat_json(const std::string& text, const char* what, OrderedJson::value_t type) {
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
  const std::string what = fmt::format("messages[{}]", index);
  return jinja::message_from_json(parse_chat_json(message.json, what.c_str(), OrderedJson::value_t::object), index);
}

bool is_assistant(const Message& message) { return message.role == "assistant"; }

constexpr std::size_t kLargeChatBytes = std::size_t{1} << 20U;

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(std::string source, std::string name, const std::filesystem::path& folder,
                    std::unique_ptr<JinjaChatTemplate> for_tools = nullptr)
      : source_(std::move(source)),
        name_(std::move(name)),
        parsed_(jinja::parse(source_, name_)),
        for_tools_(std::move(for_tools)) {
    std::string identity = source_ + (for_tools_ ? for_tools_->source_ : "");
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
    // If a large chat exceeds the limits of a harmless template, the chat is to blame.
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
    const Shown shown = find_shown(messages.size(), rendered.text);
    chat.omissions = find_omissions(globals, rendered.text, shown);
    for (const FieldBytes& ink : shown.ink) {
      chat.ink.push_back({ink[static_cast<std::size_t>(jinja::Field::kContent)],
                          ink[static_cast<std::size_t>(jinja::Field::kReasoning)]});
    }
    chat.text = rendered.text.bytes();
    return chat;
  }

  bool takes_parts(const std::string& role) const override {
    std::call_once(is_probed_, [&] { probe(); });
    return part_roles_.contains(role);
  }

  bool takes_argument_objects() const override {
    std::call_once(is_probed_, [&] { probe(); });
    return takes_argument_objects_;
  }

  void set_day(const std::string& day) override {
    time_ = noon_of(day);
    if (for_tools_) for_tools_->set_day(day);
  }

  std::string day() const override {
    const bool writes_it = source_.find("strftime_now") != std::string::npos;
    if (!writes_it) return for_tools_ ? for_tools_->day() : "";
    return local_day(time_.value_or(std::time(nullptr)));
  }

  const std::string& source() const override { return source_; }
  const std::string& name() const override { return name_; }
  const ChatTemplate& for_tools() const override { return for_tools_ ? *for_tools_ : *this; }

 private:
  /// What the template writes for a chat; nothing if it refuses it.
  std::optional<std::string> try_render(const std::vector<Message>& chat, bool with_prompt = false) const {
    try {
      const jinja::Dict globals = variables(chat, {.add_generation_prompt = with_prompt});
      return jinja::run(parsed_, globals, name_, {.steps = 20000, .bytes = std::size_t{8} << 20U}).text.bytes();
    } catch (const StopError&) {
      throw;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // Finds out which forms of contents and tool calls the template takes.
  void probe() const {
    const Message question{"user", "Hi"};
    const auto turn = [](std::string role, const std::string& rest) {
      return Message{role, "",
                     R"({"role": ")" + role + R"(", "name": "f", "tool_call_id": "abcdefghi", )" + rest + "}"};
    };
    const auto call = [&](const std::string& arguments) {
      return turn("assistant", R"("content": "", "tool_calls": [{"id": "abcdefghi", "type": "function", "function": )"
                               R"({"name": "f", "arguments": )" +
                                   arguments + "}}]");
    };
    const auto of_object = try_render({question, call(R"({"k": "v"})")});
    takes_argument_objects_ =
        of_object ? of_object->find("{'k'") == std::string::npos : !try_render({question, call(R"("{}")")});
    const Message calls = call(takes_argument_objects_ ? "{}" : R"("{}")");
    const auto try_content = [&](const std::string& role, const std::string& content) {
      const Message probed = turn(role, R"("content": )" + content);
      if (role == "user") return try_render({probed});
      if (role == "assistant") return try_render({question, probed});
      return role == "tool" ? try_render({question, calls, probed}) : try_render({probed, question});
    };
    for (const char* role : {"system", "user", "assistant", "tool", "developer", "ipython", "environment"}) {
      const auto of_parts = try_content(role, R"([{"type": "text", "text": "Some text."}])");
      const auto of_text = try_content(role, R"("Some text.")");
      if (of_parts && (of_text ? of_parts == of_text : of_parts->find("'type'") == std::string::npos))
        part_roles_.insert(role);
    }
  }

  // The text that the template appends to a question when an answer should follow; "" if unknown.
  std::string find_generation_prompt() const {
    const std::vector<Message> question = {{"user", "Hi"}};
    const auto without = try_render(question), with = try_render(question, /*with_prompt=*/true);
    return without && with && with->starts_with(*without) ? with->substr(without->size()) : std::string();
  }

  static std::size_t chat_bytes(std::span<const Message> messages, const RenderOptions& options) {
    std::size_t bytes = options.tools_json.size() + options.kwargs_json.size();
    for (const Message& message : messages) bytes += message.content.size() + message.json.size();
    return bytes;
  }

  jinja::Dict variables(std::span<const Message> messages, const RenderOptions& options) const try {
    const jinja::Budget budget(jinja::Limits{});
    jinja::Dict variables = special_tokens_;
    jinja::List list;
    for (std::size_t i = 0; i < messages.size(); ++i) list.push_back(message_value(messages[i], static_cast<int>(i)));
    variables.set("messages", std::move(list));
    variables.set("add_generation_prompt", options.add_generation_prompt);
    if (time_) variables.set("strftime_now", *jinja::find_global("strftime_now", *time_));
    // Hugging Face always passes tools and documents, as None if not given.
    variables.set("documents", jinja::None{});
    variables.set("tools", options.tools_json.empty() ? jinja::Value(jinja::None{})
                                                      : jinja::from_json(parse_chat_json(options.tools_json, "tools",
                                                                                         OrderedJson::value_t::array)));
    if (!options.kwargs_json.empty()) {
      const OrderedJson kwargs =
          parse_chat_json(options.kwargs_json, "chat_template_kwargs", OrderedJson::value_t::object);
      for (const auto& [key, value] : kwargs.items()) {
        if (key == "messages" || key == "tools" || key == "documents" || key == "add_generation_prompt")
          throw DataError("chat_template_kwargs", "\"{}\" is set by the trainer itself; remove it", key);
        variables.set(key, jinja::from_json(value));
      }
    }
    return variables;
  } catch (const jinja::RenderError& error) {
    throw DataError("", "the chat cannot be passed to the template: " + error.message);
  }

  std::string source_, name_, generation_prompt_;
  jinja::ParsedTemplate parsed_;
  std::unique_ptr<JinjaChatTemplate> for_tools_;
  jinja::Dict special_tokens_;
  std::optional<std::int64_t> time_;  ///< nothing: the current time
  mutable std::once_flag is_probed_;
  mutable std::set<std::string> part_roles_;
  mutable bool takes_argument_objects_ = true;
};

// chat_template in tokenizer_config.json: a string, or a list of named templates.
std::optional<std::string> named_template(const JsonPlace& place, const std::string& name) {
  if (!place.value().is_array()) return name == "default" ? std::optional(place.string()) : std::nullopt;
  for (const JsonPlace& entry : place.elements()) {
    if (entry.at("name").string() == name) return entry.at("template").string();
  }
  return std::nullopt;
}

std::string default_template(const JsonPlace& place) {
  if (auto found = named_template(place, "default")) return *found;
  std::vector<std::string> names;
  for (const JsonPlace& entry : place.elements()) names.push_back(entry.at("name").string());
  place.fail("no template named \"default\" among: " + join(names) + "; put the one you want into chat_template.jinja");
}

}  // namespace

std::unique_ptr<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder) {
  const auto file = folder / "chat_template.jinja", config = folder / "tokenizer_config.json",
             tool_file = storage::tool_template_file(folder);
  const Json json = fs::exists(config) ? parse_json_file(config) : Json::object();
  const auto place = JsonPlace(json, config.string()).find("chat_template");
  const bool has_file = fs::exists(file);
  if (!has_file && !place) {
    throw FormatError(folder.string(),
                      "no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json; set "
                      "chat_template to a .jinja file");
  }
  std::optional<std::string> tool_use;
  if (fs::exists(tool_file)) tool_use = storage::read_model_file(tool_file);
  if (!has_file && !tool_use) tool_use = named_template(*place, "tool_use");
  return std::make_unique<JinjaChatTemplate>(
      has_file ? storage::read_model_file(file) : default_template(*place), has_file ? file.string() : place->where(),
      folder, tool_use ? std::make_unique<JinjaChatTemplate>(*tool_use, "the template tool_use", folder) : nullptr);
}

std::unique_ptr<ChatTemplate> ChatTemplate::parse(std::string source, std::string name,
                                                  const std::filesystem::path& folder) {
  return std::make_unique<JinjaChatTemplate>(std::move(source), std::move(name), folder);
}

EndOfTurn end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const std::string answer = "Yes.";
  const std::vector<Message> chat = {{"user", "Hi"}, {"assistant", answer}};
  try {
    const RenderedChat rendered = chat_template.render(chat);
    if (rendered.spans.empty()) return {};
    const Encoding encoding = tokenizer.encode(rendered.text, /*with_offsets=*/true);
    const auto trained = trained_tokens(encoding.offsets, rendered.spans);
    const std::size_t begin = rendered.text.rfind(answer) + answer.size();
    std::size_t end = begin;
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < trained.size(); ++i) {
      if (trained[i] == 0 || encoding.offsets[i].first < begin) continue;
      ids.push_back(encoding.ids[i]);
      end = encoding.offsets[i].second;
    }
    if (ids.empty()) return {};
    const bool has_token = std::ranges::any_of(ids, [&](std::int32_t id) { return tokenizer.is_special(id); });
    if (has_token || ids.size() == 1) return {.id = ids.back()};
    return {.in_pieces = rendered.text.substr(begin, end - begin)};
  } catch (const StopError&) {
    throw;
  } catch (const Error&) {
    return {};  // the template refuses this chat, but may accept others
  }
}

std::vector<std::int32_t> stop_token_ids(const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  const auto& of_file = tokenizer.generation_eos_ids();
  std::set<std::int32_t> ids(of_file.begin(), of_file.end());
  if (tokenizer.eos_id()) ids.insert(*tokenizer.eos_id());
  if (chat_template != nullptr) {
    if (const auto id = end_of_turn(*chat_template, tokenizer).id) ids.insert(*id);
  }
  return {ids.begin(), ids.end()};
}

std::vector<std::uint8_t> trained_tokens(std::span<const ByteRange> offsets, std::span<const ByteRange> spans) {
  std::vector<std::uint8_t> trained(offsets.size(), 0);
  std::size_t first = 0;  // earlier spans end before every remaining token
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const auto [begin, end] = offsets[i];
    while (first < spans.size() && spans[first].second <= begin) ++first;
    trained[i] = first < spans.size() && spans[first].first < end && begin < end ? 1 : 0;
  }
  return trained;
}

namespace {

bool has_chat_template(const fs::path& folder) {
  if (folder.empty()) return false;
  if (fs::exists(folder / "chat_template.jinja")) return true;
  const fs::path config = folder / "tokenizer_config.json";
  return fs::exists(config) && JsonPlace(parse_json_file(config), config.string()).find("chat_template").has_value();
}

/// The built-in template for the version of the folder's tekken.json. Null if there is none.
std::unique_ptr<ChatTemplate> template_of_tekken(const fs::path& folder, bool is_quiet) {
  const std::optional<std::string> version = tekken_version(folder);
  if (!version || *version == "v3") return nullptr;  // mistral-v3 has the spaces of tokenizer.model
  const std::string name = "mistral-" + *version;
  if (!is_quiet) {
    log_info("chat_template: {} has none; its tekken.json is of version {}, so the built-in {} is used",
             folder.string(), *version, name);
  }
  return load_chat_template(name, folder, is_quiet);
}

}  // namespace

std::unique_ptr<ChatTemplate> load_chat_template(const std::string& chat_template, const fs::path& folder,
                                                 bool is_quiet) {
  const bool has_own = has_chat_template(folder);
  if (chat_template == "tokenizer") return has_own ? ChatTemplate::load(folder) : template_of_tekken(folder, is_quiet);
  if (has_own && !is_quiet) log_info("chat_template: {} replaces the model's own", chat_template);
  if (const auto text = builtin_template(chat_template)) {
    return ChatTemplate::parse(std::string(*text), "built-in template " + chat_template, folder);
  }
  const bool is_name = fs::path(chat_template).extension() != ".jinja" && chat_template.find('/') == std::string::npos;
  if (is_name && !fs::exists(chat_template)) {
    throw IoError(chat_template,
                  "no such file, and no built-in chat template. Built in: " + join(builtin_template_names()));
  }
  return ChatTemplate::parse(storage::read_model_file(chat_template), chat_template, folder);
}

}  // namespace lora_train::tokenizer
