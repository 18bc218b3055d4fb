// Plans every activation buffer of a forward and backward pass before step 1, from shapes alone: no torch, no weights.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lora_train/model/layer_shape.h"

namespace lora_train::model {

struct ActivationOptions {
  std::int64_t max_tokens = 0;
  bool needs_backward = true;   ///< false: evaluation and generation; one layer's buffers serve all
  bool offload_inputs = false;  ///< layer inputs are kept in host memory from forward to backward
  std::int64_t mlp_tile_tokens =
      0;  ///< tokens that an MLP computes at a time; 0: all. Every layer must be Recompute::kFull
};

/// Offloaded layer inputs that are on the device: one in use, one being written, one being copied.
constexpr std::int64_t kInputRing = 3;

/// Buffers for at most max_tokens tokens. Layers share every buffer that the backward recomputes.
struct ActivationPlan {
  static constexpr std::int64_t kNone = -1;
  struct Block {
    std::int64_t input = kNone;       ///< [N, D] residual stream, an index into `buffers`
    std::vector<std::int64_t> saved;  ///< per BlockShape::saved; kNone if the model has no such buffer
  };

  ActivationOptions options;
  std::vector<BufferShape> buffers;
  std::vector<std::vector<Block>> layers;
  std::int64_t final_hidden = kNone;  ///< [N, D] output of the last layer
  std::int64_t d_hidden = kNone;      ///< [N, D and adapter columns]; kNone without backward, like all below
  std::int64_t d_input = kNone;       ///< gradient of a projection's input, one buffer for all
  std::int64_t scratch = kNone;       ///< [N, widest input] if an adapter has dropout
  std::map<std::string, std::int64_t, std::less<>> gradients;  ///< BlockShape::gradients by name, as indices

  std::int64_t num_offloaded = 0;  ///< layers whose input has a place in host memory: all but the last kInputRing

  /// Number of tokens that a buffer holds: a tile, or all.
  std::int64_t num_rows(const BufferShape& buffer) const;
  /// Bytes of all buffers, with `compute_bytes` per element of the compute dtype.
  std::int64_t bytes(std::int64_t compute_bytes) const;
  /// Page-locked host memory of offloaded inputs.
  std::int64_t host_bytes(std::int64_t compute_bytes) const;
};

/// How many of `count` buffers of `bytes` each go into one allocation of page-locked memory. LibTorch rounds
/// allocations up to a power of two; this number wastes little.
std::vector<std::int64_t> page_locked_groups(std::int64_t count, std::int64_t bytes);

/// recompute: one entry per layer; ignored without backward.
ActivationPlan plan_activations(const ModelShape& shape, const ActivationOptions& options,
                                const std::vector<Recompute>& recompute);

/// Finds the least recomputation in `allowed` (ascending) for which `fits` is true: the same for every layer, except
/// that as many of the last layers as fit recompute less. Works in `modes` (one entry per layer), which then holds the
/// result. Returns false, with the last of `allowed`, if nothing fits.
bool choose_recompute(const std::vector<Recompute>& allowed, const std::function<bool()>& fits,
                      std::vector<Recompute>& modes);

/// Switches as many layers as fit, from the last one down, to `less`. The given modes must fit.
void relax_recompute(Recompute less, const std::function<bool()>& fits, std::vector<Recompute>& modes);

/// "off", "cheap", "gate_up", "full"
const char* to_string(Recompute mode);

/// For reports: "off", "cheap", "cheap, but off in the last 9 layers".
std::string describe_recompute(const std::vector<Recompute>& modes);

}  // namespace lora_train::model
