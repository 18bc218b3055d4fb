// The engine: the part of the program that links LibTorch, loaded when a command needs it.
#pragma once

#include "engine_api.h"
#include "find_torch.h"

namespace lora_train::cli {

/// Finds LibTorch (find_torch.h), loads it and lib/liblora_train_engine.so beside the program. Loaded once; later calls
/// return the same table. Sets GOMP_SPINCOUNT before, unless it or OMP_WAIT_POLICY is set. Not thread-safe. Throws
/// ConfigError if LibTorch or the engine cannot be loaded, or if the engine is from another build.
const EngineApi& load_engine();

}  // namespace lora_train::cli
