// Requests that wait for the model and those that it answers.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "lora_train/serve/answer.h"
#include "lora_train/serve/request_queue.h"

namespace lora_train::serve {

/// Thread-safe. The calls of RequestQueue come from the thread that computes, the others from any.
class RequestBoard : public RequestQueue {
 public:
  /// At most max_waiting choices wait.
  explicit RequestBoard(std::size_t max_waiting) : max_waiting_(max_waiting) {}

  /// Adds all choices of an answer, or none: false where they would wait behind too many, or after close().
  bool submit(const std::shared_ptr<Answer>& answer, std::int64_t max_new_tokens);
  /// Nothing new is taken; once the answers are whole, next() ends the computation.
  void close();
  /// Gives up all answers.
  void cancel_all();

  /// Of on_start(); 0 before.
  std::int64_t max_tokens() const { return max_tokens_; }

  void on_start(std::int64_t max_tokens) override;
  std::optional<ServedRequest> next(bool may_wait) override;
  bool is_wanted(std::int64_t id) override;
  bool on_token(std::int64_t id, const ServedToken& token) override;
  void on_done(std::int64_t id, bool is_cut) override;
  void on_failure(std::int64_t id, const std::string& message) override;

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
  std::deque<ServedRequest> waiting_;
  std::map<std::int64_t, Asked> asked_;  ///< by id: waiting and computed
  std::int64_t num_asked_ = 0;
  bool is_closed_ = false;
};

}  // namespace lora_train::serve
