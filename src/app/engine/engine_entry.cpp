// What liblora_train_engine.so exports. Linked into the engine only.
#include "lora_train/app/engine_api.h"
#include "lora_train/base/build_id.h"
#include "lora_train/bench/bench.h"
#include "lora_train/doctor/doctor.h"
#include "lora_train/evaluate/converse.h"
#include "lora_train/evaluate/run_evaluation.h"
#include "lora_train/evaluate/run_generation.h"
#include "lora_train/evaluate/serve.h"
#include "lora_train/forecast/forecast.h"
#include "lora_train/train/run_training.h"
#include "lora_train_build_id.h"

namespace {

std::string torch_version() { return LORA_TRAIN_TORCH_VERSION; }

}  // namespace

extern "C" const char* lora_train_build_id() { return LORA_TRAIN_BUILD_ID; }

extern "C" const lora_train::app::EngineApi* lora_train_engine() {
  using namespace lora_train;
  static const app::EngineApi api = {&train::run_training,   &evaluate::run_evaluation, &torch_version,
                                     &doctor::check_kernels, &evaluate::run_generation, &evaluate::converse,
                                     &evaluate::serve,       &lora::check_merge,        &bench::run_bench,
                                     &model::quantize_model, &model::decode_linear,     &forecast::make_forecast,
                                     &forecast::check_fit};
  return &api;
}
