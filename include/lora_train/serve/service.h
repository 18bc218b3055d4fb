// Answers requests to the server: paths, access, models, limits. Also the board of requests that wait for the model. No
// sockets.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/serve/answer.h"

namespace lora_train::serve {

/// Requests that wait for the model or are being answered. Thread-safe. The computing thread calls PromptQueue's
/// functions; any thread may call the others.
class RequestBoard : public generate::PromptQueue {
 public:
  /// At most max_waiting choices wait.
  explicit RequestBoard(std::size_t max_waiting) : max_waiting_(max_waiting) {}

  /// Adds all choices of an answer, or none: false if too many would wait, or after close().
  bool submit(const std::shared_ptr<Answer>& answer, std::int64_t max_new_tokens);
  /// Takes nothing new; once the answers are whole, next() ends the computation.
  void close();
  /// Gives up all answers.
  void cancel_all();

  /// The value given to on_start(); 0 before.
  std::int64_t max_tokens() const { return max_tokens_; }

  void on_start(std::int64_t max_tokens) override;
  std::optional<generate::Prompt> next(bool may_wait) override;
  bool is_wanted(std::int64_t id) override;
  bool on_token(std::int64_t id, const generate::Token& token) override;
  void on_done(std::int64_t id, bool is_cut) override;
  void on_failure(std::int64_t id, const Error& error) override;

  /// Called once by on_start(), in its thread.
  std::function<void()> when_started = {};

 private:
  struct Asked {
    std::shared_ptr<Answer> answer;
    std::size_t choice = 0;
  };
  Asked find(std::int64_t id);
  Asked take(std::int64_t id);

  const std::size_t max_waiting_;
  std::atomic<std::int64_t> max_tokens_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<generate::Prompt> waiting_;
  std::map<std::int64_t, Asked> asked_;  ///< by id: waiting and computed
  std::int64_t num_asked_ = 0;
  bool is_closed_ = false;
};

inline constexpr std::size_t kMaxBodyBytes = std::size_t{4} << 20;

struct HttpRequest {
  std::string method, path, authorization, content_type, body;
  bool is_too_large = false;  ///< the body was longer than kMaxBodyBytes and is not kept
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::shared_ptr<Answer> answer = nullptr;  ///< instead of the body: the answer that the model will give
};

struct ServiceOptions {
  std::vector<ServedModel> models;     ///< at least one
  std::string api_key;                 ///< empty: no key is needed
  std::int64_t max_new_tokens = 1024;  ///< for requests that do not set it
};

/// Thread-safe. Models and board must outlive it.
class Service {
 public:
  Service(ServiceOptions options, RequestBoard& board) : options_(std::move(options)), board_(board) {}

  /// Never throws: errors are in the reply.
  HttpReply reply(const HttpRequest& request) noexcept;
  /// True if a request may see more than /health. Takes as long for a wrong key as for the right one.
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
