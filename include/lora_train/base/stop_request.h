// Stop requests: by SIGTERM, SIGINT, SIGUSR1, SIGHUP, or by the clock. Long work polls for them.
#pragma once

#include <exception>
#include <string>

namespace lora_train {

/// While an instance lives, signals are stop requests. SIGHUP stays ignored if it was (nohup). A second signal ends the
/// process at once with 128 + its number; in a process started by a launcher, signals within kSameRequestS of the first
/// do not count as a second, because the terminal, the launcher and its parent may each deliver the first. Only one
/// instance at a time.
class StopRequests {
 public:
  static constexpr double kSameRequestS = 2;
  /// `answer`: a line, without its end, that the first signal writes to stderr at once, or null. It must outlive the
  /// process.
  explicit StopRequests(bool has_launcher = false, const char* answer = nullptr);
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;
};

/// A StopRequests that lives to the end of the process: a signal that comes after a command must not change its exit
/// code.
void keep_stop_requests(bool has_launcher = false, const char* answer = nullptr);

/// Seconds since the StopRequests was constructed, on a monotonic clock.
void set_max_time(double seconds);

/// "SIGTERM", "max_time", ...; empty if there is no request or no StopRequests. May be called from any thread.
std::string requested_stop();

/// For ranks, which stop together: until the StopRequests is destroyed, a request has no effect by itself. The caller
/// polls requested_stop(), agrees with the other ranks, and calls interrupt().
void defer_stops();

/// From any thread: makes throw_if_stop_requested() throw `error` from now on. An error replaces a StopError, and
/// nothing else. Only after defer_stops().
void interrupt(const std::exception_ptr& error);

/// The stop that throw_if_stop_requested() throws, in the words of requested_stop(); empty if it throws none.
std::string stop_reason();

/// Forgets the request of a signal, so that the next signal is a first one again: for a program that a signal
/// interrupts but does not end.
void forget_signal();

/// Throws StopError on a request, or the error of interrupt(). Long work that need not finish calls it at least once a
/// second; a call costs nanoseconds.
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
