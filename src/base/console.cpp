#include "lora_train/base/console.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>

namespace lora_train {
namespace {

std::atomic<int> patience_ms = -1;  ///< -1: without end
std::atomic<bool> has_stalled = false;

}  // namespace

void never_wait_for_stderr(std::chrono::milliseconds patience) {
  has_stalled = false;
  patience_ms = static_cast<int>(patience.count());
}

bool can_write_to_stderr() {
  if (patience_ms < 0) return true;
  pollfd console{STDERR_FILENO, POLLOUT, 0};
  const int num_ready = ::poll(&console, 1, has_stalled ? 0 : patience_ms.load());
  has_stalled = num_ready == 0;
  return num_ready != 0;  // an error is write()'s to find
}

}  // namespace lora_train
