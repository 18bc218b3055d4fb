#include "encode/template_form.h"

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::data {
namespace {

bool drop_null_members(Json& value) {
  bool is_any = false;
  if (value.is_object()) {
    Json::object_t::Container& members = value.get_ref<Json::object_t&>();
    Json::object_t::Container kept;
    for (auto& [key, item] : members) {
      if (!item.is_null()) kept.emplace_back(key, std::move(item));
    }
    is_any = kept.size() < members.size();
    members.swap(kept);
  }
  for (Json& item : value) {
    if (item.is_structured()) is_any |= drop_null_members(item);
  }
  return is_any;
}

bool drop_null_members_of(std::string& json) {
  if (json.find(":null") == std::string::npos) return false;
  Json value = Json::parse(json);
  const bool is_any = drop_null_members(value);
  json = value.dump();
  return is_any;
}

/// The arguments of a message's calls as objects.
bool decode_arguments(Json& message, const std::string& place) {
  bool is_any = false;
  if (!message.contains("tool_calls")) return false;
  Json& calls = message["tool_calls"];
  for (std::size_t i = 0; calls.is_array() && i < calls.size(); ++i) {
    Json& function = calls[i].contains("function") ? calls[i]["function"] : calls[i];
    if (!function.is_object() || !function.contains("arguments") || !function["arguments"].is_string()) continue;
    const std::string text = function["arguments"], field = fmt::format("{}.tool_calls[{}].arguments", place, i);
    Json arguments = is_blank(text) ? Json::object() : inner_json(text, field);
    if (!arguments.is_object()) wrong_type(field + " as JSON", arguments, "an object");
    function["arguments"] = std::move(arguments);
    is_any = true;
  }
  return is_any;
}

}  // namespace

TemplateForm template_form(ChatSample chat, const tokenizer::ChatTemplate& chat_template, NullFields null_fields) {
  TemplateForm form{std::move(chat)};
  ChatSample& out = form.chat;
  if (null_fields == NullFields::kDrop) {
    for (std::string* json : {&out.tools_json, &out.kwargs_json}) form.has_dropped_nulls |= drop_null_members_of(*json);
    for (tokenizer::Message& message : out.messages) form.has_dropped_nulls |= drop_null_members_of(message.json);
  }
  for (std::size_t i = 0; i < out.messages.size(); ++i) {
    tokenizer::Message& message = out.messages[i];
    const bool decodes =
        message.json.find("\"arguments\":\"") != std::string::npos && chat_template.takes_argument_objects();
    const bool joins =
        message.json.find("\"content\":[") != std::string::npos && !chat_template.takes_parts(message.role);
    if (!decodes && !joins) continue;
    Json fields = Json::parse(message.json);
    if (decodes) form.has_decoded_arguments |= decode_arguments(fields, fmt::format("messages[{}]", i));
    if (joins && fields["content"].is_array()) fields["content"] = message.content;
    message.json = fields.dump();
  }
  return form;
}

}  // namespace lora_train::data
