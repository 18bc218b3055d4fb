#include "gate.h"

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::ranks {
namespace {

StopError stop(const std::string& reason) { return {reason, "asked to stop"}; }

}  // namespace

void Gate::pass() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !is_closed_ || is_open_for_good_ || failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (!is_open_for_good_ && last_ && position_.num_passed == *last_) throw stop(reason_);
  ++position_.num_passed;
  stop_if_last();
}

void Gate::begin_steps() {
  const std::lock_guard lock(mutex_);
  position_.in_steps = true;
}

void Gate::open() {
  const std::lock_guard lock(mutex_);
  is_open_for_good_ = true;
  changed_.notify_all();
}

void Gate::rethrow_failure(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [&] { return failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

Gate::Position Gate::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  return position_;
}

void Gate::stop_after(std::int64_t last, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  last_ = last;
  reason_ = reason;
  is_closed_ = false;
  stop_if_last();
  changed_.notify_all();
}

void Gate::fail(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) return;
  failure_ = error;
  interrupt(error);
  changed_.notify_all();
}

bool Gate::has_failed() {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void Gate::stop_if_last() {
  if (last_ && position_.num_passed == *last_) interrupt(std::make_exception_ptr(stop(reason_)));
}

}  // namespace lora_train::ranks
