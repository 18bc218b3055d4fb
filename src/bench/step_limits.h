// What a training step has to compute and move at the least: the limits that a counted step (work_counter.h) is held
// against. L layers, D hidden, q = H E, kv = K E, F ffn, V vocabulary, r rank.
#pragma once

#include <cstdint>
#include <vector>

#include "lora_train/bench/bench_request.h"
#include "lora_train/model/adapter_spec.h"
#include "lora_train/model/model_config.h"

namespace lora_train::bench {

/// A step in numbers.
struct StepSizes {
  std::int64_t tokens = 0, supervised = 0;
  double keys_per_query = 0;  ///< keys that a query sees, on average: (S + 1) / 2 in documents of S tokens
};

RequiredFlops required_flops(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                             const StepSizes& sizes);

/// Bytes of a step in passes that are not products, each done once, in 2-byte elements (or 4): what this program plans.
struct PlannedBytes {
  double norm = 0;    ///< per norm: residual + x read, sum + normed written; dy, x, d_residual read, dx written
  double rope = 0;    ///< q and k read and written, forward and backward
  double swiglu = 0;  ///< forward 3 F, backward 5 F
  /// x read for x A^T and for dA, dy for dB, once for all adapters of a joined projection; dx += dS A where the product of
  /// dy cannot bring it along (q|k|v and gate|up)
  double lora = 0;
  double loss = 0;       ///< supervised logits: read twice, written once
  double optimizer = 0;  ///< fp32: three buffers read and written, gradients read
  double total() const { return norm + rope + swiglu + lora + loss + optimizer; }
};
PlannedBytes planned_bytes(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                           const StepSizes& sizes, int element_bytes);

/// Rates of a chip.
struct ChipRates {
  double gemm_flops_per_s = 0, copy_bytes_per_s = 0, attention_forward_flops_per_s = 0,
         attention_backward_flops_per_s = 0;
};
/// What an H200 is assumed to do, with FlashAttention 2; nothing of it was measured by this program.
constexpr ChipRates kAssumedH200 = {790e12, 4.3e12, 298e12, 291e12};

}  // namespace lora_train::bench
