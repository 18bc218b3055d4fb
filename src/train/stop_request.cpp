#include "stop_request.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

namespace lora_train::train {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1, SIGHUP};
std::atomic<int> received{0};
std::array<struct sigaction, kSignals.size()> previous{};

extern "C" void on_signal(int number) {
  int expected = 0;
  if (!received.compare_exchange_strong(expected, number)) ::_exit(128 + number);
}

const char* signal_name(int number) {
  switch (number) {
    case SIGTERM: return "SIGTERM";
    case SIGINT: return "SIGINT";
    case SIGUSR1: return "SIGUSR1";
    default: return "SIGHUP";
  }
}

}  // namespace

StopRequests::StopRequests(std::optional<double> max_time_s)
    : start_(std::chrono::steady_clock::now()), max_time_s_(max_time_s) {
  received = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(kSignals[i], nullptr, &previous[i]);
    if (kSignals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN) continue;  // nohup
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

StopRequests::~StopRequests() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &previous[i], nullptr);
}

std::string StopRequests::reason() const {
  if (const int number = received.load(); number != 0) return signal_name(number);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  if (max_time_s_ && elapsed.count() >= *max_time_s_) return "max_time";
  return {};
}

}  // namespace lora_train::train
