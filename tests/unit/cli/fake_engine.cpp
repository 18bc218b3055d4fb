// An engine that trains nothing: it says what it was asked, or throws what `run_name` names. Like the real one it uses
// LibTorch and takes the core modules from the executable.
#include <ATen/ATen.h>

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
  return profile.model.path + "|" + profile.data.datasets.at(0).path + "|" +
         (profile.data.eval_datasets.empty() ? "-" : profile.data.eval_datasets[0].path) + "|" +
         profile.run.output_dir + "|" + profile.run.resume_from_checkpoint + "|" +
         std::to_string(profile.schedule.max_time.value_or(0)) + "|" + std::to_string(profile.adapter.lora_r) + "|" +
         join(request.allow_changed) + "|" + (request.overwrite ? "overwrite" : "") + "|" +
         (request.dry_run ? "dry_run" : "") + "|" + (request.quiet ? "quiet" : "") + "|" +
         std::to_string(request.profile_hash.size());
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
  for (const EvalTask& task : request.profile.tasks.eval_tasks) {
    const std::vector<report::Judged> answers = {{0.75, true}, {0.25, false}};
    found.tasks.push_back({report::task_figures(task.kind, answers), 0, {}});
    found.tasks.back().name = task.name;
  }
  return found;
}

// Answers each prompt with its own tokens.
generate::Totals generate(const evaluate::GenerateRequest& request, const std::vector<generate::Prompt>& prompts,
                          generate::AnswerSink& sink) {
  throw_as_named(request.profile.run.run_name);
  generate::Totals totals;
  sink.on_start(100);
  for (const generate::Prompt& prompt : prompts) {
    for (const auto token : prompt.ids) {
      ++totals.new_tokens;
      if (!sink.on_token(prompt.id, {token})) break;
    }
    sink.on_done(prompt.id, false);
  }
  return totals;
}

generate::Totals answer_turns(const evaluate::GenerateRequest& request, generate::PromptQueue& queue) {
  throw_as_named(request.profile.run.run_name);
  queue.on_start(100);
  while (const auto prompt = queue.next(/*may_wait=*/true)) queue.on_done(prompt->id, false);
  return {};
}

generate::Totals serve_requests(const evaluate::GenerateRequest& request, generate::PromptQueue& queue) {
  throw_as_named(request.profile.run.run_name);
  queue.on_start(100);
  while (const auto asked = queue.next(/*may_wait=*/true)) {
    for (const auto id : asked->ids) {
      if (!queue.on_token(asked->id, {id})) break;
    }
    queue.on_done(asked->id, false);
  }
  return {};
}

bench::BenchResult bench(const bench::BenchRequest& request) {
  throw_as_named(request.profile.run.run_name);
  bench::BenchResult result;
  result.shape = request.shape;
  result.tokens = 1000;
  result.classes = {{"norm", 2, 3, 4000, 1000, 0, 6000, 1.5}};
  result.bound = {1e-3, 0, 1e-3};
  if (!request.count_only) result.speed = bench::BenchSpeed{.step_ms = 10, .tokens_per_s = 100000};
  return result;
}

std::string torch_version() { return LORA_TRAIN_TORCH_VERSION; }

lora::MergeCheck check_merge(const lora::MergeCheckRequest& request) {
  return {0.25, 8, request.rows.size() - 1, 2, 40, 1};
}

model::QuantizeResult quantize(const model::QuantizeRequest& request) { return {request.output_dir, 14, 1000, 3}; }

std::vector<float> decode_linear(const model::StoredLinear&, const storage::WeightFiles&) { return {}; }

bench::ForecastResult forecast_run(const bench::ForecastRequest&) { return {}; }

std::string check_fit(const Profile&, const device::GpuFacts&) { return {}; }

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
  static const EngineApi api = {&train,         &evaluate,       &torch_version, &check_kernels, &generate,
                                &answer_turns,  &serve_requests, &check_merge,   &bench,         &quantize,
                                &decode_linear, &forecast_run,   &check_fit};
  return &api;
}
