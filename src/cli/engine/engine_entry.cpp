// The exports of liblora_train_engine.so. Linked into the engine only.
#include "engine_api.h"
#include "lora_train/base/library.h"
#include "lora_train/bench/bench.h"
#include "lora_train/bench/doctor/doctor.h"
#include "lora_train/bench/forecast/forecast.h"
#include "lora_train/evaluate/evaluation.h"
#include "lora_train/evaluate/generation.h"
#include "lora_train/run/run_training.h"
#include "lora_train_build_id.h"

extern "C" const char* lora_train_build_id() { return LORA_TRAIN_BUILD_ID; }

extern "C" const lora_train::cli::EngineApi* lora_train_engine() {
  using namespace lora_train;
  static const cli::EngineApi api = {.train = &run::run_training,
                                     .evaluate = &evaluate::run_evaluation,
                                     .torch_version = [] { return std::string(LORA_TRAIN_TORCH_VERSION); },
                                     .check_kernels = &bench::check_kernels,
                                     .generate = &evaluate::run_generation,
                                     .answer_turns = &evaluate::answer_turns,
                                     .serve = &evaluate::serve,
                                     .check_merge = &lora::check_merge,
                                     .bench = &bench::run_bench,
                                     .quantize = &model::quantize_model,
                                     .decode_linear = &model::decode_linear,
                                     .forecast = &bench::make_forecast,
                                     .check_fit = &bench::check_fit};
  return &api;
}
