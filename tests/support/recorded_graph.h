// kernels::capture on the CPU, for our CUDA kernels compiled for the CPU: launches, products and attention are recorded and
// run at each replay. Whatever else a body computes with ATen would be done once, now, and is an error.
#pragma once

#include <ATen/record_function.h>

#include <set>
#include <string>

#include "kernels/launch/on_cpu.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/graph.h"

namespace lora_train::testing_support {

class RecordedOnCpu : public kernels::Graph {
 public:
  static std::unique_ptr<kernels::Graph> record(const std::function<void()>& body) {
    auto graph = std::make_unique<RecordedOnCpu>();
    computed().clear();
    kernels::recorded_work() = &graph->work_;
    kernels::on_cpu::use_recorder([&work = graph->work_](std::function<void()> launch) { work.push_back(std::move(launch)); });
    at::CallbackHandle callback = at::addThreadLocalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
    const auto stop = [&] {
      at::removeCallback(callback);
      kernels::on_cpu::use_recorder({});
      kernels::recorded_work() = nullptr;
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
      throw DeviceError("recorded on the CPU", "ATen computed while a body was recorded:" + names);
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
    static const std::set<std::string> views = {"aten::narrow", "aten::slice", "aten::select", "aten::t", "aten::transpose",
                                                "aten::view", "aten::unflatten", "aten::as_strided", "aten::numpy_T",
                                                "aten::alias", "aten::detach", "aten::unsqueeze", "aten::squeeze"};
    if (!views.contains(function.name())) computed().insert(function.name());
    return nullptr;
  }
  std::vector<std::function<void()>> work_;
};

}  // namespace lora_train::testing_support
