#include "lora_train/base/stop_request.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <limits>

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

extern "C" void on_signal(int number) {
  int expected = 0;
  if (!received.compare_exchange_strong(expected, number)) ::_exit(128 + number);
}

}  // namespace

StopRequests::StopRequests() {
  received = 0;
  max_time_s = kForever;
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
  received = 0;
  max_time_s = kForever;
}

void set_max_time(double seconds) { max_time_s = seconds; }

std::string stop_reason() {
  if (const int number = received.load(); number != 0) return "SIG" + std::string(::sigabbrev_np(number));
  const double limit = max_time_s.load();
  if (limit != kForever && std::chrono::duration<double>(Clock::now() - start).count() >= limit) return "max_time";
  return {};
}

void throw_if_stop_requested() {
  if (received.load(std::memory_order_relaxed) == 0 && max_time_s.load(std::memory_order_relaxed) == kForever) return;
  const std::string reason = stop_reason();
  if (!reason.empty()) throw StopError(reason, "asked to stop");
}

}  // namespace lora_train
