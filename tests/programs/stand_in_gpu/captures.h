// The streams and events of a capture. A stream joins a capture when it waits for an event of one of its streams, and the stream
// that began the capture must wait for all work of the others before it ends. Thread-safe.
#pragma once

#include <driver_types.h>

#include <map>
#include <mutex>

class Captures {
 public:
  void begin(void* stream) {
    const std::lock_guard lock(mutex_);
    ++number_;
    first_ = stream;
    branches_ = {{stream, {}}};
  }
  /// Whether every branch was joined.
  bool end() {
    const std::lock_guard lock(mutex_);
    bool is_joined = true;
    for (const auto& [stream, branch] : branches_) {
      is_joined = is_joined && (stream == first_ || branch.num_joined >= branch.num_enqueued);
    }
    branches_.clear();
    first_ = nullptr;
    return is_joined;
  }
  bool has(void* stream) {
    const std::lock_guard lock(mutex_);
    return branches_.contains(stream);
  }
  void enqueue(void* stream) {
    const std::lock_guard lock(mutex_);
    ++branches_[stream].num_enqueued;
  }
  void record(void* event, void* stream) {
    const std::lock_guard lock(mutex_);
    events_.erase(event);
    const auto branch = branches_.find(stream);
    if (branch != branches_.end()) events_[event] = {number_, stream, branch->second.num_enqueued};
  }
  void forget(void* event) {
    const std::lock_guard lock(mutex_);
    events_.erase(event);
  }
  int wait(void* stream, void* event) {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(event);
    if (found == events_.end()) return branches_.contains(stream) ? cudaErrorStreamCaptureIsolation : cudaSuccess;
    if (first_ == nullptr || found->second.capture != number_) return cudaErrorCapturedEvent;
    branches_.try_emplace(stream);
    if (stream == first_) branches_[found->second.stream].num_joined = found->second.num_enqueued;
    return cudaSuccess;
  }

 private:
  struct Branch {
    long num_enqueued = 0, num_joined = 0;
  };
  struct Event {
    long capture = 0;
    void* stream = nullptr;
    long num_enqueued = 0;
  };
  std::mutex mutex_;
  long number_ = 0;
  void* first_ = nullptr;
  std::map<void*, Branch> branches_;
  std::map<void*, Event> events_;  ///< recorded in a capture
};
