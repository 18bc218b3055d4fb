#include "call_timer.h"

#include <nlohmann/json.hpp>

#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

namespace lora_train::bench {
namespace {

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
