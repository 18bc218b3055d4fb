#include "bottlenecks.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/device/host.h"

namespace lora_train::run {
namespace {

constexpr long kStepsToJudge = 20;
constexpr double kMsToJudge = 5000;
constexpr long kReadingsToJudge = 30;
constexpr double kNoticeableWait = 0.1;
constexpr double kNoticeableThrottle = 0.2;
constexpr double kBusyEnough = 0.6;

/// What a slowed-down GPU means, with advice, in the order of device::Throttle.
constexpr const char* kThrottleAdvice[device::kNumThrottles] = {
    "it draws as much power as its limit allows, which is normal at full load. nvidia-smi -q -d POWER shows the limit "
    "and whether it can be raised",
    "it is too hot, so steps take longer. Check its cooling", "it is too hot, so steps take longer. Check its cooling",
    "the machine's power supply asks it to draw less, so steps take longer. Check the power supply and what else it "
    "powers",
    "its hardware slows it down, so steps take longer. Check its cooling and power supply: nvidia-smi -q -d "
    "PERFORMANCE"};

constexpr double kNoticeableShare = 0.05;
constexpr double kStepsToJudgeRanks = 50;

double busy_ms(const RankFigures& figures) { return figures.compute_ms + figures.data_wait_ms; }

}  // namespace

BottleneckFacts bottleneck_facts(const Run& run) {
  const DataSection& data = run.profile().data;
  const double world_size = run.ranks().world_size();
  BottleneckFacts facts;
  facts.is_leader = run.is_leader();
  facts.num_workers = data.dataloader_num_workers;
  facts.num_cores = device::describe_host().num_cores / std::max(1, run.request.world.local_size);
  facts.micro_batch_size = run.spec.micro_batch_size;
  facts.rows_per_step = std::llround(run.plan->rows_per_step() / world_size);
  const std::int64_t num_micro_batches =
      std::max<std::int64_t>(1, ceil_div(facts.rows_per_step, std::max<std::int64_t>(1, facts.micro_batch_size)));
  facts.tokens_per_micro_batch = run.plan->tokens_per_step() / world_size / static_cast<double>(num_micro_batches);
  return facts;
}

void Bottlenecks::add(double step_ms, double data_wait_ms, const device::GpuTotals& gpu) {
  if (!has_begun_) {
    has_begun_ = true;
    gpu_begin_ = gpu;
    return;
  }
  ++num_steps_;
  step_ms_ += step_ms;
  wait_ms_ += data_wait_ms;
  gpu_step_ms_ += step_ms;
  gpu_wait_ms_ += data_wait_ms;
  if (num_steps_ >= kStepsToJudge && step_ms_ >= kMsToJudge) judge_data_wait();
  if (gpu.num_readings - gpu_begin_.num_readings >= kReadingsToJudge) judge_gpu(gpu);
}

void Bottlenecks::judge_data_wait() {
  const double share = wait_ms_ / step_ms_;
  const auto num_steps = static_cast<double>(num_steps_);
  if (share > kNoticeableWait && facts_.is_leader && !has_named_wait_) {
    has_named_wait_ = true;
    log_warning(
        "steps wait for data {:.0f}% of the time ({:.1f} of {:.1f} ms, over {} steps): raise dataloader_num_workers "
        "(now {}, on {} cores) or dataloader_prefetch_factor; if dataset_prepared_path is on a slow or network disk, "
        "set stage_dir: auto",
        100 * share, wait_ms_ / num_steps, step_ms_ / num_steps, num_steps_, facts_.num_workers, facts_.num_cores);
  }
  num_steps_ = 0;
  step_ms_ = wait_ms_ = 0;
}

void Bottlenecks::judge_gpu(const device::GpuTotals& gpu) {
  const device::GpuTotals since = gpu - gpu_begin_;
  judge_throttle(since);
  const double busy = since.watched_s > 0 ? since.busy_s / since.watched_s : 1;
  const bool waits = gpu_wait_ms_ > kNoticeableWait * gpu_step_ms_;
  gpu_begin_ = gpu;
  gpu_step_ms_ = gpu_wait_ms_ = 0;
  if (busy >= kBusyEnough || waits || !facts_.is_leader || has_named_idle_) return;
  has_named_idle_ = true;
  log_warning(
      "the GPU is only {:.0f}% busy, though steps do not wait for data: micro-batches of about {:.0f} tokens may be "
      "too small, or evaluations and checkpoints too frequent. Raise micro_batch_size (now {}, of {} rows per step) or "
      "global_batch_size, or pack documents (packing: true)",
      100 * busy, facts_.tokens_per_micro_batch, facts_.micro_batch_size, facts_.rows_per_step);
}

void Bottlenecks::judge_throttle(const device::GpuTotals& since) {
  for (std::size_t i = 0; i < device::kNumThrottles; ++i) {
    const double share = static_cast<double>(since.num_throttled[i]) / static_cast<double>(since.num_readings);
    if (share < kNoticeableThrottle || has_named_throttle_[i]) continue;
    has_named_throttle_[i] = true;
    const auto reason = static_cast<device::Throttle>(i);
    const std::string line = fmt::format("the GPU runs below its full clock {:.0f}% of the time ({}): {}", 100 * share,
                                         device::to_string(reason), kThrottleAdvice[i]);
    reason == device::Throttle::kPowerCap ? log_info(line) : log_warning(line);
  }
}

void RankTimes::Sums::add(const std::vector<RankFigures>& figures, double step_milliseconds) {
  ranks.resize(figures.size());
  for (std::size_t rank = 0; rank < figures.size(); ++rank) {
    ranks[rank].compute_ms += figures[rank].compute_ms;
    ranks[rank].data_wait_ms += figures[rank].data_wait_ms;
    ranks[rank].memory_gib = figures[rank].memory_gib;
  }
  step_ms += step_milliseconds;
  ++num_steps;
}

void RankTimes::add(const std::vector<RankFigures>& figures, double step_ms) {
  if (std::ranges::any_of(figures, [](const RankFigures& rank) { return rank.compute_ms <= 0; })) return;
  for (Sums* sums : {&since_record_, &since_warning_, &all_}) sums->add(figures, step_ms);
  if (since_warning_.num_steps < kStepsToJudgeRanks) return;
  warn();
  since_warning_ = {};
}

void RankTimes::take(report::StepRecord& record) {
  for (auto* of_ranks : {&record.rank_compute_ms, &record.rank_data_wait_ms, &record.rank_memory_gib})
    of_ranks->emplace();
  for (const RankFigures& rank : since_record_.ranks) {
    record.rank_compute_ms->push_back(rank.compute_ms / since_record_.num_steps);
    record.rank_data_wait_ms->push_back(rank.data_wait_ms / since_record_.num_steps);
    record.rank_memory_gib->push_back(rank.memory_gib);
  }
  since_record_ = {};
}

RankTimes::Slowest RankTimes::slowest_of(const Sums& sums) {
  Slowest slowest;
  slowest.rank = static_cast<std::size_t>(std::ranges::max_element(sums.ranks, {}, busy_ms) - sums.ranks.begin());
  std::vector<double> others;
  for (const RankFigures& rank : sums.ranks) others.push_back(busy_ms(rank) / sums.num_steps);
  slowest.ms = others[slowest.rank];
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(slowest.rank));
  std::sort(others.begin(), others.end());
  slowest.other = others[others.size() / 2];
  slowest.share = (slowest.ms - slowest.other) / (sums.step_ms / sums.num_steps);
  return slowest;
}

void RankTimes::warn() {
  is_named_.resize(since_warning_.ranks.size());
  const Slowest slowest = slowest_of(since_warning_);
  if (slowest.share <= kNoticeableShare || is_named_[slowest.rank]) return;
  is_named_[slowest.rank] = true;
  const double wait_ms = since_warning_.ranks[slowest.rank].data_wait_ms / since_warning_.num_steps;
  log_warning(
      "rank {} is the slowest: it needs {:.1f} ms per step ({:.1f} ms of it waiting for data), half of the others "
      "{:.1f} ms or less. Waiting for it costs the others {:.0f}% of the time. Check its device and what else runs on "
      "its host",
      slowest.rank, slowest.ms, wait_ms, slowest.other, 100 * slowest.share);
}

std::string RankTimes::in_words() const {
  if (all_.num_steps == 0) return "ranks: no step was timed";
  const Slowest slowest = slowest_of(all_);
  const double least = busy_ms(std::ranges::min(all_.ranks, {}, busy_ms)) / all_.num_steps;
  return fmt::format(
      "ranks: computing and waiting for data take {:.1f} to {:.1f} ms of a {:.1f} ms step; rank {} is the slowest and "
      "costs {:.1f}% of the time",
      least, slowest.ms, all_.step_ms / all_.num_steps, slowest.rank, 100 * slowest.share);
}

}  // namespace lora_train::run
