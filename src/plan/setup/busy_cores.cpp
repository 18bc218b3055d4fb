#include "busy_cores.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "lora_train/base/log.h"
#include "lora_train/device/host.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::plan {
namespace {

constexpr std::chrono::milliseconds kInterval(200);

void watch(const std::stop_token& end, const std::vector<int>& cpus, int num_threads) {
  using Clock = std::chrono::steady_clock;
  SpinRule rule(static_cast<int>(cpus.size()), num_threads);
  std::optional<kernels::PassiveWaiting> passive;
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable_any ended;
  device::CpuTimes before = device::cpu_times(cpus);
  Clock::time_point begin = Clock::now();
  while (!ended.wait_for(lock, end, kInterval, [&] { return end.stop_requested(); })) {
    const device::CpuTimes now = device::cpu_times(cpus);
    const Clock::time_point time = Clock::now();
    const double seconds = std::chrono::duration<double>(time - begin).count();
    const bool spins = rule.update((now.all - before.all - (now.own - before.own)) / seconds);
    before = now;
    begin = time;
    if (spins == !passive) continue;
    log_debug("other programs {} the cores: threads {}", spins ? "have left" : "use",
              spins ? "spin" : "wait passively");
    if (spins) {
      passive.reset();
    } else {
      passive.emplace(static_cast<int>(cpus.size()));
    }
  }
}

}  // namespace

bool SpinRule::update(double others) {
  constexpr double kBusy = 0.25, kFree = 0.1;  // cores; /proc counts in steps of 0.05
  constexpr int kBusyIntervals = 2, kFreeIntervals = 10;
  const double excess = others + num_threads_ - num_cpus_;
  num_busy_ = excess > kBusy ? num_busy_ + 1 : 0;
  num_free_ = excess < kFree ? num_free_ + 1 : 0;
  if (num_busy_ >= kBusyIntervals) spins_ = false;
  if (num_free_ >= kFreeIntervals) spins_ = true;
  return spins_;
}

BusyCoresWatch::BusyCoresWatch(std::vector<int> cpus, int num_threads) {
  if (num_threads < 2 || cpus.empty()) return;
  thread_ = std::jthread(
      [cpus = std::move(cpus), num_threads](const std::stop_token& end) { watch(end, cpus, num_threads); });
}

}  // namespace lora_train::plan
