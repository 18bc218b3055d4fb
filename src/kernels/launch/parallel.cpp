#include "lora_train/kernels/launch/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>

#ifndef _OPENMP
#error "compile with -fopenmp: at::parallel_for is serial without it"
#endif

namespace lora_train::kernels {
namespace {

bool is_avx512_allowed = true;

}  // namespace

void parallel_ranges(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  at::parallel_for(0, count, grain, body);
}

int num_threads() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

// libgomp spins a hundred times only while it manages more threads than there are processors. A second team,
// asleep, makes it so; it ends with the thread that has begun it.
PassiveWaiting::PassiveWaiting(int num_cpus) {
  const int num_sleepers = std::max(2, num_cpus - at::get_num_threads() + 2);
  std::promise<void> is_there;
  std::future<void> begun = is_there.get_future();
  team_ = std::jthread([num_sleepers, is_there = std::move(is_there)](const std::stop_token& end) mutable {
    std::atomic<int> count = 0;  // g++ leaves out an empty region
#pragma omp parallel num_threads(num_sleepers)
    ++count;
    is_there.set_value();
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any().wait(lock, end, [] { return false; });
  });
  begun.wait();
}

bool has_avx512() {
#if defined(__x86_64__)
  return is_avx512_allowed && __builtin_cpu_supports("x86-64-v4");
#else
  return false;
#endif
}

void allow_avx512(bool allowed) { is_avx512_allowed = allowed; }

}  // namespace lora_train::kernels
