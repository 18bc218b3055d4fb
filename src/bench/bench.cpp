#include "lora_train/bench/bench.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>

#include "bench_run.h"
#include "call_timer.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/gemm.h"
#include "lora_train/metrics/host_memory.h"
#include "lora_train/runtime/run_device.h"
#include "lora_train/runtime/setup.h"
#include "lora_train/train/train_step.h"
#include "work_counter.h"

namespace lora_train::bench {
namespace {

using kernels::WorkClass;

std::string_view recompute_name(model::Recompute mode) {
  constexpr std::array<std::string_view, 4> kNames = {"off", "cheap", "gate_up", "full"};
  return kNames[static_cast<std::size_t>(mode)];
}

// ---- counting -------------------------------------------------------------------------------------------------------

/// Runs a step of the real code on the meta device.
void count_step(BenchRun& bench, std::int64_t step) {
  train::Run& run = bench.run;
  const data::StepPlan plan = run.plan->step(step);
  train::train_step(*run.context, plan, train::build_in_place(run.data.train, plan));
  train::wait_for_step(*run.context, plan);
}

void name_buffers(BenchRun& bench, WorkCounter& counter) {
  train::Run& run = bench.run;
  for (std::int64_t i = 0; i < run.files.config.num_layers; ++i) {
    const model::AcquiredLayer layer(*run.model.weights, i, model::Pass::kForward);
    for (const model::BlockWeights& block : *layer) {
      for (const model::Projection& projection : block.projections) counter.name_buffer(projection.weight, "weights");
    }
  }
  const model::OuterWeights& outer = run.model.weights->acquire_outer(model::Pass::kForward);
  for (const at::Tensor& weight : {outer.embedding, outer.head}) counter.name_buffer(weight, "weights");
  const model::Trainables& parameters = *run.model.parameters;
  for (const at::Tensor& flat : {parameters.values, parameters.grads}) counter.name_buffer(flat, "weights");
  for (const at::Tensor& flat : run.optimizer->tensors) counter.name_buffer(flat, "weights");
  for (const auto& [name, buffer] : run.activations->named_buffers()) counter.name_buffer(buffer, name);
}

/// The planned bytes of a class; nothing for GEMMs, attention and classes without a limit.
std::optional<double> planned_of(WorkClass work_class, const PlannedBytes& planned) {
  switch (work_class) {
    case WorkClass::kNorm: return planned.norm;
    case WorkClass::kRope: return planned.rope;
    case WorkClass::kGatedActivation: return planned.gated_activation;
    case WorkClass::kLora: return planned.lora;
    case WorkClass::kLoss: return planned.loss;
    case WorkClass::kOptimizer: return planned.optimizer;
    default: return std::nullopt;
  }
}

void add_counts(const WorkCounter& counter, const PlannedBytes& planned, BenchResult& result) {
  std::int64_t flops = 0;
  for (std::size_t i = 0; i < kernels::kWorkClassNames.size(); ++i) {
    const auto work_class = static_cast<WorkClass>(i);
    const BenchWork& work = counter.of_class(work_class);
    if (work.calls == 0) continue;
    result.classes.push_back(work);
    result.classes.back().planned_bytes = planned_of(work_class, planned);
    flops += work.flops;
    if (work_class == WorkClass::kGemm || work_class == WorkClass::kAttention) continue;
    result.counted_bytes += static_cast<double>(work.bytes_read + work.bytes_written);
  }
  for (const auto& [name, work] : counter.kernels()) result.kernels.push_back(work);
  result.counted_bytes += static_cast<double>(counter.residual_bytes());
  result.planned_bytes = planned.total();
  result.executed_flops = static_cast<double>(flops);
}

BenchBound bound_of(const WorkCounter& counter, double counted_bytes, const ChipRates& rates) {
  const auto attention = static_cast<double>(counter.of_class(WorkClass::kAttention).flops);
  constexpr double kForwardShare = 2.0 / 7;  // 2 products forward, 5 backward
  BenchBound bound;
  bound.gemm_s = static_cast<double>(counter.of_class(WorkClass::kGemm).flops) / rates.gemm_flops_per_s;
  bound.attention_s = attention * kForwardShare / rates.attention_forward_flops_per_s +
                      attention * (1 - kForwardShare) / rates.attention_backward_flops_per_s;
  bound.memory_s = counted_bytes / rates.copy_bytes_per_s;
  return bound;
}

BenchResult count(const BenchRequest& request, const BenchRun* like) {
  const auto bench = build_meta_run(request, like);
  train::Run& run = bench->run;
  WorkCounter counter;
  name_buffers(*bench, counter);
  count_step(*bench, 1);
  const data::StepPlan plan = run.plan->step(1);
  const StepSizes sizes = sizes_of(run, plan);
  const auto element_bytes = static_cast<int>(c10::elementSize(runtime::compute_dtype(run.profile().model.precision)));
  BenchResult result;
  result.shape = request.shape;
  result.device = "none: counted on the meta device";
  result.precision = to_string(run.profile().model.precision);
  result.recompute = recompute_name(run.spec.recompute.front());
  result.max_seq_len = run.data.max_seq_len;
  result.micro_batch_size = run.spec.micro_batch_size;
  result.global_batch_size = run.spec.global_batch_size;
  result.tokens = sizes.tokens;
  result.supervised_tokens = sizes.supervised;
  result.documents = plan.num_documents;
  result.required = required_flops(run.files.config, run.adapters.specs, sizes);
  add_counts(counter, planned_bytes(run.files.config, run.adapters.specs, sizes, element_bytes), result);
  result.bound = bound_of(counter, result.counted_bytes, kAssumedH200);
  const std::int64_t row_bytes = run.activations->max_tokens() * run.files.config.hidden_size * element_bytes;
  result.passes = counter.passes(row_bytes / 8);
  return result;
}

// ---- measuring ------------------------------------------------------------------------------------------------------

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
  explicit StepClock(train::Run& run) : run_(run), moments_(run.device) { moments_.mark(); }

  void run_step(std::int64_t step) {
    throw_if_stop_requested();
    plans_.push_back(run_.plan->step(step));
    train::train_step(*run_.context, plans_.back(), train::build_in_place(run_.data.train, plans_.back()));
    if (plans_.size() - num_received_ > run_.max_steps_in_flight) receive();
    moments_.mark();
  }
  void drain() {
    while (num_received_ < plans_.size()) receive();
    runtime::wait_for(run_.device);
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
  void receive() { losses_.push_back(train::wait_for_step(*run_.context, plans_[num_received_++]).loss); }

  train::Run& run_;
  std::deque<data::StepPlan> plans_;
  Moments moments_;
  std::vector<double> losses_;
  std::size_t num_received_ = 0;
};

/// The median time of several calls of body(), in seconds.
template <class Body>
double seconds_of(const runtime::RunDevice& device, const Body& body) {
  constexpr int kRepeats = 7;
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats + 2; ++i) {
    runtime::wait_for(device);
    const auto start = train::Clock::now();
    body();
    runtime::wait_for(device);
    if (i >= 2) seconds.push_back(std::chrono::duration<double>(train::Clock::now() - start).count());
  }
  return percentile(seconds, 0.5);
}

/// FLOPs per second of plain GEMMs with the shapes of the model's linears, forward and input gradient, in the mix of a step.
double measure_gemm_rate(const train::Run& run) {
  const std::int64_t tokens = run.spec.micro_batch_size * run.data.max_seq_len;
  const auto options =
      at::TensorOptions(runtime::compute_dtype(run.profile().model.precision)).device(run.device.device);
  double flops = 0, seconds = 0;
  for (const model::BlockShape& block : run.model.decoder->shape.layers.front().blocks) {
    for (const model::ProjectionShape& projection : block.projections) {
      throw_if_stop_requested();
      const at::Tensor weight = at::empty({projection.out_features, projection.in_features}, options).normal_(0, 0.02);
      at::Tensor x = at::empty({tokens, projection.in_features}, options).normal_(0, 1);
      at::Tensor y = at::empty({tokens, projection.out_features}, options);
      seconds += seconds_of(run.device, [&] { kernels::gemm(x, weight.t(), y); });
      seconds += seconds_of(run.device, [&] { kernels::gemm(y, weight, x); });
      flops += 4.0 * static_cast<double>(tokens * projection.in_features * projection.out_features);
    }
  }
  return flops / seconds;
}

/// Keeps a GPU busy for about `ms`, so that the host is far ahead when the calls after it begin.
void occupy(const runtime::RunDevice& device, double ms) {
  constexpr std::int64_t kSize = 8192;
  constexpr double kMaxMs = 500;
  if (!device.is_cuda()) return;
  const at::Tensor a = at::zeros({kSize, kSize}, at::TensorOptions(at::kBFloat16).device(device.device));
  at::Tensor product = at::empty_like(a);
  const double each = 1e3 * seconds_of(device, [&] { kernels::gemm(a, a, product); });
  const int count = static_cast<int>(std::ceil(std::min(ms, kMaxMs) / each));
  for (int i = 0; i < count; ++i) kernels::gemm(a, a, product);
}

TimedStep profile_step(train::Run& run, std::int64_t step, double usual_ms) {
  const data::StepPlan plan = run.plan->step(step);
  const train::NextMicroBatch next = train::build_in_place(run.data.train, plan);
  auto graphs = std::move(run.context->graphs);  // calls inside a graph cannot be timed
  occupy(run.device, 2 * usual_ms);
  CallTimer timer(run.device);
  timer.begin_span("step " + std::to_string(step), 0);
  std::int64_t micro_batch = 0;
  const auto marked = [&] {
    timer.begin_span("micro-batch " + std::to_string(++micro_batch), 1);
    return next();
  };
  train::train_step(*run.context, plan, marked);
  TimedStep timed = timer.finish();
  train::wait_for_step(*run.context, plan);
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

double ms_of_class(const BenchResult& result, WorkClass work_class) {
  for (const auto& work : result.classes) {
    if (work.name == kernels::kWorkClassNames[static_cast<std::size_t>(work_class)]) return work.ms.value_or(0);
  }
  return 0;
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

void measure(const BenchRequest& request, BenchRun& bench, BenchResult& result) {
  constexpr double kGib = 1 << 30;
  train::Run& run = bench.run;
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
  speed.peak_memory_gib = static_cast<double>(runtime::device_memory(run.device).peak_allocated) / kGib;

  std::vector<TimedStep> profiled;
  for (std::int64_t i = 0; i < kProfiledSteps; ++i) {
    profiled.push_back(profile_step(run, request.num_warm_up + request.num_steps + 1 + i, speed.step_ms));
  }
  add_times(profiled, result);
  if (run.device.is_cuda()) {
    std::vector<double> busy_ms;
    for (const auto& step : profiled) busy_ms.push_back(step.duration_us() / 1e3);
    speed.idle_share = std::max(0.0, 1 - percentile(busy_ms, 0.5) / speed.step_ms);
  }
  if (!request.trace.empty()) write_chrome_trace(request.trace, profiled.back(), "lora-train bench " + request.shape);

  speed.gemm_flops_per_s = measure_gemm_rate(run);
  const double per_token = result.required.total() / static_cast<double>(result.tokens);
  speed.gemm_share = per_token * speed.tokens_per_s / speed.gemm_flops_per_s;
  const double linears_ms = ms_of_class(result, WorkClass::kGemm) + ms_of_class(result, WorkClass::kLora);
  const double linears = result.required.linears + result.required.head + result.required.lora;
  if (linears_ms > 0) speed.linears_share = linears / speed.gemm_flops_per_s / (linears_ms / 1e3);
  speed.peak_host_memory_gib = metrics::peak_host_memory_gib();
  result.speed = speed;
}

}  // namespace

BenchResult run_bench(const BenchRequest& request) {
  if (request.count_only) return count(request, nullptr);
  const auto bench = build_bench_run(request);
  BenchResult result = count(request, bench.get());
  result.device = bench->run.device.name;
  result.cuda_graphs = bench->run.capture;
  measure(request, *bench, result);
  return result;
}

}  // namespace lora_train::bench
