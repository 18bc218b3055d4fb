// What liblora_train_engine.so exports. Linked into the engine only.
#include "lora_train/base/build_id.h"
#include "lora_train/train/run.h"
#include "lora_train_build_id.h"

namespace {

std::string torch_version() { return LORA_TRAIN_TORCH_VERSION; }

}  // namespace

extern "C" const char* lora_train_build_id() { return LORA_TRAIN_BUILD_ID; }

extern "C" const lora_train::train::EngineApi* lora_train_engine() {
  using namespace lora_train::train;
  static const EngineApi api = {&run_training,  &run_evaluation, &torch_version, &check_kernels, &run_generation,
                                &lora_train::lora::check_merge, &run_bench};
  return &api;
}
