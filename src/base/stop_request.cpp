#include "lora_train/base/stop_request.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <limits>
#include <mutex>

#include "lora_train/base/error.h"

namespace lora_train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1, SIGHUP};
constexpr double kForever = std::numeric_limits<double>::infinity();

std::atomic<int> received{0};
std::atomic<double> max_time_s{kForever};
Clock::time_point start;
std::array<struct sigaction, kSignals.size()> previous{};

std::atomic<double> deaf_s{0};         // after the first signal, for this long
std::atomic<double> received_at_s{0};  // on the monotonic clock

std::atomic<bool> is_deferred{false}, is_interrupted{false};
std::mutex interruption_mutex;
std::exception_ptr interruption;  // guarded
std::string interruption_reason;  // guarded; of a stop

std::atomic<const char*> answer_to_signal{nullptr};

/// Calls only what a signal handler may call; may change errno. On a terminal the line replaces the progress bar, which
/// is drawn again below it.
void write_answer() {
  const char* const answer = answer_to_signal.load();
  if (answer == nullptr) return;
  struct pollfd out {
    STDERR_FILENO, POLLOUT, 0
  };
  if (::poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) return;  // no reader: a write would wait
  constexpr char kClearLine[] = "\r\033[K";
  if (::isatty(STDERR_FILENO) == 1) (void)!::write(STDERR_FILENO, kClearLine, sizeof kClearLine - 1);
  (void)!::write(STDERR_FILENO, answer, std::strlen(answer));
  (void)!::write(STDERR_FILENO, "\n", 1);
}

double monotonic_s() {  // clock_gettime() may be called in a signal handler
  struct timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

extern "C" void on_signal(int number) {
  const double now = monotonic_s();
  double never = 0;
  received_at_s.compare_exchange_strong(never, now);
  int expected = 0;
  if (received.compare_exchange_strong(expected, number)) {
    const int error = errno;
    write_answer();
    errno = error;
    return;
  }
  if (now - received_at_s >= deaf_s) ::_exit(128 + number);
}

void forget_requests() {
  forget_signal();
  max_time_s = kForever;
  const std::lock_guard lock(interruption_mutex);
  is_deferred = is_interrupted = false;
  interruption = nullptr;
  interruption_reason.clear();
}

}  // namespace

StopRequests::StopRequests(bool has_launcher, const char* answer) {
  forget_requests();
  answer_to_signal = answer;
  deaf_s = has_launcher ? kSameRequestS : 0;
  start = Clock::now();
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(kSignals[i], nullptr, &previous[i]);
    if (kSignals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

StopRequests::~StopRequests() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &previous[i], nullptr);
  forget_requests();
}

void forget_signal() {
  received_at_s = 0;
  received = 0;
}

void keep_stop_requests(bool has_launcher, const char* answer) {
  [[maybe_unused]] static const auto* const requests = new StopRequests(has_launcher, answer);
}

void set_max_time(double seconds) { max_time_s = seconds; }

std::string requested_stop() {
  if (const int number = received.load(); number != 0) return "SIG" + std::string(::sigabbrev_np(number));
  const double limit = max_time_s.load();
  if (limit != kForever && std::chrono::duration<double>(Clock::now() - start).count() >= limit) return "max_time";
  return {};
}

void defer_stops() { is_deferred = true; }

void interrupt(const std::exception_ptr& error) {
  const std::lock_guard lock(interruption_mutex);
  if (interruption != nullptr && interruption_reason.empty()) return;
  interruption = error;
  interruption_reason.clear();
  try {
    std::rethrow_exception(error);
  } catch (const StopError& stop) {
    interruption_reason = stop.where();
  } catch (...) {  // not a stop
  }
  is_interrupted = true;
}

std::string stop_reason() {
  if (!is_deferred) return requested_stop();
  const std::lock_guard lock(interruption_mutex);
  return interruption_reason;
}

void throw_if_stop_requested() {
  if (is_deferred.load(std::memory_order_relaxed)) {
    if (!is_interrupted.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(interruption_mutex);
    std::rethrow_exception(interruption);
  }
  if (received.load(std::memory_order_relaxed) == 0 && max_time_s.load(std::memory_order_relaxed) == kForever) return;
  const std::string reason = requested_stop();
  if (!reason.empty()) throw StopError(reason, "asked to stop");
}

}  // namespace lora_train
