// What the server answers to a request: paths, access, models, limits. Knows no sockets.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/serve/answer.h"
#include "lora_train/serve/request_board.h"

namespace lora_train::serve {

inline constexpr std::size_t kMaxBodyBytes = std::size_t{4} << 20;

struct HttpRequest {
  std::string method, path, authorization, content_type, body;
  bool is_too_large = false;  ///< the body was longer than kMaxBodyBytes, and is not here
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::shared_ptr<Answer> answer = nullptr;  ///< instead of the body: what the model is going to say
};

struct ServiceOptions {
  std::vector<ServedModel> models;     ///< at least one
  std::string api_key;                 ///< empty: everybody has access
  std::int64_t max_new_tokens = 1024;  ///< of requests that do not say
};

/// Thread-safe. Models and board must outlive it.
class Service {
 public:
  Service(ServiceOptions options, RequestBoard& board) : options_(std::move(options)), board_(board) {}

  /// Never throws: what is wrong with a request, or goes wrong, is in the reply.
  HttpReply reply(const HttpRequest& request) noexcept;
  /// Whether a request may see more than /health. Takes as long for a wrong key as for the right one.
  bool has_access(const std::string& authorization) const;

 private:
  HttpReply route(const HttpRequest& request);
  HttpReply list_models() const;
  HttpReply show_model(const std::string& name) const;
  HttpReply ask(const HttpRequest& request, bool is_chat);
  const ServedModel& find(const std::string& name) const;
  std::vector<data::Prompt> prompts_of(const ApiRequest& request, const ServedModel& model) const;
  std::int64_t room_for_answer(const ApiRequest& request, const std::vector<data::Prompt>& prompts) const;

  ServiceOptions options_;
  RequestBoard& board_;
};

}  // namespace lora_train::serve
