#include "lora_train/serve/drain.h"

#include <cstdlib>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::serve {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);

std::chrono::steady_clock::duration seconds(double count) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(count));
}

}  // namespace

Drain::Drain(HttpServer& server, RequestBoard& board) : server_(server), board_(board) {
  defer_stops();
  watcher_ = std::thread([this] {
    for (; is_computing_; std::this_thread::sleep_for(kTick)) watch();
  });
  last_resort_ = std::thread([this] {
    for (; !has_ended_; std::this_thread::sleep_for(kTick)) look();
  });
}

Drain::~Drain() {
  is_computing_ = false;
  has_ended_ = true;
  if (watcher_.joinable()) watcher_.join();
  last_resort_.join();
}

void Drain::watch() {
  server_.drop_vanished();
  if (requested_stop().empty()) return;
  if (deadline_.load() == Clock::time_point::max()) {
    deadline_ = Clock::now() + seconds(kDrainS);
    log_info("stopping: answers that are being written may end within " + std::to_string(static_cast<int>(kDrainS)) +
             " s");
    server_.stop_accepting();
    board_.close();
  }
  if (Clock::now() < deadline_.load()) return;
  board_.cancel_all();
  interrupt(std::make_exception_ptr(StopError(requested_stop(), "the answers that were being written are given up")));
}

/// Ends the process where nothing else can.
void Drain::look() {
  const Clock::time_point deadline = deadline_;
  if (deadline == Clock::time_point::max() || Clock::now() < deadline + seconds(kLastResortS)) return;
  std::_Exit(static_cast<int>(ExitCode::kDone));
}

void Drain::finish() {
  is_computing_ = false;
  watcher_.join();
  if (deadline_.load() == Clock::time_point::max()) deadline_ = Clock::now();  // an error: nothing is waited for
  server_.wait_until_idle(deadline_);
  server_.stop();
}

}  // namespace lora_train::serve
