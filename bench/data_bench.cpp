// Tokens per second from documents to micro-batches on one core: packing, planning, gathering; and what packing costs
// and fills for windows of different size. Needs no torch.
// Built with -DLORA_TRAIN_BENCH=ON; run: build/<folder>/bin/data_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>

#include "lora_train/data/plan/epoch_rows.h"
#include "lora_train/data/plan/micro_batch.h"
#include "lora_train/data/plan/plan.h"

namespace lora_train::data {
namespace {

using benchmark::State;

constexpr std::uint32_t kMaxSeqLen = 4096;

// Log-normal lengths of a given mean, as chats have them, cut at `longest`.
std::vector<std::uint32_t> lengths_of_mean(std::size_t count, double mean, std::uint32_t longest) {
  constexpr double kSigma = 0.8;
  std::mt19937 random(1);
  std::lognormal_distribution<double> length(std::log(mean) - kSigma * kSigma / 2, kSigma);
  std::vector<std::uint32_t> lengths(count);
  for (auto& tokens : lengths) {
    tokens = static_cast<std::uint32_t>(std::clamp(length(random), 1.0, static_cast<double>(longest)));
  }
  return lengths;
}

std::int64_t sum(const std::vector<std::uint32_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

DocumentStore store_of(const std::vector<std::uint32_t>& lengths) {
  TokenTableWriter writer({}, "bench");
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    ids.resize(lengths[i]);
    std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(i));
    writer.append(ids, ids, 0, i + 1);
  }
  DocumentStore store;
  store.add(writer.finish("{}"), {"rows.jsonl"});
  return store;
}

// 16 Mi tokens: 128 MiB of ids and labels, more than the caches of a core.
DocumentStore large_store(double mean) {
  return store_of(lengths_of_mean(static_cast<std::size_t>((16 << 20) / mean), mean, kMaxSeqLen));
}

PlanOptions one_epoch(bool packing) {
  PlanOptions options;
  options.max_seq_len = kMaxSeqLen;
  options.packing = packing;
  options.global_batch_size = 64;
  options.micro_batch_size = 4;
  options.num_epochs = 1;
  return options;
}

void count_tokens(State& state, std::int64_t per_iteration) {
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(per_iteration), benchmark::Counter::kIsIterationInvariantRate);
}

/// The goal of 50 M tokens/s: an epoch from nothing to its last micro-batch, in one thread. Arguments: mean length,
/// packing.
void epoch(State& state) {
  const DocumentStore store = large_store(static_cast<double>(state.range(0)));
  HostBuffer buffer;
  for (auto _ : state) {
    const RunPlan plan(store, one_epoch(state.range(1) != 0));
    for (std::int64_t k = 1; k <= plan.total_steps(); ++k) {
      for (const MicroBatchPlan& micro_batch : plan.step(k).micro_batches) {
        benchmark::DoNotOptimize(build_micro_batch(store, micro_batch, buffer));
      }
    }
  }
  count_tokens(state, store.total_tokens());
}

/// The parts of it: the plan, its steps, and gathering alone.
void epoch_plan(State& state) {
  const DocumentStore store = large_store(static_cast<double>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(RunPlan(store, one_epoch(true)).total_steps());
  }
  count_tokens(state, store.total_tokens());
}

void epoch_steps(State& state) {
  const DocumentStore store = large_store(static_cast<double>(state.range(0)));
  PlanOptions options = one_epoch(true);
  options.world_size = state.range(1);
  const RunPlan plan(store, options);
  for (auto _ : state) {
    for (std::int64_t k = 1; k <= plan.total_steps(); ++k) {
      benchmark::DoNotOptimize(plan.step(k));
    }
  }
  count_tokens(state, store.total_tokens());
}

/// Through the loader. Arguments: mean length, workers.
void loader(State& state) {
  const DocumentStore store = large_store(static_cast<double>(state.range(0)));
  const RunPlan plan(store, one_epoch(true));
  PrefetchOptions options;
  options.num_workers = state.range(1);
  for (auto _ : state) {
    BatchPrefetcher micro_batches(store, plan, 1, plan.total_steps(), options);
    for (std::int64_t k = 1; k <= plan.total_steps(); ++k) {
      const auto step = micro_batches.next_step();
      for (std::size_t i = 0; i < step->micro_batches.size(); ++i) {
        benchmark::DoNotOptimize(micro_batches.next_micro_batch());
      }
    }
  }
  count_tokens(state, store.total_tokens());
}

/// Share of the rows' room that is filled. Arguments: mean length, window (0 = next-fit).
void packing_efficiency(State& state) {
  const auto lengths = lengths_of_mean(1 << 20, static_cast<double>(state.range(0)), kMaxSeqLen);
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  const auto window = static_cast<std::size_t>(state.range(1));
  std::size_t num_rows = 0;
  for (auto _ : state) {
    num_rows = window == 0 ? pack_next_fit(order, lengths, kMaxSeqLen).size()
                           : pack_first_fit_decreasing(order, lengths, kMaxSeqLen, {1, 2}, window).size();
  }
  count_tokens(state, sum(lengths));
  state.counters["filled_%"] =
      100.0 * static_cast<double>(sum(lengths)) / (static_cast<double>(num_rows) * static_cast<double>(kMaxSeqLen));
}

double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

/// A plan of many documents (short ones, so that the store fits; rows in proportion): seconds for an epoch and what it
/// keeps in memory. Argument: documents in millions.
void plan_of_many(State& state) {
  const DocumentStore store = store_of(lengths_of_mean(static_cast<std::size_t>(state.range(0)) * 1'000'000, 4, 80));
  PlanOptions options = one_epoch(true);
  options.max_seq_len = 80;
  for (auto _ : state) {
    const double before = resident_mib();
    const RunPlan plan(store, options);
    benchmark::DoNotOptimize(plan.step(1));
    state.counters["kept_MiB"] = resident_mib() - before;
  }
}

#define LORA_TRAIN_ONCE(f) BENCHMARK(f)->Unit(benchmark::kMillisecond)
LORA_TRAIN_ONCE(epoch)->ArgNames({"mean", "packing"})->ArgsProduct({{200, 1500}, {1, 0}});
LORA_TRAIN_ONCE(epoch_plan)->ArgNames({"mean"})->Arg(200)->Arg(1500);
LORA_TRAIN_ONCE(epoch_steps)->ArgNames({"mean", "world"})->ArgsProduct({{200, 1500}, {1, 8}});
LORA_TRAIN_ONCE(loader)->ArgNames({"mean", "workers"})->ArgsProduct({{200, 1500}, {0, 1}})->UseRealTime();
LORA_TRAIN_ONCE(packing_efficiency)
    ->ArgNames({"mean", "window"})
    ->ArgsProduct({{50, 200, 1500}, {0, 512, 2048, 8192, 32768, 131072}});
LORA_TRAIN_ONCE(plan_of_many)->ArgNames({"million"})->Arg(10)->Iterations(1);

}  // namespace
}  // namespace lora_train::data

BENCHMARK_MAIN();
