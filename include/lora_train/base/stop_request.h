// Being asked to stop: by SIGTERM, SIGINT, SIGUSR1, SIGHUP, or by the clock. Long work asks often whether it is.
#pragma once

#include <string>

namespace lora_train {

/// While one lives, signals are requests. SIGHUP stays ignored where it was (nohup). The second signal ends the process at
/// once with 128 + its number. One at a time.
class StopRequests {
 public:
  StopRequests();
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
};

/// Seconds since the StopRequests was made, by a clock that nobody sets.
void set_max_time(double seconds);

/// "SIGTERM", "max_time", ...; empty while nobody asks or there is no StopRequests. May be called from any thread.
std::string stop_reason();

/// Throws StopError. To be called at least once a second by whatever can take long and need not be finished.
void throw_if_stop_requested();

}  // namespace lora_train
