// lora-train-probe: test-only. Computes global step 1 of a profile exactly as `train` does, without the update, and
// writes the gradient of every trained tensor; or the first steps with their updates.
//   lora-train-probe --profile P [--set k=v]... [--kernels cuda-on-cpu] --gradients OUT.safetensors
//   lora-train-probe --profile P [--set k=v]... [--kernels cuda-on-cpu] --steps N
//   ... --kernels cuda-on-cpu --attention-gradients own            attention hands over gradients in memory of its own
//   ... --kernels cuda-on-cpu --graphs on|off --steps N              micro-batches in classes, steps recorded and replayed, or not
//   lora-train-probe --profile P [--set k=v]... --in-flight N      the training loop, N steps behind as on a GPU
// Prints {"loss", "supervised_tokens", "grad_norm"} on stdout, or {"losses", "grad_norms", "classes",
// "allocations", "launches", "replays"}: tokens of the batch classes, and how often the last step asked LibTorch for memory,
// outside of attention. cuda-on-cpu: our CUDA kernels compiled for the CPU, in place of the CPU's own.
#include <c10/core/CPUAllocator.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/dispatch/native_kernels.h"
#include "lora_train/base/error.h"
#include "lora_train/config/load.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/optim/lr_schedule.h"
#include "lora_train/run/build_run.h"
#include "lora_train/run/rehearsal.h"
#include "lora_train/run/run_state.h"
#include "lora_train/storage/safetensors.h"
#include "run/reporters.h"
#include "run/train_loop.h"
#include "support/captured_graph.h"
#include "support/on_cpu.h"
#include "support/safetensors_file.h"

namespace lora_train {
namespace {

/// LibTorch's CPU allocator, and how often it was asked.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& inner) : inner_(inner) {}
  c10::DataPtr allocate(std::size_t bytes) override {
    if (!is_paused) ++count;
    return inner_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_.copy_data(to, from, bytes); }

  std::int64_t count = 0;
  inline static bool is_paused = false;

 private:
  c10::Allocator& inner_;
};

struct Pause {
  Pause() { CountingAllocator::is_paused = true; }
  ~Pause() { CountingAllocator::is_paused = false; }
};

/// Gradients of attention where FlashAttention 2 and cuDNN leave them: in memory of their own. It lives until the last tensor
/// of it is gone; from then on, in the order of the stream, it is anybody's: NaN.
struct OwnGradients {
  explicit OwnGradients(const kernels::AttentionGradients& like) {
    put(like.q, to_write.q, handed_over.q);
    put(like.k, to_write.k, handed_over.k);
    put(like.v, to_write.v, handed_over.v);
  }
  inline static bool is_on = false;
  kernels::AttentionGradients to_write, handed_over;

 private:
  static void put(const at::Tensor& like, at::Tensor& written, at::Tensor& handed) {
    const auto bytes = static_cast<std::size_t>(like.numel()) * like.element_size();
    void* const memory = std::malloc(bytes);  // a recorded step comes back to it: kept
    std::memset(memory, 0xFF, bytes);
    written = at::from_blob(memory, like.sizes(), like.options());
    const auto release = [bytes](void* gone) {
      kernels::run_or_capture([gone, bytes] { std::memset(gone, 0xFF, bytes); });
    };
    handed = at::from_blob(memory, like.sizes(), release, like.options());
  }
};

}  // namespace
}  // namespace lora_train

// The linker sends the engine's calls of attention here first (--wrap in CMakeLists.txt).
#define LORA_TRAIN_FORWARD(prefix) \
  prefix##_ZN10lora_train7kernels17attention_forwardERKN2at6TensorES4_S4_RKNS0_15AttentionLayoutERS2_S8_
#define LORA_TRAIN_BACKWARD(prefix) \
  prefix##_ZN10lora_train7kernels18attention_backwardERKN2at6TensorES4_S4_S4_S4_S4_RKNS0_15AttentionLayoutERNS0_18AttentionGradientsE
using Gradients = lora_train::kernels::AttentionGradients;
using lora_train::OwnGradients;
using lora_train::Pause;
using Layout = lora_train::kernels::AttentionLayout;
using In = const at::Tensor&;
using Out = at::Tensor&;
extern "C" {
void LORA_TRAIN_FORWARD(__real_)(In, In, In, const Layout&, Out, Out);
void LORA_TRAIN_FORWARD(__wrap_)(In q, In k, In v, const Layout& layout, Out out, Out lse) {
  const Pause pause;
  LORA_TRAIN_FORWARD(__real_)(q, k, v, layout, out, lse);
}
void LORA_TRAIN_BACKWARD(__real_)(In, In, In, In, In, In, const Layout&, Gradients&);
void LORA_TRAIN_BACKWARD(__wrap_)(In dout, In q, In k, In v, In out, In lse, const Layout& layout,
                                  Gradients& gradients) {
  const Pause pause;
  if (!OwnGradients::is_on) return LORA_TRAIN_BACKWARD(__real_)(dout, q, k, v, out, lse, layout, gradients);
  OwnGradients own(gradients);
  LORA_TRAIN_BACKWARD(__real_)(dout, q, k, v, out, lse, layout, own.to_write);
  gradients = own.handed_over;
}
}

namespace lora_train {
namespace {

struct Arguments {
  ProfileSources sources;
  std::string gradients;
  std::int64_t steps = 0, in_flight = -1;
  bool has_cuda_on_cpu = false;
  std::string graphs;
};

Arguments read_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--profile")
      arguments.sources.profiles.push_back(value);
    else if (flag == "--set")
      arguments.sources.overrides.push_back(parse_override(value));
    else if (flag == "--gradients")
      arguments.gradients = value;
    else if (flag == "--steps")
      arguments.steps = std::stoll(value);
    else if (flag == "--in-flight")
      arguments.in_flight = std::stoll(value);
    else if (flag == "--kernels" && value == "cuda-on-cpu")
      arguments.has_cuda_on_cpu = true;
    else if (flag == "--graphs")
      arguments.graphs = value;
    else if (flag == "--attention-gradients" && value == "own")
      OwnGradients::is_on = true;
    else
      throw ConfigError(
          flag,
          "unknown flag; expected --profile, --set, --kernels, --attention-gradients, --graphs, --gradients, "
          "--steps or --in-flight");
  }
  return arguments;
}

void write_gradients(const std::string& path, const model::Trainables& parameters) {
  const at::Tensor grads = parameters.grads.to(at::kCPU);
  std::vector<storage::TensorToWrite> tensors;
  for (const auto& parameter : parameters.list()) {
    tensors.push_back(model::tensor_to_write(parameter.name, parameters.view(grads, parameter.name)));
  }
  storage::write_safetensors(path, tensors);
}

void print(const nlohmann::json& result) { std::printf("%s\n", result.dump().c_str()); }

void probe_gradients(run::Run& run, const std::string& file) {
  const data::StepPlan plan = run.plan->step(1);
  run::train_step(*run.context, plan, run::build_in_place(run.data.train, plan), run::Update::kSkip);
  const run::StepResult result = run::wait_for_step(*run.context, plan);
  if (!file.empty()) write_gradients(file, *run.model.parameters);
  print({{"loss", result.loss}, {"supervised_tokens", plan.num_supervised}, {"grad_norm", result.grad_norm}});
}

void probe_steps(run::Run& run, std::int64_t num_steps) {
  c10::Allocator& inner = *c10::GetCPUAllocator();
  CountingAllocator counter(inner);
  nlohmann::json losses, norms, classes = nlohmann::json::array();
  for (std::int64_t step = 1; step <= num_steps; ++step) {
    const data::StepPlan plan = run.plan->step(step);
    if (step == num_steps) c10::SetCPUAllocator(&counter, /*priority=*/1);
    run::train_step(*run.context, plan, run::build_in_place(run.data.train, plan));
    const run::StepResult result = run::wait_for_step(*run.context, plan);
    losses.push_back(result.loss);
    norms.push_back(result.grad_norm);
  }
  c10::SetCPUAllocator(&inner, /*priority=*/1);
  for (const auto& c : run.batch_classes) classes.push_back(c.num_tokens);
  print({{"losses", losses},
         {"grad_norms", norms},
         {"classes", classes},
         {"allocations", counter.count},
         {"launches", kernels::on_cpu::num_launches()},
         {"replays", testing_support::CapturedOnCpu::num_replays}});
}

void probe_loop(run::Run& run, std::size_t max_steps_in_flight) {
  run.max_steps_in_flight = max_steps_in_flight;
  std::filesystem::create_directories(run.profile().run.output_dir);
  run::FileReporters reporters(run.profile().run, /*quiet=*/true, run.data.evals.size());
  report::RunSummary summary;
  if (const auto unsaved = run::train_loop(run, reporters, summary)) std::rethrow_exception(unsaved);
  std::printf("%s\n", report::to_json(summary).c_str());
}

int probe(int argc, char** argv) {
  const Arguments arguments = read_arguments(argc, argv);
  if (arguments.has_cuda_on_cpu) {
    kernels::use_native_kernels({&kernels::linked_native_kernels(), nullptr, true});
    kernels::reserve_native_workspace(kernels::kWorkspaceElements, at::kCPU);
  }
  run::TrainRequest request;
  request.profile = load_profile(arguments.sources).profile;
  if (!arguments.graphs.empty()) {
    kernels::use_capture(&testing_support::CapturedOnCpu::capture);
    request.profile.run.cuda_graphs = arguments.graphs == "on" ? CudaGraphs::kAuto : CudaGraphs::kOff;
  }
  run::Run run =
      run::build_run(request, std::make_shared<ranks::OneRank>(), std::make_shared<report::RunClock>(), std::nullopt);
  run::capture_steps(run);
  if (arguments.in_flight >= 0) {
    probe_loop(run, static_cast<std::size_t>(arguments.in_flight));
  } else if (arguments.steps > 0) {
    probe_steps(run, arguments.steps);
  } else {
    probe_gradients(run, arguments.gradients);
  }
  return 0;
}

}  // namespace
}  // namespace lora_train

int main(int argc, char** argv) {
  try {
    return lora_train::probe(argc, argv);
  } catch (const lora_train::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
