// Bytes on their way from the thread that computes to the one that talks to a client.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace lora_train::serve {

/// Thread-safe. The writer never waits for the reader, which is suspended where there is nothing to read: by calls that happen
/// under the lock, so that none is lost.
class Outbox {
 public:
  using Call = std::function<void()>;

  /// Of the writer. status: of the whole answer, once it is known; only the first one counts.
  void write(std::string_view bytes);
  void finish(int status);

  /// Of the reader: how to wake it. Before the first wait.
  void set_resume(Call resume);
  /// Copies up to `most` bytes. 0: none are there; calls `suspend` unless is_finished().
  std::size_t read(char* to, std::size_t most, const Call& suspend);
  /// True once the answer is whole; else calls `suspend`.
  bool is_whole_or(const Call& suspend);
  /// The client has gone, or is given up: nothing is written any more. Wakes a suspended reader.
  void cancel();
  /// The same, by the reader itself: it is not woken, now or later.
  void abandon();

  bool is_cancelled() const;
  bool is_finished() const;
  int status() const;

 private:
  void wake();

  mutable std::mutex mutex_;
  std::string bytes_;
  std::size_t num_read_ = 0;
  int status_ = 0;
  bool is_finished_ = false, is_cancelled_ = false, is_suspended_ = false;
  Call resume_;
};

}  // namespace lora_train::serve
