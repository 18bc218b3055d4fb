#include "chat_prompt.h"

#include <atomic>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "read/chat_layouts.h"
#include "read/row_format.h"

namespace lora_train::data {
namespace {

[[noreturn]] void no_prompt(const Json& row) {
  throw DataError("", "the row (" + (row.empty() ? "no keys" : key_names(row)) +
                          ") has no prompt; expected {\"prompt\": \"...\"} or {\"messages\": [...]}");
}

void warn_of_omission(const tokenizer::RenderedChat& rendered, const std::vector<tokenizer::Message>& messages) {
  static std::atomic<bool> has_warned = false;
  if (rendered.omissions.empty() || has_warned.exchange(true)) return;
  log_warning("the chat template leaves out " + describe(rendered.omissions.front(), messages) +
              ": the model does not see it");
}

}  // namespace

std::string describe(const tokenizer::Omission& omission, const std::vector<tokenizer::Message>& messages) {
  if (omission.message == tokenizer::Omission::kTools) return omission.is_partial ? "a part of tools" : "tools";
  return (omission.is_partial ? "a part of messages[" : "messages[") + std::to_string(omission.message) + "]." +
         omission.field + " (" + messages[static_cast<std::size_t>(omission.message)].role + ")";
}

ChatSample chat_of_prompt(const Json& row, const FieldMap& map) {
  const Json& prompt = required(row, map, "prompt");
  if (!prompt.is_array()) wrong_type("prompt", prompt, "a text or a list of messages");
  return std::get<ChatSample>(parse_messages(row, map, "prompt"));
}

ChatSample chat_of_row(const Json& row) {
  if (optional_field(row, {}, "messages") != nullptr) return std::get<ChatSample>(parse_messages(row, {}));
  if (optional_field(row, {}, "conversations") != nullptr) return std::get<ChatSample>(parse_sharegpt(row, {}));
  if (optional_field(row, {}, "instruction") == nullptr) no_prompt(row);
  return std::get<ChatSample>(parse_alpaca(row, {}));
}

std::string render_chat_prompt(const ChatSample& chat, const PromptOptions& options) {
  if (options.raw) throw DataError("", "a list of messages needs the chat template; remove --raw, or give a text");
  if (options.chat_template == nullptr) {
    throw FormatError("chat_template",
                      "the model folder has no chat template. Use --raw to pass the text unchanged, or "
                      "--set chat_template=FILE.jinja");
  }
  std::vector<tokenizer::Message> messages = chat.messages;
  if (!options.system.empty()) {
    if (messages.front().role == "system")
      throw DataError("", "the row has a system message of its own; remove --system");
    messages.insert(messages.begin(), {"system", options.system});
  }
  const auto rendered = options.chat_template->render(
      messages, {.add_generation_prompt = true, .tools_json = chat.tools_json, .kwargs_json = chat.kwargs_json});
  warn_of_omission(rendered, messages);
  return rendered.text;
}

std::vector<std::int32_t> encode_prompt(const std::string& text, bool is_chat, const PromptOptions& options) {
  const tokenizer::Tokenizer& tokenizer = *options.tokenizer;
  std::vector<std::int32_t> ids = tokenizer.encode(text).ids;
  const auto bos = tokenizer.bos_id();
  if (!is_chat && tokenizer.adds_bos() && bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
  if (ids.empty()) throw DataError("", "the prompt is empty: it has no token");
  return ids;
}

}  // namespace lora_train::data
