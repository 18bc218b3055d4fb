// Every collective passes the gate, which counts. On a stop, the control threads of all ranks close their gates, compare the
// counts, and let pass what at least one rank has entered.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>

namespace lora_train::ranks {

class Gate {
 public:
  struct Position {
    std::int64_t num_passed = 0;
    bool in_steps = false;  ///< after begin_steps()
  };

  // For the thread that computes.

  /// Before a collective. Waits while the gate is closed. Throws the error of fail(), or StopError at the agreed place.
  void pass();
  void begin_steps();
  /// After a stop: nothing waits or stops here any more.
  void open();
  /// Rethrows the error of fail(), waiting for one at most this long.
  void rethrow_failure(std::chrono::milliseconds wait);

  // For the control threads.

  Position close();
  /// All ranks pass `last` collectives, then stop. Calls interrupt() (base/stop_request.h) when this one has.
  void stop_after(std::int64_t last, const std::string& reason);
  /// Only the first counts. Calls interrupt().
  void fail(const std::exception_ptr& error);
  bool has_failed();

 private:
  void stop_if_last();

  std::mutex mutex_;
  std::condition_variable changed_;
  Position position_;
  bool is_closed_ = false, is_open_for_good_ = false;
  std::optional<std::int64_t> last_;
  std::string reason_;
  std::exception_ptr failure_;
};

}  // namespace lora_train::ranks
