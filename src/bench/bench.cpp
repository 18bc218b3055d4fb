#include "lora_train/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "bench_run.h"
#include "forecast/measured_rates.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/plan/setup/setup.h"
#include "lora_train/report/host_memory.h"
#include "lora_train/run/rehearsal.h"
#include "lora_train/run/run_state.h"
#include "lora_train/run/train_step.h"
#include "measure.h"

namespace lora_train::bench {
namespace {

using kernels::WorkClass;

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

/// The time and token count of a step.
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

/// Keeps a GPU busy for about `ms`, so that the host is far ahead when the next calls begin.
void occupy(const plan::RunDevice& device, double ms) {
  constexpr std::int64_t kSize = 8192;
  constexpr double kMaxMs = 500, kFlops = 2.0 * kSize * kSize * kSize, kFastest = 1e15;  // FLOPs per second
  if (!device.is_cuda()) return;
  const at::Tensor a = at::empty({kSize, kSize}, at::TensorOptions(at::kBFloat16).device(device.device)).normal_();
  at::Tensor product = at::empty_like(a);
  const int count = static_cast<int>(std::ceil(std::min(ms, kMaxMs) / (1e3 * kFlops / kFastest)));
  for (int i = 0; i < count; ++i) kernels::gemm(a, a, product);
}

/// The milliseconds of a step on the GPU alone, graphs included: enqueues all of its work before it begins.
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
  timer.begin_span(fmt::format("step {}", step), 0);
  std::int64_t micro_batch = 0;
  const auto marked = [&] {
    timer.begin_span(fmt::format("micro-batch {}", ++micro_batch), 1);
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
      const std::string class_name = name_of(call.work_class);
      add(result.classes, class_name, ms);
      add(result.kernels, fmt::format("{} {}", class_name, call.name), ms);
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

/// Runs the warm-up and the measured steps. Returns the times, losses and memory of the latter.
BenchSpeed measure_steps(const BenchRequest& request, run::Run& run) {
  constexpr double kGib = 1 << 30;
  StepClock clock(run);
  log_info("bench: {} warm-up steps, {} measured", request.num_warm_up, request.num_steps);
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

/// Runs more steps to set result.speed->idle_share and the times of classes and kernels, and to write the trace if
/// requested.
void measure_idle_and_classes(const BenchRequest& request, run::Run& run, BenchResult& result) {
  const std::int64_t next_step = request.num_warm_up + request.num_steps + 1;
  const double step_ms = result.speed->step_ms;
  if (run.device.is_cuda()) result.speed->idle_share = idle_share(run, next_step, step_ms);
  std::vector<TimedStep> profiled;
  for (std::int64_t i = 0; i < kProfiledSteps; ++i) profiled.push_back(profile_step(run, next_step + i, step_ms));
  add_times(profiled, result);
  if (!request.trace.empty()) write_chrome_trace(request.trace, profiled.back(), "lora-train bench " + request.shape);
}

// ---- counting -------------------------------------------------------------------------------------------------------

void name_buffers(const run::Run& run, WorkCounter& counter) {
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

/// The planned bytes of a class; empty for GEMMs, attention and classes without a limit.
std::optional<double> planned_of(WorkClass work_class, const plan::PlannedBytes& planned) {
  switch (work_class) {
    case WorkClass::kNorm: return planned.norm;
    case WorkClass::kRope: return planned.rope;
    case WorkClass::kGatedActivation: return planned.gated_activation;
    case WorkClass::kGatedDelta: return planned.gated_delta;
    case WorkClass::kLora: return planned.lora;
    case WorkClass::kLoss: return planned.loss;
    case WorkClass::kOptimizer: return planned.optimizer;
    default: return std::nullopt;
  }
}

/// Fills the bound of a counted step and the part of each class, which add up to it. Residuals that GEMMs read belong
/// to the GEMMs.
void set_bound(const BenchRates& rates, BenchResult& result) {
  constexpr double kForwardShare = 2.0 / 7;  // attention has 2 products forward, 5 backward
  result.rates = rates;
  result.bound = {};
  result.bound.memory_s = result.counted_bytes / rates.copy_bytes_per_s;
  double residual_bytes = result.counted_bytes;
  BenchWork* gemms = nullptr;
  for (BenchWork& work : result.classes) {
    const auto flops = static_cast<double>(work.flops),
               bytes = static_cast<double>(work.bytes_read + work.bytes_written);
    if (work.name == name_of(WorkClass::kGemm)) {
      gemms = &work;
      work.bound_ms = 1e3 * (result.bound.gemm_s = flops / rates.gemm_flops_per_s);
    } else if (work.name == name_of(WorkClass::kAttention)) {
      result.bound.attention_s = flops * kForwardShare / rates.attention_forward_flops_per_s +
                                 flops * (1 - kForwardShare) / rates.attention_backward_flops_per_s;
      work.bound_ms = 1e3 * result.bound.attention_s;
    } else {
      residual_bytes -= bytes;
      work.bound_ms = 1e3 * bytes / rates.copy_bytes_per_s;
    }
  }
  if (gemms != nullptr) *gemms->bound_ms += 1e3 * residual_bytes / rates.copy_bytes_per_s;
}

void add_counts(const WorkCounter& counter, const plan::PlannedBytes& planned, BenchResult& result) {
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

BenchResult count(const BenchRequest& request, const BenchRun* like, const BenchRates& rates) {
  const auto bench = build_meta_run(request, like);
  run::Run& run = bench->run;
  const data::StepPlan plan = run.plan->step(1);
  const plan::StepLoad sizes = sizes_of(run, plan);
  const auto element_bytes = static_cast<int>(plan::compute_bytes(run.profile().model.precision));
  const plan::PlannedBytes planned =
      plan::planned_bytes(run.files.config, run.adapters.specs, sizes, element_bytes, run.profile().optimizer.kind);
  WorkCounter counter;
  name_buffers(run, counter);
  counter.reset();  // naming the layers of a quantised base decoded them
  run::train_step(*run.context, plan, run::build_in_place(run.data.train, plan));
  run::wait_for_step(*run.context, plan);
  BenchResult result;
  result.shape = request.shape;
  result.device = "none: counted on the meta device";
  result.precision = to_string(run.profile().model.precision);
  result.recompute = model::describe_recompute(run.spec.recompute);
  result.row_pitch = run.spec.columns.row_pitch == model::RowPitch::kPadded ? "padded" : "exact";
  result.max_seq_len = run.data.max_seq_len;
  result.micro_batch_size = run.spec.micro_batch_size;
  result.global_batch_size = run.spec.global_batch_size;
  result.tokens = static_cast<std::int64_t>(sizes.tokens);
  result.supervised_tokens = static_cast<std::int64_t>(sizes.supervised);
  result.documents = plan.num_documents;
  result.required = plan::required_flops(run.files.config, run.adapters.specs, sizes);
  add_counts(counter, planned, result);
  set_bound(rates, result);
  const std::int64_t row_bytes = run.activations->max_tokens() * run.files.config.hidden_size * element_bytes;
  result.passes = counter.passes(row_bytes / 8);
  return result;
}

// ---- measuring ------------------------------------------------------------------------------------------------------

double ms_of_class(const BenchResult& result, WorkClass work_class) {
  for (const auto& work : result.classes) {
    if (work.name == name_of(work_class)) return work.ms.value_or(0);
  }
  return 0;
}

void add_gemm_rate(double flops_per_s, BenchResult& result) {
  BenchSpeed& speed = *result.speed;
  const double per_token = result.required.total() / static_cast<double>(result.tokens);
  speed.gemm_flops_per_s = flops_per_s;
  speed.gemm_share = per_token * speed.tokens_per_s / flops_per_s;
  const double linears_ms = ms_of_class(result, WorkClass::kGemm) + ms_of_class(result, WorkClass::kLora);
  const double linears = result.required.linears + result.required.head + result.required.lora;
  if (linears_ms > 0) speed.linears_share = linears / flops_per_s / (linears_ms / 1e3);
}

std::filesystem::path file_of_rates(const BenchRequest& request, const std::string& gpu) {
  const std::filesystem::path file =
      request.rates.empty() ? rates_cache_file(gpu, to_string(request.profile.model.precision)) : request.rates;
  if (file.empty()) {
    throw ConfigError("--rates", "missing, and neither XDG_CACHE_HOME nor HOME is set to find the cache folder");
  }
  return file;
}

/// Measures the rates of a run, writes them to their file, and reads them back.
BenchRates measure_and_keep(const BenchRequest& request, const run::Run& run) {
  const std::filesystem::path file = file_of_rates(request, run.device.name);
  BenchRates rates = measure_rates(run);
  rates.shape = request.shape;
  rates.precision = to_string(request.profile.model.precision);
  write_rates(file, rates);
  log_info("bench: wrote the measured rates to " + file.string());
  return read_rates(file);
}

BenchRates measure_rates_alone(const BenchRequest& request) {
  const auto bench = build_meta_run(request, nullptr);
  run::Run& run = bench->run;
  run.device = plan::start_device(run.profile(), run.files.config);
  run.tuning = plan::start_tuning(run.profile().run, run.device, "");
  BenchRates rates = measure_and_keep(request, run);
  if (run.tuning) run.tuning->finish();
  return rates;
}

/// Runs a measurement after the steps. If memory is too small for it, its figures stay unknown, but those of the steps
/// are kept.
template <class Body>
void try_to_measure(const char* what, const Body& body) {
  try {
    body();
  } catch (const c10::OutOfMemoryError& error) {
    log_warning("bench: not enough memory to measure {}, which stays unknown: {}", what,
                error.what_without_backtrace());
  }
}

void measure(const BenchRequest& request, run::Run& run, BenchResult& result) {
  result.speed = measure_steps(request, run);
  if (!request.only_steps)
    try_to_measure("idle time and classes", [&] { measure_idle_and_classes(request, run, result); });
  if (request.only_steps && !request.measure_rates) return;
  run::release_buffers(run);  // a plan may fill the GPU with them
  try_to_measure("rates", [&] {
    if (request.measure_rates) set_bound(measure_and_keep(request, run), result);
    add_gemm_rate(request.measure_rates ? result.rates.gemm_flops_per_s : measure_gemm_rate(run), result);
  });
  if (run.tuning) run.tuning->finish();
}

}  // namespace

BenchResult run_bench(const BenchRequest& request) {
  const std::string precision = to_string(request.profile.model.precision);
  if (request.count_only && request.measure_rates) return count(request, nullptr, measure_rates_alone(request));
  if (request.count_only) return count(request, nullptr, find_rates(request.rates, "", precision));
  const auto known_rates = [&](const std::string& gpu) {
    return request.measure_rates ? assumed_rates() : find_rates(request.rates, gpu, precision);
  };
  if (request.measure_rates) file_of_rates(request, "");  // throws before measuring
  known_rates("");
  const auto bench = build_bench_run(request);
  BenchResult result = count(request, bench.get(), known_rates(bench->run.device.name));
  result.device = bench->run.device.name;
  result.cuda_graphs = bench->run.capture;
  measure(request, bench->run, result);
  return result;
}

}  // namespace lora_train::bench
