// The interface between the executable and liblora_train_engine.so. No torch: the executable uses it before it loads LibTorch.
#pragma once

#include <string>
#include <vector>

#include "lora_train/bench/bench_request.h"
#include "lora_train/doctor/doctor_request.h"
#include "lora_train/evaluate/eval_request.h"
#include "lora_train/evaluate/generate_request.h"
#include "lora_train/evaluate/serve.h"
#include "lora_train/forecast/forecast_request.h"
#include "lora_train/lora/merge_check.h"
#include "lora_train/model/quantize_model.h"
#include "lora_train/train/train_request.h"

namespace lora_train::app {

/// The table of functions that liblora_train_engine.so exports through lora_train_engine(). Functions throw Error.
/// Valid only where the library's lora_train_build_id() is the caller's LORA_TRAIN_BUILD_ID: ask for that first.
struct EngineApi {
  train::TrainResult (*train)(const train::TrainRequest&);
  evaluate::Evaluation (*evaluate)(const evaluate::EvalRequest&);
  std::string (*torch_version)();
  std::vector<doctor::KernelCheck> (*check_kernels)(const doctor::DoctorRequest&);
  /// StopError between two tokens; the tokens until then have been passed to the sink.
  evaluate::GenerateTotals (*generate)(const evaluate::GenerateRequest&, evaluate::GenerateSink&);
  evaluate::GenerateTotals (*converse)(const evaluate::GenerateRequest&, evaluate::Conversation&);
  evaluate::GenerateTotals (*serve)(const evaluate::ServeRequest&, serve::RequestQueue&);
  lora::MergeCheck (*check_merge)(const lora::MergeCheckRequest&);
  bench::BenchResult (*bench)(const bench::BenchRequest&);
  model::QuantizeResult (*quantize)(const model::QuantizeRequest&);
  std::vector<float> (*decode_linear)(const model::StoredLinear&, const storage::WeightFiles&);
  forecast::ForecastResult (*forecast)(const forecast::ForecastRequest&);
  std::string (*check_fit)(const forecast::FitRequest&);
};

}  // namespace lora_train::app

extern "C" const lora_train::app::EngineApi* lora_train_engine();
