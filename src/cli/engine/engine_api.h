// The interface between the executable and liblora_train_engine.so. No torch: the executable uses it before it loads
// LibTorch.
#pragma once

#include <string>
#include <vector>

#include "lora_train/bench/bench.h"
#include "lora_train/bench/doctor/doctor.h"
#include "lora_train/bench/forecast/forecast.h"
#include "lora_train/evaluate/evaluation.h"
#include "lora_train/evaluate/generation.h"
#include "lora_train/lora/merge.h"
#include "lora_train/model/weights/quantize_model.h"
#include "lora_train/run/run_training.h"

namespace lora_train::cli {

/// The table of functions that liblora_train_engine.so exports through lora_train_engine(). Functions throw Error.
/// Valid only if the library's lora_train_build_id() is the caller's LORA_TRAIN_BUILD_ID: check that first.
struct EngineApi {
  run::TrainResult (*train)(const run::TrainRequest&);
  evaluate::Evaluation (*evaluate)(const evaluate::EvalRequest&);
  std::string (*torch_version)();
  std::vector<bench::KernelCheck> (*check_kernels)(const bench::DoctorRequest&);
  /// StopError between two tokens; the sink has received all earlier tokens.
  generate::Totals (*generate)(const evaluate::GenerateRequest&, const std::vector<generate::Prompt>&,
                               generate::AnswerSink&);
  generate::Totals (*answer_turns)(const evaluate::GenerateRequest&, generate::PromptQueue&);
  generate::Totals (*serve)(const evaluate::GenerateRequest&, generate::PromptQueue&);
  std::vector<lora::MergeCheck> (*check_merge)(const lora::MergeCheckRequest&);
  bench::BenchResult (*bench)(const bench::BenchRequest&);
  model::QuantizeResult (*quantize)(const model::QuantizeRequest&);
  std::vector<float> (*decode_linear)(const model::StoredLinear&, const storage::WeightFiles&);
  bench::ForecastResult (*forecast)(const bench::ForecastRequest&);
  std::string (*check_fit)(const Profile&, const device::GpuFacts&);
};

}  // namespace lora_train::cli

extern "C" const lora_train::cli::EngineApi* lora_train_engine();
