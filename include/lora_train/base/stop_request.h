// Stop requests: by SIGTERM, SIGINT, SIGUSR1, SIGHUP, or by the clock. Long work polls for them.
#pragma once

#include <string>

namespace lora_train {

/// While an instance lives, signals are stop requests. SIGHUP stays ignored if it was (nohup). A second signal ends the process at
/// once with 128 + its number. Only one instance at a time.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
};

/// Seconds since the StopRequests was constructed, on a monotonic clock.
void set_max_time(double seconds);

/// "SIGTERM", "max_time", ...; empty if there is no request or no StopRequests. May be called from any thread.
std::string stop_reason();

/// Throws StopError on a request. Work that can take long and need not finish calls it at least once a second: costs nanoseconds.
void throw_if_stop_requested();

/// For loops and comparisons of a few nanoseconds: every 4096th call is throw_if_stop_requested().
class StopPoll {
 public:
  void operator()() {
    if (++num_calls_ % 4096 == 0) throw_if_stop_requested();
  }

 private:
  unsigned num_calls_ = 0;
};

}  // namespace lora_train
