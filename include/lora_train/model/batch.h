// A micro-batch on the device: N token slots, documents side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lora_train/model/projection.h"

namespace lora_train::model {

struct Batch {
  at::Tensor ids;        ///< [N] int32
  at::Tensor positions;  ///< [N] int32, from 0 in each document
  at::Tensor supervised; ///< [M] int64: slots whose next token is trained, ascending
  at::Tensor targets;    ///< [M] int32: that token
  std::vector<int64_t> cu_seqlens;  ///< num_docs + 1
  DropoutContext dropout;
  int64_t num_tokens() const { return ids.size(0); }
};

}  // namespace lora_train::model
