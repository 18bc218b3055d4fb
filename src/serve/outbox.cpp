#include "lora_train/serve/outbox.h"

#include <algorithm>
#include <utility>

namespace lora_train::serve {

void Outbox::wake() {
  if (std::exchange(is_suspended_, false) && resume_) resume_();
}

void Outbox::write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (is_cancelled_ || is_finished_) return;
  bytes_ += bytes;
  wake();
}

void Outbox::finish(int status) {
  const std::lock_guard lock(mutex_);
  if (is_finished_) return;
  is_finished_ = true;
  status_ = status;
  wake();
}

void Outbox::set_resume(Call resume) {
  const std::lock_guard lock(mutex_);
  resume_ = std::move(resume);
}

std::size_t Outbox::read(char* to, std::size_t most, const Call& suspend) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::min(most, bytes_.size() - num_read_);
  std::copy_n(bytes_.data() + num_read_, count, to);
  num_read_ += count;
  if (num_read_ == bytes_.size()) {
    bytes_.clear();
    num_read_ = 0;
  }
  if (count == 0 && !is_finished_ && !is_cancelled_) {
    is_suspended_ = true;
    suspend();
  }
  return count;
}

bool Outbox::is_whole_or(const Call& suspend) {
  const std::lock_guard lock(mutex_);
  if (is_finished_ || is_cancelled_) return true;
  is_suspended_ = true;
  suspend();
  return false;
}

void Outbox::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  bytes_.clear();
  num_read_ = 0;
  wake();
}

void Outbox::abandon() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  is_suspended_ = false;
  resume_ = nullptr;
  bytes_.clear();
  num_read_ = 0;
}

bool Outbox::is_cancelled() const {
  const std::lock_guard lock(mutex_);
  return is_cancelled_;
}

bool Outbox::is_finished() const {
  const std::lock_guard lock(mutex_);
  return is_finished_;
}

int Outbox::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace lora_train::serve
