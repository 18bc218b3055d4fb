// The least that a training step must compute and move: the limits that `bench` compares a counted step with. And its
// time at given rates, which `plan` reports for other GPUs and decide() compares.
// L layers, D hidden, q = H E, kv = K E, F ffn, V vocabulary, r rank.
#pragma once

#include <cstdint>
#include <vector>

#include "lora_train/config/keys/profile.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/layer_shape.h"

namespace lora_train::plan {

struct RunFacts;
struct RunSpec;

/// The rates of a device, which turn counts into times.
struct Rates {
  double gemm_flops_per_s = 0, copy_bytes_per_s = 0;
  double attention_forward_flops_per_s = 0, attention_backward_flops_per_s = 0;
};

/// The work of a rank in a step.
struct StepLoad {
  double tokens = 0, supervised = 0;
  double keys_per_query = 0;  ///< average number of keys visible to a query: (S + 1) / 2 in documents of S tokens
  std::int64_t num_micro_batches = 1;
};

/// FLOPs of a step that no program with a frozen base can leave out.
struct RequiredFlops {
  double linears = 0;      ///< forward and input gradient: 4 per weight and token
  double head = 0;         ///< the same for V D on supervised rows
  double attention = 0;    ///< forward 4 q per visible key, backward twice that
  double gated_delta = 0;  ///< the rule's forward, and three times that for its backward, which repeats it
  double lora = 0;         ///< x A^T, s B, dy B, ds A, dA and dB: 6 r (in + out)
  double total() const { return linears + head + attention + gated_delta + lora; }
};
RequiredFlops required_flops(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                             const StepLoad& load);

/// The bytes that this program plans to move in a step outside of GEMMs and attention, each pass counted once, with
/// elements of 2 or 4 bytes. Without adapters all weights are trained.
struct PlannedBytes {
  double norm = 0;  ///< per norm: residual + x read, sum + normed written; dy, x, d_residual read, dx written
  double rope = 0;  ///< q and k read and written, forward and backward
  double gated_activation = 0;  ///< forward 3 F, backward 5 F; the same for the gate of attention's output
  /// convolution over q|k|v: 2 forward, again in the backward, 3 backward; rule: 1 forward, 2 backward, and its states;
  /// values: out, d_out, and the gated norm, 3 forward, 5 backward
  double gated_delta = 0;
  /// x read for x A^T and for dA, dy for dB, once for all adapters of a joined projection; dx += dS A if the GEMM of dy
  /// cannot include it (q|k|v and gate|up)
  double lora = 0;
  double loss = 0;  ///< supervised logits: read twice, written once
  /// Parameters and state read and written, gradients and constant state read. A parameter moves 28 bytes with fp32
  /// moments and 16.125 with 8-bit ones
  double optimizer = 0;
  double total() const { return norm + rope + gated_activation + gated_delta + lora + loss + optimizer; }
};
PlannedBytes planned_bytes(const model::ModelConfig& config, const std::vector<model::AdapterSpec>& adapters,
                           const StepLoad& load, int element_bytes,
                           OptimizerKind optimizer = OptimizerKind::kAdamwTorch);

/// The forward pass's share of attention's FLOPs.
inline constexpr double kForwardOfAttention = 1.0 / 3;

/// The rates of a run in the profile's precision, on a GPU with these rates for bf16 products and memory.
Rates rates_in(const Profile& profile, double gemm_flops_per_s, double copy_bytes_per_s);

/// The least seconds for a step at these rates, without the other ranks: the sum of products, attention, memory
/// traffic, recomputation and the decoding of a quantised base. Each micro-batch adds launches, and half a round of
/// tiles at the end of each product, when multiprocessors wait for the last tiles.
double least_step_s(const RunFacts& facts, const RunSpec& spec, const Rates& rates, const StepLoad& load);

/// Seconds per token of full rows, at a GPU's usual rates. They compare specs on any GPU, because only the ratio of
/// products to memory matters, which differs little.
double token_s(const RunFacts& facts, const RunSpec& spec);

}  // namespace lora_train::plan
