#include "lora_train/plan/host_plan.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lora_train/base/ceil_div.h"
#include "lora_train/optim/optimizer.h"

namespace lora_train::plan {
namespace {

// Measured with models of 0.1 to 150 M parameters on two threads (docs/plan.md). Pages of LibTorch's files 68 MiB, of ours and the
// system's libraries 13, tables that LibTorch's operators fill as they register 55, and stacks.
constexpr std::int64_t kProgramBytes = std::int64_t{138} << 20;
// oneDNN keeps the kernels that it compiles for bf16 products: about 70 of 256 KiB each.
constexpr std::int64_t kBf16KernelBytes = std::int64_t{19} << 20;
// MKL keeps the buffers into which it packs operands of fp32 products: for a result [M, N] over K, a panel of so many of the N columns
// and equal parts of K of at most so many; and nine copies (of both threads and several products) of so many of the M rows and of K.
constexpr std::int64_t kPanelColumns = 19936, kPanelDepth = 384, kRowCopies = 9, kCopiedRows = 1024, kCopiedDepth = 512;
// What reading and quantising a chunk of weights leaves in the allocator.
constexpr std::int64_t kQuantisingBytes = std::int64_t{10} << 20;

/// Outputs and gradients of the longest document, which LibTorch allocates in each call.
std::int64_t cpu_attention_bytes(const MemoryCase& requested) {
  const model::ModelConfig& config = requested.config;
  const std::int64_t element_bytes = compute_bytes(requested.profile.model.precision);
  return 4 * requested.max_seq_len * config.num_heads * config.head_dim * element_bytes;
}

std::int64_t panel_bytes(std::int64_t columns, std::int64_t depth) {
  const std::int64_t part = ceil_div(depth, ceil_div(depth, kPanelDepth));
  return std::min(columns, kPanelColumns) * part * static_cast<std::int64_t>(sizeof(float));
}

/// Memory of LibTorch's products.
std::int64_t product_bytes(const MemoryCase& requested, const model::ModelShape& shape, std::int64_t tokens) {
  const model::ModelConfig& config = requested.config;
  std::int64_t panel = panel_bytes(config.vocab_size, config.hidden_size);
  std::int64_t largest = config.vocab_size * config.hidden_size;
  shape.for_each_projection([&](const model::ProjectionShape& p) {
    panel = std::max(panel, panel_bytes(p.out_features, p.in_features));
    largest = std::max(largest, p.in_features * p.out_features);
  });
  if (requested.profile.model.precision == Precision::kFp32) {
    return panel + kRowCopies * std::min(tokens, kCopiedRows) * std::min(config.hidden_size, kCopiedDepth) *
                       static_cast<std::int64_t>(sizeof(float));
  }
  // A weight's gradient is computed in bf16, then added in fp32.
  const bool trains_all = trained_weights(requested.profile) == model::TrainedWeights::kAll;
  return kBf16KernelBytes + (trains_all ? largest * 6 : 0);
}

/// The part of a buffer for `rows` that `touched` rows need.
std::int64_t touched_part(std::int64_t bytes, std::int64_t touched, std::int64_t rows) {
  return bytes / std::max<std::int64_t>(1, rows) * std::min(touched, rows);
}

}  // namespace

HostPlan plan_host(const MemoryCase& requested, const TouchedTokens& touched) {
  const model::ModelShape shape =
      model::model_shape(requested.config, requested.adapters, requested.columns, requested.token_rows);
  const model::Trainables parameters =
      model::make_trainables(requested.config, shape, trained_weights(requested.profile), at::kMeta);
  HostPlan plan{plan_memory(requested)};
  plan.run.attention = cpu_attention_bytes(requested);
  plan.run.workspaces = product_bytes(requested, shape, touched.tokens);
  plan.run.activations = touched_part(plan.run.activations, touched.tokens, requested.max_tokens());
  const std::int64_t logit_bytes = requested.config.vocab_size * compute_bytes(requested.profile.model.precision);
  plan.run.loss_head = touched_part(
      plan.run.loss_head, touched.supervised,
      std::min(requested.max_tokens(), std::max<std::int64_t>(1, requested.loss_chunk_bytes / logit_bytes)));
  plan.checkpoint_copy = plan.run.parameters - parameters.size() * static_cast<std::int64_t>(sizeof(float));
  plan.program = kProgramBytes + (requested.base.empty() ? 0 : kQuantisingBytes);
  return plan;
}

}  // namespace lora_train::plan
