#include "lora_train/serve/request_board.h"

#include <utility>
#include <vector>

namespace lora_train::serve {

bool RequestBoard::submit(const std::shared_ptr<Answer>& answer, std::int64_t max_new_tokens) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = answer->num_choices();
  if (is_closed_ || waiting_.size() + count > max_waiting_) return false;
  for (std::size_t choice = 0; choice < count; ++choice) {
    ServedRequest request = answer->ask(choice, max_new_tokens);
    request.id = num_asked_++;
    asked_[request.id] = {answer, choice};
    waiting_.push_back(std::move(request));
  }
  changed_.notify_one();
  return true;
}

void RequestBoard::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_one();
}

void RequestBoard::cancel_all() {
  std::map<std::int64_t, Asked> all;
  {
    const std::lock_guard lock(mutex_);
    all = asked_;
  }
  for (const auto& [id, asked] : all) asked.answer->outbox.cancel();
}

void RequestBoard::on_start(std::int64_t max_tokens) {
  max_tokens_ = max_tokens;
  if (when_started) when_started();
}

std::optional<ServedRequest> RequestBoard::next(bool may_wait) {
  std::unique_lock lock(mutex_);
  if (may_wait) changed_.wait(lock, [&] { return !waiting_.empty() || is_closed_; });
  if (waiting_.empty()) return std::nullopt;
  ServedRequest request = std::move(waiting_.front());
  waiting_.pop_front();
  return request;
}

RequestBoard::Asked RequestBoard::find(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  return asked_.at(id);
}

RequestBoard::Asked RequestBoard::take(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  return std::move(asked_.extract(id).mapped());
}

bool RequestBoard::is_wanted(std::int64_t id) {
  const Asked asked = find(id);
  const bool is_wanted = !asked.answer->outbox.is_cancelled() && !asked.answer->outbox.is_finished();
  if (!is_wanted) take(id);
  return is_wanted;
}

bool RequestBoard::on_token(std::int64_t id, const ServedToken& token) {
  const Asked asked = find(id);
  return asked.answer->on_token(asked.choice, token) && !asked.answer->outbox.is_finished();
}

void RequestBoard::on_done(std::int64_t id, bool is_cut) {
  const Asked asked = take(id);
  asked.answer->on_done(asked.choice, is_cut);
}

void RequestBoard::on_failure(std::int64_t id, const std::string& message) {
  const Asked asked = take(id);
  asked.answer->on_failure(500, message);
}

}  // namespace lora_train::serve
