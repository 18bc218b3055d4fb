#include "api_error.h"

#include <nlohmann/json.hpp>

namespace lora_train::serve {

const char* ApiError::type() const {
  if (status_ == 401) return "authentication_error";
  if (status_ == 429) return "rate_limit_error";
  return status_ >= 500 ? "server_error" : "invalid_request_error";
}

std::string ApiError::json() const {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const Json error = {{"message", what()}, {"type", type()}, {"param", or_null(param_)}, {"code", or_null(code_)}};
  return Json{{"error", error}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lora_train::serve
