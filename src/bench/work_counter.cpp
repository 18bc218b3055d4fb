#include "work_counter.h"

#include <ATen/ATen.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

namespace lora_train::bench {
namespace {

constexpr const char* kWeights = "weights";

/// A copy of the inputs: LibTorch keeps them only until the operation begins.
using Inputs = std::vector<c10::IValue>;
struct OpenCall : at::ObserverContext {
  explicit OpenCall(c10::ArrayRef<const c10::IValue> given) : inputs(given.begin(), given.end()) {}
  Inputs inputs;
};

/// Whether an operation only returns a view of its input, or uninitialised memory.
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

/// Whether an operation writes a tensor without reading it.
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

std::string sizes_of(const kernels::Work& work) {
  std::vector<std::string> operands;
  for (const auto& operand : work.operands) {
    if (operand.sizes.empty()) continue;
    std::vector<std::string> sizes;
    for (const std::int64_t size : operand.sizes) sizes.push_back(std::to_string(size));
    operands.push_back(std::string(operand.name) + " [" + join(sizes) + "]");
  }
  return join(operands);
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
  const auto index = static_cast<std::size_t>(work.work_class);
  const std::string class_name(kernels::kWorkClassNames[index]), kernel = class_name + " " + std::string(work.name);
  add_call(class_name, work, classes_[index]);
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
  calls_.push_back(
      {std::string(work.name), sizes_of(work), work.work_class, work.bytes_read(), work.bytes_written(), work.flops});
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
  const auto complete = [](const std::string& name, std::string_view category, double start_us, double duration_us) {
    return Json{{"ph", "X"},       {"pid", 1},       {"tid", 1},          {"name", name},
                {"cat", category}, {"ts", start_us}, {"dur", duration_us}};
  };
  for (const auto& span : step.spans) events.push_back(complete(span.name, "step", span.start_us, span.duration_us));
  for (const auto& call : step.calls) {
    events.push_back(complete(call.name, kernels::kWorkClassNames[static_cast<std::size_t>(call.work_class)],
                              call.start_us, call.duration_us));
    events.back()["args"] = {{"bytes_read", call.bytes_read},
                             {"bytes_written", call.bytes_written},
                             {"flops", call.flops},
                             {"sizes", call.sizes}};
  }
  write_file_atomic(file, Json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump(1));
}

}  // namespace lora_train::bench
