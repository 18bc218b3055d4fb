// What a client has done wrong, as OpenAI's API says it.
#pragma once

#include <stdexcept>
#include <string>

namespace lora_train::serve {

/// A refusal with its HTTP status. Turned into {"error": {"message", "type", "param", "code"}}, and never seen outside of the server.
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
