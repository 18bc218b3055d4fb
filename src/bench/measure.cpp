#include "measure.h"

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "bench_run.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/model/layer_shape.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/plan/tuning/layer_runs.h"

namespace lora_train::bench {
namespace {

constexpr const char* kWeights = "weights";

/// A copy of the inputs: LibTorch keeps them only until the operation begins.
using Inputs = std::vector<c10::IValue>;
struct OpenCall : at::ObserverContext {
  explicit OpenCall(c10::ArrayRef<const c10::IValue> given) : inputs(given.begin(), given.end()) {}
  Inputs inputs;
};

/// True if an operation only returns a view of its input, or uninitialised memory.
bool does_nothing(const at::RecordFunction& call, const Inputs& inputs, const c10::FunctionSchema& schema) {
  if (std::string(call.name()).find("empty") != std::string::npos) return true;
  for (const auto& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return false;
  }
  for (const auto& output : call.outputs()) {
    if (!output.isTensor()) continue;
    bool is_view = false;
    for (const auto& input : inputs) {
      is_view = is_view || (input.isTensor() && input.toTensor().defined() && output.toTensor().defined() &&
                            output.toTensor().is_alias_of(input.toTensor()));
    }
    if (!is_view) return false;
  }
  return true;
}

/// True if an operation writes a tensor without reading it.
bool is_only_written(const at::RecordFunction& call, const c10::Argument& argument) {
  const std::string name = call.name();
  return argument.is_out() || name == "aten::zero_" || name == "aten::fill_" || name == "aten::copy_";
}

kernels::Work work_of(const at::RecordFunction& call, const Inputs& inputs, const c10::FunctionSchema& schema) {
  kernels::Work work{call.name(), kernels::WorkClass::kCopy, {}};
  bool writes_argument = false;
  for (std::size_t i = 0; i < std::min(inputs.size(), schema.arguments().size()); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!inputs[i].isTensor() || !inputs[i].toTensor().defined()) continue;
    const at::Tensor& tensor = inputs[i].toTensor();
    if (argument.alias_info() == nullptr || !argument.alias_info()->isWrite()) {
      work.reads("input", tensor);
      continue;
    }
    writes_argument = true;
    is_only_written(call, argument) ? work.writes("output", tensor) : work.updates("output", tensor);
  }
  if (writes_argument) return work;
  for (const auto& output : call.outputs()) {
    if (output.isTensor() && output.toTensor().defined()) work.writes("output", output.toTensor());
  }
  return work;
}

void add_call(const std::string& name, const kernels::Work& work, BenchWork& totals) {
  totals.name = name;
  ++totals.calls;
  totals.launches += work.num_launches;
  totals.bytes_read += work.bytes_read();
  totals.bytes_written += work.bytes_written();
  totals.flops += work.flops;
}

constexpr std::size_t kOpen = SIZE_MAX;

std::string sizes_in_words(const kernels::Work& work) {
  std::vector<std::string> operands;
  for (const auto& operand : work.operands) {
    if (operand.sizes.empty()) continue;
    std::vector<std::string> sizes;
    for (const std::int64_t size : operand.sizes) sizes.push_back(std::to_string(size));
    operands.push_back(fmt::format("{} [{}]", operand.name, join(sizes)));
  }
  return join(operands);
}

constexpr double kStd = 0.02;
constexpr double kGemmS = 1;     // long enough for power to limit the clock
constexpr double kShortS = 0.3;  // for work that runs at its limit from the start

/// y [rows, O] = x [rows, D] W^T, and dx = y W.
struct GemmShape {
  std::int64_t rows = 0, D = 0, O = 0, count = 0;
  double flops() const { return 4.0 * static_cast<double>(rows * D * O); }
};

std::int64_t tokens_of_micro_batch(const run::Run& run) { return run.spec.micro_batch_size * run.data.max_seq_len; }

at::ScalarType dtype_of(const run::Run& run) { return plan::compute_dtype(run.profile().model.precision); }

std::vector<GemmShape> gemms_of_micro_batch(const run::Run& run) {
  const model::ModelConfig& config = run.files.config;
  const std::int64_t num_tokens = tokens_of_micro_batch(run);
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> counts;
  model::model_shape(config).for_each_projection([&](const model::ProjectionShape& p) {
    ++counts[{p.in_features, p.out_features}];
  });
  std::vector<GemmShape> shapes;
  for (const auto& [features, count] : counts) shapes.push_back({num_tokens, features.first, features.second, count});
  const plan::StepLoad step = sizes_of(run, run.plan->step(1));
  const std::int64_t V = config.vocab_size;
  const auto supervised = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(static_cast<double>(num_tokens) * step.supervised / step.tokens));
  const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(dtype_of(run)));
  const std::int64_t rows = std::clamp<std::int64_t>(run.spec.loss_chunk_bytes / (V * element_bytes), 1, supervised);
  shapes.push_back({rows, config.hidden_size, V, (supervised + rows - 1) / rows});
  return shapes;
}

/// Operands of every shape in the same buffers. Weights start at successive places, so that none is still in a cache.
class GemmBuffers {
 public:
  GemmBuffers(const std::vector<GemmShape>& shapes, at::TensorOptions options) {
    std::int64_t input = 0, output = 0, widest = 0, all_linears = 0;
    for (const GemmShape& s : shapes) {
      input = std::max(input, s.rows * s.D);
      output = std::max(output, s.rows * s.O);
      widest = std::max(widest, s.D * s.O);
      all_linears += s.D * s.O;
    }
    const std::int64_t head = shapes.back().D * shapes.back().O;
    x_ = at::empty({input}, options).normal_();
    dx_ = at::empty({input}, options);
    y_ = at::empty({output}, options);
    weights_ = at::empty({std::max(widest, all_linears - head)}, options).normal_(0, kStd);
  }

  void multiply(const GemmShape& s) {
    if (next_ + s.D * s.O > weights_.size(0)) next_ = 0;
    const at::Tensor weight = weights_.narrow(0, next_, s.D * s.O).view({s.O, s.D});
    next_ += s.D * s.O;
    const auto rows_of = [&](const at::Tensor& flat, std::int64_t width) {
      return flat.narrow(0, 0, s.rows * width).view({s.rows, width});
    };
    at::Tensor y = rows_of(y_, s.O), dx = rows_of(dx_, s.D);
    kernels::gemm(rows_of(x_, s.D), weight.t(), y);
    kernels::gemm(y, weight, dx);
  }

 private:
  at::Tensor x_, dx_, y_, weights_;
  std::int64_t next_ = 0;
};

double copy_bytes_per_s(const plan::RunDevice& device) {
  const std::int64_t size = std::int64_t{1} << (device.is_cuda() ? 28 : 22);
  const at::Tensor from = at::empty({size}, at::TensorOptions(at::kFloat).device(device.device)).normal_();
  at::Tensor to = at::empty_like(from);
  return 2.0 * 4 * static_cast<double>(size) / seconds_back_to_back(device, kShortS, [&] { to.copy_(from); });
}

/// "2026-11-22T23:59:59Z"
std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text.data();
}

void measure_attention(const run::Run& run, BenchRates& rates) {
  const model::ModelConfig& config = run.files.config;
  const plan::RunDevice& device = run.device;
  const std::int64_t S = run.data.max_seq_len, rows = std::max<std::int64_t>(1, tokens_of_micro_batch(run) / S);
  const std::int64_t width = config.num_heads * config.head_dim;
  plan::AttentionRun attention({config.num_heads, config.num_kv_heads, config.head_dim, width, config.attention_scale},
                               dtype_of(run), std::vector<std::int64_t>(static_cast<std::size_t>(rows), S),
                               device.device);
  // 2 products over the visible scores forward, 5 backward.
  const double forward_flops = 4.0 * static_cast<double>(width * rows * S) * static_cast<double>(S + 1) / 2;
  std::vector<kernels::AttentionBackend> backends = {kernels::AttentionBackend::kAuto};
  if (device.is_cuda()) {
    const auto candidates = kernels::attention_candidates(attention.attention_case());
    if (!candidates.empty()) backends = candidates;
  }
  double best_s = 0;
  for (const kernels::AttentionBackend backend : backends) {
    throw_if_stop_requested();
    const kernels::AttentionLayout layout = attention.layout(/*window=*/0, backend);
    try {
      const double forward_s = seconds_back_to_back(device, kShortS, [&] { attention.forward(layout); });
      const double backward_s = seconds_back_to_back(device, kShortS, [&] { attention.backward(layout); });
      if (best_s > 0 && forward_s + backward_s >= best_s) continue;
      best_s = forward_s + backward_s;
      rates.attention_forward_flops_per_s = forward_flops / forward_s;
      rates.attention_backward_flops_per_s = 2.5 * forward_flops / backward_s;
    } catch (const DeviceError& error) {  // only one of several backends, as in autotuning
      log_info(std::string("bench: skipping an attention backend: ") + error.what());
    }
  }
  if (best_s == 0) throw DeviceError("bench", "no attention backend works, so there is no rate to measure");
}

}  // namespace

/// Observes every LibTorch operation in this thread.
struct WorkCounter::Listener {
  static thread_local WorkCounter* counter;
  static thread_local int depth;
  at::CallbackHandle handle;

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& call) {
    if (++depth > 1 || counter == nullptr || counter->is_inside_kernel()) return nullptr;
    return std::make_unique<OpenCall>(call.inputs());
  }
  static void stop(const at::RecordFunction& call, at::ObserverContext* context) {
    --depth;
    if (context == nullptr || counter == nullptr) return;
    const Inputs& inputs = static_cast<const OpenCall*>(context)->inputs;
    const auto schema = call.operator_schema();
    if (schema && !does_nothing(call, inputs, *schema)) counter->add(work_of(call, inputs, *schema));
  }
  explicit Listener(WorkCounter* listening)
      : handle(at::addThreadLocalCallback(at::RecordFunctionCallback(&start, &stop)
                                              .needsInputs(true)
                                              .needsOutputs(true)
                                              .scopes({at::RecordScope::FUNCTION}))) {
    counter = listening;
    depth = 0;
  }
  ~Listener() {
    counter = nullptr;
    at::removeCallback(handle);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
};
thread_local WorkCounter* WorkCounter::Listener::counter = nullptr;
thread_local int WorkCounter::Listener::depth = 0;

WorkCounter::WorkCounter() : listener_(std::make_unique<Listener>(this)) { kernels::set_work_recorder(this); }

WorkCounter::~WorkCounter() { kernels::set_work_recorder(nullptr); }

void WorkCounter::name_buffer(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.defined()) return;
  named_.push_back(tensor);
  buffers_[tensor.storage().unsafeGetStorageImpl()] = name;
}

std::string WorkCounter::buffer_of(const kernels::WorkOperand& operand) const {
  if (operand.storage == nullptr) return "own memory";
  const auto found = buffers_.find(operand.storage);
  return found != buffers_.end() ? found->second : "other";
}

void WorkCounter::end(const kernels::Work& work) {
  add(work);
  is_inside_ = false;
}

void WorkCounter::add(const kernels::Work& work) {
  const std::string class_name = name_of(work.work_class), kernel = fmt::format("{} {}", class_name, work.name);
  add_call(class_name, work, classes_[static_cast<std::size_t>(work.work_class)]);
  add_call(kernel, work, kernels_[kernel]);
  for (const auto& operand : work.operands) {
    if (work.work_class == kernels::WorkClass::kGemm && operand.name == "residual")
      residual_bytes_ += operand.bytes_read;
    BenchPass pass{kernel, std::string(operand.name), buffer_of(operand), 1, operand.bytes_read, operand.bytes_written};
    const auto same = std::find_if(passes_.begin(), passes_.end(), [&](const BenchPass& other) {
      return other.kernel == pass.kernel && other.operand == pass.operand && other.buffer == pass.buffer &&
             other.bytes_read == pass.bytes_read * other.times &&
             other.bytes_written == pass.bytes_written * other.times;
    });
    if (same == passes_.end()) {
      passes_.push_back(std::move(pass));
    } else {
      ++same->times;
      same->bytes_read += operand.bytes_read;
      same->bytes_written += operand.bytes_written;
    }
  }
}

std::vector<BenchPass> WorkCounter::passes(std::int64_t min_bytes) const {
  std::vector<BenchPass> large;
  for (const auto& pass : passes_) {
    const bool is_large = pass.bytes_read + pass.bytes_written >= min_bytes * pass.times;
    if (is_large && pass.buffer != kWeights) large.push_back(pass);
  }
  return large;
}

std::size_t Moments::mark() {
  if (device_.is_cuda()) {
    events_.emplace_back(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT).record(plan::compute_stream(device_));
    return events_.size() - 1;
  }
  times_.push_back(std::chrono::steady_clock::now());
  return times_.size() - 1;
}

double Moments::us_between(std::size_t from, std::size_t to) const {
  if (device_.is_cuda()) return 1e3 * events_[from].elapsedTime(events_[to]);
  return std::chrono::duration<double, std::micro>(times_[to] - times_[from]).count();
}

CallTimer::CallTimer(const plan::RunDevice& device) : device_(device), moments_(device) {
  kernels::set_work_recorder(this);
}

CallTimer::~CallTimer() { kernels::set_work_recorder(nullptr); }

void CallTimer::begin(const kernels::Work&) { call_moments_.emplace_back(moments_.mark(), kOpen); }

void CallTimer::end(const kernels::Work& work) {
  call_moments_.back().second = moments_.mark();
  calls_.push_back({std::string(work.name), sizes_in_words(work), work.work_class, work.bytes_read(),
                    work.bytes_written(), work.flops});
}

void CallTimer::close_spans(int depth, std::size_t moment) {
  for (auto& span : spans_) {
    if (span.depth >= depth && span.end == kOpen) span.end = moment;
  }
}

void CallTimer::begin_span(const std::string& name, int depth) {
  const std::size_t moment = moments_.mark();
  close_spans(depth, moment);
  spans_.push_back({name, depth, moment, kOpen});
}

TimedStep CallTimer::finish() {
  close_spans(0, moments_.mark());
  plan::wait_for(device_);
  TimedStep step;
  const std::size_t start = spans_.empty() ? 0 : spans_.front().start;
  for (const auto& span : spans_) {
    step.spans.push_back(
        {span.name, moments_.us_between(start, span.start), moments_.us_between(span.start, span.end)});
  }
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    calls_[i].start_us = moments_.us_between(start, call_moments_[i].first);
    calls_[i].duration_us = moments_.us_between(call_moments_[i].first, call_moments_[i].second);
  }
  step.calls = std::move(calls_);
  return step;
}

void write_chrome_trace(const std::filesystem::path& file, const TimedStep& step, const std::string& title) {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  events.push_back({{"ph", "M"}, {"pid", 1}, {"tid", 1}, {"name", "process_name"}, {"args", {{"name", title}}}});
  const auto complete = [](const std::string& name, const std::string& category, double start_us, double duration_us) {
    return Json{{"ph", "X"},       {"pid", 1},       {"tid", 1},          {"name", name},
                {"cat", category}, {"ts", start_us}, {"dur", duration_us}};
  };
  for (const auto& span : step.spans) events.push_back(complete(span.name, "step", span.start_us, span.duration_us));
  for (const auto& call : step.calls) {
    events.push_back(complete(call.name, name_of(call.work_class), call.start_us, call.duration_us));
    events.back()["args"] = {{"bytes_read", call.bytes_read},
                             {"bytes_written", call.bytes_written},
                             {"flops", call.flops},
                             {"sizes", call.sizes}};
  }
  write_file_atomic(file, Json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump(1));
}

double measure_gemm_rate(const run::Run& run) {
  const std::vector<GemmShape> shapes = gemms_of_micro_batch(run);
  GemmBuffers buffers(shapes, at::TensorOptions(dtype_of(run)).device(run.device.device));
  const auto tuned_products = plan::tune_products(run.tuning.get());
  double flops = 0;
  for (const GemmShape& shape : shapes) flops += static_cast<double>(shape.count) * shape.flops();
  const double seconds = seconds_back_to_back(run.device, kGemmS, [&] {
    throw_if_stop_requested();
    for (const GemmShape& shape : shapes) {
      for (std::int64_t i = 0; i < shape.count; ++i) buffers.multiply(shape);
    }
  });
  return flops / seconds;
}

BenchRates measure_rates(const run::Run& run) {
  BenchRates rates;
  rates.gpu = run.device.name;
  rates.date = utc_now();
  rates.gemm_flops_per_s = measure_gemm_rate(run);
  measure_attention(run, rates);
  rates.copy_bytes_per_s = copy_bytes_per_s(run.device);
  return rates;
}

}  // namespace lora_train::bench
