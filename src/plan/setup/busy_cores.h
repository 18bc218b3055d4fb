// Threads of a CPU run that wait for each other, on cores that others use too.
#pragma once

#include <thread>
#include <vector>

namespace lora_train::plan {

/// Decides whether waiting threads spin. A thread that spins on a core takes it from the thread that it waits for as soon as
/// another program runs there: the tiny model is then three times as fast if they sleep, and half as fast on idle cores.
class SpinRule {
 public:
  SpinRule(int num_cpus, int num_threads) : num_cpus_(num_cpus), num_threads_(num_threads) {}
  /// `others`: cores that other programs used in the last interval, 0.5 = half of one. Returns whether to spin from now on.
  bool update(double others);

 private:
  int num_cpus_, num_threads_, num_busy_ = 0, num_free_ = 0;
  bool spins_ = true;
};

/// Looks five times a second whether other programs use the cores of `cpus`, and lets the threads of parallel regions sleep
/// while they do. Nothing with one thread.
class BusyCoresWatch {
 public:
  BusyCoresWatch(std::vector<int> cpus, int num_threads);

 private:
  std::jthread thread_;
};

}  // namespace lora_train::plan
