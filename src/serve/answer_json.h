// The objects of OpenAI's API, as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "lora_train/generate/prompt.h"
#include "lora_train/serve/api_request.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::serve {

using AnswerJson = nlohmann::ordered_json;

/// The common first fields of all answer objects.
AnswerJson answer_head(const ApiRequest& request, const std::string& id, const std::string& model,
                       std::int64_t created);

AnswerJson usage_json(std::int64_t prompt_tokens, std::int64_t new_tokens);

/// `logprobs` of a choice: {"content": [{token, logprob, bytes, id, top_logprobs}]} for a chat, parallel lists for a
/// completion. text_offset: characters of the answer before these tokens.
AnswerJson logprobs_json(bool is_chat, const tokenizer::Tokenizer& tokenizer,
                         const std::vector<generate::Token>& tokens, std::size_t text_offset);

/// Serializes JSON. Invalid UTF-8 becomes U+FFFD; a model's text is valid.
inline std::string dump_json(const AnswerJson& json) {
  return json.dump(-1, ' ', false, AnswerJson::error_handler_t::replace);
}

/// A refusal with its HTTP status. Becomes {"error": {"message", "type", "param", "code"}}, and never leaves the server
/// as an exception.
class ApiError : public std::runtime_error {
 public:
  /// `param`: the field at fault; empty: null. `code`: a word for programs; empty: null.
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  /// "invalid_request_error", "authentication_error", "server_error", ... from the status.
  const char* type() const;
  /// The body of the answer.
  std::string json() const;

 private:
  int status_;
  std::string param_, code_;
};

}  // namespace lora_train::serve
