#include "lora_train/base/version.h"

#include "lora_train_commit.h"  // made by cmake/write_commit.cmake at each build

namespace lora_train {

std::string version() { return LORA_TRAIN_VERSION; }
std::string commit() { return LORA_TRAIN_COMMIT; }

}  // namespace lora_train
