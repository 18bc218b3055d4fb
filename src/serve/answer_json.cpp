#include "answer_json.h"

namespace lora_train::serve {
namespace {

std::string token_text(const tokenizer::Tokenizer& tokenizer, std::int32_t id) {
  return tokenizer.decode(std::span(&id, 1));
}

AnswerJson chat_token(const tokenizer::Tokenizer& tokenizer, std::int32_t id, double log_probability) {
  const std::string text = token_text(tokenizer, id);
  AnswerJson bytes = AnswerJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", log_probability}, {"bytes", std::move(bytes)}, {"id", id}};
}

}  // namespace

AnswerJson answer_head(const ApiRequest& request, const std::string& id, const std::string& model,
                       std::int64_t created) {
  const char* const kind = !request.is_chat  ? "text_completion"
                           : request.streams ? "chat.completion.chunk"
                                             : "chat.completion";
  return {{"id", id}, {"object", kind}, {"created", created}, {"model", model}};
}

AnswerJson usage_json(std::int64_t prompt_tokens, std::int64_t new_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", new_tokens},
          {"total_tokens", prompt_tokens + new_tokens}};
}

AnswerJson logprobs_json(bool is_chat, const tokenizer::Tokenizer& tokenizer,
                         const std::vector<generate::Token>& tokens, std::size_t text_offset) {
  AnswerJson content = AnswerJson::array(), texts = AnswerJson::array(), values = AnswerJson::array(),
             tops = AnswerJson::array(), offsets = AnswerJson::array();
  for (const generate::Token& token : tokens) {
    AnswerJson list = AnswerJson::array(), map = AnswerJson::object();
    for (const auto& [id, value] : token.top) {
      list.push_back(chat_token(tokenizer, id, value));
      map[token_text(tokenizer, id)] = value;
    }
    AnswerJson entry = chat_token(tokenizer, token.id, token.log_probability);
    entry["top_logprobs"] = std::move(list);
    texts.push_back(entry["token"]);
    values.push_back(token.log_probability);
    tops.push_back(std::move(map));
    offsets.push_back(text_offset);
    text_offset += entry["token"].get_ref<const std::string&>().size();
    content.push_back(std::move(entry));
  }
  if (is_chat) return {{"content", std::move(content)}, {"refusal", nullptr}};
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

const char* ApiError::type() const {
  if (status_ == 401) return "authentication_error";
  if (status_ == 429) return "rate_limit_error";
  return status_ >= 500 ? "server_error" : "invalid_request_error";
}

std::string ApiError::json() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? AnswerJson() : AnswerJson(text); };
  const AnswerJson error = {
      {"message", what()}, {"type", type()}, {"param", or_null(param_)}, {"code", or_null(code_)}};
  return dump_json({{"error", error}});
}

}  // namespace lora_train::serve
