// How a server ends: it drains, within a time that no client and no computation can extend.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "lora_train/serve/http_server.h"
#include "lora_train/serve/request_board.h"

namespace lora_train::serve {

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
