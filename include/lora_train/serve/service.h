// What the server answers to a request: paths, access, models, limits; and how it ends. Knows no sockets.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lora_train/serve/answer.h"
#include "lora_train/serve/http_server.h"
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

/// While it lives, a thread looks for a requested stop (base/stop_request.h) and for clients that have gone. On a stop, nothing new is
/// taken and the answers that are being written have kDrainS to become whole; then they are given up, and the computation is
/// interrupted. A process that has not come to finish() kLastResortS later is ended with code 0: a pass can take longer.
class Drain {
 public:
  static constexpr double kDrainS = 6, kLastResortS = 3;

  /// Stops take effect through this object from now on (defer_stops()). All must outlive it.
  Drain(HttpServer& server, RequestBoard& board);
  ~Drain();
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  /// Called once nothing is computed any more: waits until the answers are sent, as long as the time allows, and closes the server.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  void look();

  HttpServer& server_;
  RequestBoard& board_;
  std::atomic<bool> is_computing_ = true, has_ended_ = false;
  std::atomic<Clock::time_point> deadline_ = Clock::time_point::max();
  std::thread watcher_, last_resort_;
};

}  // namespace lora_train::serve
