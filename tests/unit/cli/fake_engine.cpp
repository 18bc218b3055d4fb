// An engine that trains nothing: it says what it was asked, or throws what `run_name` names. Like the real one it uses
// LibTorch and takes the core modules from the executable.

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <new>
#include <thread>

#include "engine/engine_api.h"
#include "lora_train/base/error.h"
#include "lora_train/base/library.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/report/summary.h"
#include "lora_train_build_id.h"

namespace lora_train::cli {
namespace {

void throw_as_named(const std::string& name) {
  if (name == "data") throw DataError("rows.jsonl:3", "not an object. Expected one.");
  if (name == "format") throw FormatError("model.safetensors", "too short.");
  if (name == "io") throw IoError("run", "No space left on device");
  if (name == "device") throw DeviceError("cuda:0", "out of memory");
  if (name == "numeric") throw NumericError("step 3", "loss is not finite");
  if (name == "shape") throw ShapeError("rms_norm", "weight is not [D]");
  if (name == "torch") TORCH_CHECK(false, "sizes differ: ", 2, " and ", 3);
  if (name == "bad_alloc") throw std::bad_alloc();
  if (name == "bad_alloc_in_thread") std::jthread([] { throw std::bad_alloc(); }).join();
  if (name == "unknown") throw 42;  // NOLINT: the point of the test
}

std::string text_of(const run::TrainRequest& request) {
  const Profile& profile = request.profile;
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", profile.model.path, profile.data.datasets.at(0).path,
                     profile.data.eval_datasets.empty() ? "-" : profile.data.eval_datasets[0].path,
                     profile.run.output_dir, profile.run.resume_from_checkpoint, profile.schedule.max_time.value_or(0),
                     profile.adapter.lora_r, join(request.allow_changed), request.overwrite ? "overwrite" : "",
                     request.dry_run ? "dry_run" : "", request.quiet ? "quiet" : "", request.profile_hash.size());
}

run::TrainResult train(const run::TrainRequest& request) {
  log_info("fake engine");
  throw_as_named(request.profile.run.run_name);
  report::RunSummary summary;
  summary.reason = text_of(request);
  summary.step = at::ones({3, 4}).sum().item<std::int64_t>();
  if (request.profile.run.run_name == "stopped") {
    summary.status = "stopped";
    summary.exit_code = 75;
  }
  return {summary.exit_code, report::to_json(summary)};
}

evaluate::Evaluation evaluate(const evaluate::EvalRequest& request) {
  evaluate::Evaluation found;
  const auto add = [&](const std::string& name, double loss, double perplexity, double accuracy, double ece,
                       long long num_tokens) {
    evaluate::EvalResult& set = found.sets.emplace_back();
    set.name = name, set.loss = loss, set.perplexity = perplexity, set.token_accuracy = accuracy, set.ece = ece;
    set.num_tokens = num_tokens;
  };
  add("val", 0.5, std::exp(0.5), 0.75, 0.01, 1234567);
  add(request.adapter.string(), 1, 2, 0, 0, 1);
  return found;
}

std::string torch_version() { return LORA_TRAIN_TORCH_VERSION; }

std::vector<bench::KernelCheck> check_kernels(const bench::DoctorRequest& request) {
  if (std::getenv("FAKE_KERNELS_THROW") != nullptr) throw DeviceError("cuda:0", "out of memory");
  const bool passes = std::getenv("FAKE_KERNEL_FAILS") == nullptr;
  const bench::KernelCheck check{
      "swiglu forward fp32", "N=3 F=5", passes ? 1e-7 : 0.5, 1e-5, 12.5, 40, passes, request.use_cuda ? "cuda" : "cpu"};
  request.on_check(check);
  if (std::getenv("FAKE_DOCTOR_DIES") != nullptr) std::raise(SIGKILL);
  return {check};
}

}  // namespace
}  // namespace lora_train::cli

extern "C" const char* lora_train_build_id() {
  const char* const other = std::getenv("FAKE_ENGINE_BUILD_ID");
  return other != nullptr ? other : LORA_TRAIN_BUILD_ID;
}

extern "C" const lora_train::cli::EngineApi* lora_train_engine() {
  using namespace lora_train::cli;
  static const EngineApi api = [] {
    EngineApi some = {};  // no test asks for the others
    some.train = &train;
    some.evaluate = &evaluate;
    some.torch_version = &torch_version;
    some.check_kernels = &check_kernels;
    return some;
  }();
  return &api;
}
