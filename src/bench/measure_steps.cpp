#include "measure_steps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "bench_run.h"
#include "call_timer.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/report/host_memory.h"
#include "lora_train/run/train_step.h"

namespace lora_train::bench {
namespace {

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

/// The time and the number of tokens of a step.
struct MeasuredStep {
  double ms = 0, tokens = 0;
};

/// Runs and times steps as in training: on a GPU the host runs ahead, and a step is timed between stream events.
class StepClock {
 public:
  explicit StepClock(run::Run& run) : run_(run), moments_(run.device) { moments_.mark(); }

  void run_step(std::int64_t step) {
    throw_if_stop_requested();
    plans_.push_back(run_.plan->step(step));
    run::train_step(*run_.context, plans_.back(), run::build_in_place(run_.data.train, plans_.back()));
    if (plans_.size() - num_received_ > run_.max_steps_in_flight) receive();
    moments_.mark();
  }
  void drain() {
    while (num_received_ < plans_.size()) receive();
    plan::wait_for(run_.device);
  }
  std::vector<MeasuredStep> steps() const {
    std::vector<MeasuredStep> steps;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      steps.push_back({moments_.us_between(i, i + 1) / 1e3, static_cast<double>(plans_[i].num_tokens)});
    }
    return steps;
  }
  const std::vector<double>& losses() const { return losses_; }

 private:
  void receive() { losses_.push_back(run::wait_for_step(*run_.context, plans_[num_received_++]).loss); }

  run::Run& run_;
  std::deque<data::StepPlan> plans_;
  Moments moments_;
  std::vector<double> losses_;
  std::size_t num_received_ = 0;
};

/// Keeps a GPU busy for about `ms`, so that the host is far ahead when the calls after it begin.
void occupy(const plan::RunDevice& device, double ms) {
  constexpr std::int64_t kSize = 8192;
  constexpr double kMaxMs = 500, kFlops = 2.0 * kSize * kSize * kSize, kFastest = 1e15;  // FLOPs per second
  if (!device.is_cuda()) return;
  const at::Tensor a = at::empty({kSize, kSize}, at::TensorOptions(at::kBFloat16).device(device.device)).normal_();
  at::Tensor product = at::empty_like(a);
  const int count = static_cast<int>(std::ceil(std::min(ms, kMaxMs) / (1e3 * kFlops / kFastest)));
  for (int i = 0; i < count; ++i) kernels::gemm(a, a, product);
}

/// The milliseconds of a step on the GPU alone, graphs included: all of its work is enqueued before it begins.
double busy_ms(run::Run& run, std::int64_t step, double usual_ms) {
  const data::StepPlan plan = run.plan->step(step);
  Moments moments(run.device);
  occupy(run.device, 2 * usual_ms);
  moments.mark();
  run::train_step(*run.context, plan, run::build_in_place(run.data.train, plan));
  moments.mark();
  run::wait_for_step(*run.context, plan);
  plan::wait_for(run.device);
  return moments.us_between(0, 1) / 1e3;
}

double idle_share(run::Run& run, std::int64_t first_step, double usual_ms) {
  std::vector<double> ms;
  for (std::int64_t i = 0; i < kProfiledSteps; ++i) ms.push_back(busy_ms(run, first_step + i, usual_ms));
  return std::max(0.0, 1 - percentile(ms, 0.5) / usual_ms);
}

TimedStep profile_step(run::Run& run, std::int64_t step, double usual_ms) {
  const data::StepPlan plan = run.plan->step(step);
  const run::NextMicroBatch next = run::build_in_place(run.data.train, plan);
  auto graphs = std::move(run.context->graphs);  // calls inside a graph cannot be timed
  occupy(run.device, 2 * usual_ms);
  CallTimer timer(run.device);
  timer.begin_span("step " + std::to_string(step), 0);
  std::int64_t micro_batch = 0;
  const auto marked = [&] {
    timer.begin_span("micro-batch " + std::to_string(++micro_batch), 1);
    return next();
  };
  run::train_step(*run.context, plan, marked);
  TimedStep timed = timer.finish();
  run::wait_for_step(*run.context, plan);
  run.context->graphs = std::move(graphs);
  return timed;
}

void add_times(const std::vector<TimedStep>& steps, BenchResult& result) {
  const auto add = [&](std::vector<BenchWork>& list, const std::string& name, double ms) {
    const auto found = std::find_if(list.begin(), list.end(), [&](const BenchWork& work) { return work.name == name; });
    if (found != list.end()) found->ms = found->ms.value_or(0) + ms;
  };
  for (const auto& step : steps) {
    for (const auto& call : step.calls) {
      const double ms = call.duration_us / 1e3 / static_cast<double>(steps.size());
      const std::string class_name(kernels::kWorkClassNames[static_cast<std::size_t>(call.work_class)]);
      add(result.classes, class_name, ms);
      add(result.kernels, class_name + " " + call.name, ms);
    }
  }
}

BenchSpeed speed_of(const std::vector<MeasuredStep>& steps) {
  std::vector<double> ms, rates;
  for (const auto& step : steps) {
    ms.push_back(step.ms);
    rates.push_back(1e3 * step.tokens / step.ms);
  }
  BenchSpeed speed;
  speed.step_ms = percentile(ms, 0.5);
  speed.step_ms_p10 = percentile(ms, 0.1);
  speed.step_ms_p90 = percentile(ms, 0.9);
  speed.tokens_per_s = percentile(rates, 0.5);
  speed.tokens_per_s_p10 = percentile(rates, 0.1);
  speed.tokens_per_s_p90 = percentile(rates, 0.9);
  return speed;
}

}  // namespace

BenchSpeed measure_steps(const BenchRequest& request, run::Run& run) {
  constexpr double kGib = 1 << 30;
  StepClock clock(run);
  log_info("bench: " + std::to_string(request.num_warm_up) + " steps to warm up, " + std::to_string(request.num_steps) +
           " measured");
  for (std::int64_t step = 1; step <= request.num_warm_up + request.num_steps; ++step) clock.run_step(step);
  clock.drain();
  std::vector<MeasuredStep> steps = clock.steps();
  steps.erase(steps.begin(), steps.begin() + request.num_warm_up);
  BenchSpeed speed = speed_of(steps);
  speed.first_loss = clock.losses().front();
  speed.last_loss = clock.losses().back();
  speed.peak_memory_gib = static_cast<double>(plan::device_memory(run.device).peak_allocated) / kGib;
  speed.startup_peak_memory_gib = static_cast<double>(run.startup_memory.peak_allocated) / kGib;
  speed.peak_host_memory_gib = report::peak_host_memory_gib();
  return speed;
}

void measure_idle_and_classes(const BenchRequest& request, run::Run& run, BenchResult& result) {
  const std::int64_t next_step = request.num_warm_up + request.num_steps + 1;
  const double step_ms = result.speed->step_ms;
  if (run.device.is_cuda()) result.speed->idle_share = idle_share(run, next_step, step_ms);
  std::vector<TimedStep> profiled;
  for (std::int64_t i = 0; i < kProfiledSteps; ++i) profiled.push_back(profile_step(run, next_step + i, step_ms));
  add_times(profiled, result);
  if (!request.trace.empty()) write_chrome_trace(request.trace, profiled.back(), "lora-train bench " + request.shape);
}

}  // namespace lora_train::bench
