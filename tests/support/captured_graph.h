// kernels::capture on the CPU, for native CUDA kernels compiled for the CPU: captures launches, GEMMs and attention, and runs
// them at each replay. Any other ATen computation in a body would run once, during the capture, and is an error.
#pragma once

#include <ATen/record_function.h>

#include <set>
#include <string>

#include "lora_train/base/error.h"
#include "lora_train/kernels/launch/graph.h"
#include "support/on_cpu.h"

namespace lora_train::testing_support {

class CapturedOnCpu : public kernels::Graph {
 public:
  static std::unique_ptr<kernels::Graph> capture(const std::function<void()>& body) {
    auto graph = std::make_unique<CapturedOnCpu>();
    computed().clear();
    kernels::captured_work() = &graph->work_;
    kernels::on_cpu::use_launch_sink(
        [&work = graph->work_](std::function<void()> launch) { work.push_back(std::move(launch)); });
    at::CallbackHandle callback =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
    const auto stop = [&] {
      at::removeCallback(callback);
      kernels::on_cpu::use_launch_sink({});
      kernels::captured_work() = nullptr;
    };
    try {
      body();
    } catch (...) {
      stop();
      throw;
    }
    stop();
    if (!computed().empty()) {
      std::string names;
      for (const auto& name : computed()) names += " " + name;
      throw DeviceError("captured on the CPU", "ATen computed during a capture:" + names);
    }
    return graph;
  }

  void replay() override {
    ++num_replays;
    for (const auto& piece : work_) piece();
  }
  inline static std::int64_t num_replays = 0;

 private:
  static std::set<std::string>& computed() {
    static std::set<std::string> names;
    return names;
  }
  /// Views compute nothing.
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    static const std::set<std::string> views = {"aten::narrow",    "aten::slice", "aten::select",    "aten::t",
                                                "aten::transpose", "aten::view",  "aten::unflatten", "aten::as_strided",
                                                "aten::numpy_T",   "aten::alias", "aten::detach",    "aten::unsqueeze",
                                                "aten::squeeze"};
    if (!views.contains(function.name())) computed().insert(function.name());
    return nullptr;
  }
  std::vector<std::function<void()>> work_;
};

}  // namespace lora_train::testing_support
