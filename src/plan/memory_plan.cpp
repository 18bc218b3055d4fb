#include "lora_train/plan/memory_plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/model/activation_plan.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/plan/setup/batch_feed.h"

namespace lora_train::plan {
namespace {

constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kReserveBytes = std::int64_t{512}
                                       << 20;  // late-loaded kernels, fragments of LibTorch's allocator
constexpr double kReserveShare = 0.02;

std::string in_words(std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

/// The backends that auto may choose, by measuring in bf16 (plan/tuning/tuning.h).
std::vector<kernels::AttentionBackend> planned_backends(const Profile& profile) {
  const kernels::AttentionBackend requested = attention_backend(profile.run.attn_implementation);
  if (requested != kernels::AttentionBackend::kAuto) return {requested};
  if (profile.model.precision == Precision::kFp32) return {kernels::AttentionBackend::kEfficient};
  if (profile.run.deterministic) return {kernels::AttentionBackend::kFa2};
  return {kernels::AttentionBackend::kFa2, kernels::AttentionBackend::kCudnn};
}

std::int64_t attention_bytes(const MemoryCase& requested) {
  constexpr std::int64_t kFewTokensADocument = 64;
  const model::ModelConfig& config = requested.config;
  const kernels::AttentionSizes sizes = {
      requested.max_tokens(),        requested.max_tokens() / kFewTokensADocument + requested.rows,
      requested.max_seq_len,         config.num_heads,
      config.num_kv_heads,           config.head_dim,
      requested.num_multiprocessors, requested.profile.run.deterministic};
  std::int64_t bytes = 0;
  for (const auto backend : planned_backends(requested.profile))
    bytes = std::max(bytes, kernels::attention_call_bytes(backend, sizes));
  return bytes;
}

/// The keys that would make the run fit, the cheapest first, with the memory it would then need.
std::string advice(const MemoryCase& requested, std::int64_t budget_bytes) {
  std::vector<std::string> lines;
  const std::optional<std::int64_t>& given_tile = requested.profile.run.mlp_tile_tokens;
  const auto try_case = [&](const std::string& change, MemoryCase smaller) {
    std::int64_t total = plan_memory(smaller).total();
    if (total > budget_bytes && !given_tile) {
      smaller.mlp_tile_tokens = auto_mlp_tile_tokens(smaller.max_seq_len);
      total = plan_memory(smaller).total();
    }
    if (total <= budget_bytes) lines.push_back(fmt::format("{} (then {})", change, in_words(total)));
  };
  MemoryCase smaller = requested;
  smaller.loss_chunk_bytes = kLeastLossChunkBytes;  // a larger one is chosen only if it fits
  smaller.mlp_tile_tokens = given_tile.value_or(0);
  std::ranges::fill(smaller.recompute, model::Recompute::kFull);
  if (requested.recompute != smaller.recompute) try_case("gradient_checkpointing: full", smaller);
  if (given_tile == 0) {
    MemoryCase tiled = smaller;
    tiled.mlp_tile_tokens = auto_mlp_tile_tokens(tiled.max_seq_len);
    try_case(fmt::format("mlp_tile_tokens: {} with gradient_checkpointing: full", tiled.mlp_tile_tokens), tiled);
  }
  if (requested.profile.run.activation_offload == ActivationOffload::kOff) {
    MemoryCase offloaded = smaller;
    offloaded.offload_inputs = true;
    try_case("activation_offload: auto with gradient_checkpointing: full, which takes " +
                 in_words(plan_memory(offloaded).host) + " of page-locked host memory",
             offloaded);
  }
  for (smaller.rows = requested.rows / 2; smaller.rows >= 1 && lines.size() < 2; smaller.rows /= 2) {
    try_case(fmt::format("micro_batch_size: {} with gradient_checkpointing: full", smaller.rows), smaller);
  }
  smaller.rows = 1;
  for (smaller.max_seq_len = requested.max_seq_len / 2; smaller.max_seq_len >= 256 && lines.empty();
       smaller.max_seq_len /= 2) {
    try_case(fmt::format("max_seq_len: {}, micro_batch_size: 1 and gradient_checkpointing: full", smaller.max_seq_len),
             smaller);
  }
  if (lines.empty()) {
    return "the weights alone leave no room for a row; use a GPU with more memory or a smaller model" +
           std::string(requested.profile.model.precision == Precision::kFp32 ? ", or precision: bf16" : "");
  }
  return "set " + join(lines, ", or ");
}

// Measured with models of 0.1 to 150 M parameters on two threads (docs/plan.md). 68 MiB of pages of LibTorch's files,
// 13 of ours and the system's libraries, 55 for tables that LibTorch's operators fill as they register, and stacks.
constexpr std::int64_t kProgramBytes = std::int64_t{138} << 20;
// oneDNN keeps the kernels it compiles for bf16 products: about 70, of 256 KiB each.
constexpr std::int64_t kBf16KernelBytes = std::int64_t{19} << 20;
// MKL keeps the buffers that it packs operands of fp32 products into. For a result [M, N] over K: a panel of up to
// kPanelColumns of the N columns by equal parts of K, each at most kPanelDepth; and nine copies (both threads, several
// products) of up to kCopiedRows of the M rows by kCopiedDepth of K.
constexpr std::int64_t kPanelColumns = 19936, kPanelDepth = 384, kRowCopies = 9, kCopiedRows = 1024, kCopiedDepth = 512;
// Memory that reading and quantising a chunk of weights leaves in the allocator.
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

std::string MemoryPlan::describe() const {
  std::array<std::pair<std::int64_t, const char*>, 8> parts = {{{weights, "weights"},
                                                                {parameters, "trained parameters with optimizer"},
                                                                {activations, "activations"},
                                                                {loss_head, "loss head"},
                                                                {batches, "micro-batches"},
                                                                {attention, "attention"},
                                                                {workspaces, "workspaces"},
                                                                {tasks, "eval_tasks"}}};
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> words;
  for (const auto& [bytes, name] : parts) {
    if (bytes > 0) words.push_back(fmt::format("{} {}", name, in_words(bytes)));
  }
  return join(words);
}

MemoryPlan plan_memory(const MemoryCase& requested) {
  const at::ScalarType dtype = compute_dtype(requested.profile.model.precision);
  const std::int64_t element_bytes = compute_bytes(requested.profile.model.precision);
  const model::TrainedWeights trained = trained_weights(requested.profile);
  const model::ModelShape shape =
      model::model_shape(requested.config, requested.adapters, requested.columns, requested.token_rows);
  model::OuterWeights outer;
  outer.head = at::empty({requested.config.vocab_size, requested.config.hidden_size},
                         at::TensorOptions(dtype).device(at::kMeta));
  MemoryPlan plan;
  plan.weights = model::weight_bytes(requested.config, shape, element_bytes, requested.base, requested.decoded_layers);
  const model::Trainables parameters = model::make_trainables(requested.config, shape, trained, at::kMeta);
  plan.parameters = model::Trainables::bytes(parameters.size()) +
                    optim::optimizer_for(requested.profile.optimizer.kind).state_bytes(parameters.blocks());
  const model::ActivationPlan activations = model::plan_activations(shape,
                                                                    {.max_tokens = requested.max_tokens(),
                                                                     .offload_inputs = requested.offload_inputs,
                                                                     .mlp_tile_tokens = requested.mlp_tile_tokens},
                                                                    requested.recompute);
  plan.activations = activations.bytes(element_bytes);
  plan.host = activations.host_bytes(element_bytes);
  plan.loss_head =
      model::LossHead(model::lm_head_of(requested.config, outer), {.max_rows = requested.max_tokens(),
                                                                   .chunk_bytes = requested.loss_chunk_bytes,
                                                                   .has_weights = requested.has_token_weights,
                                                                   .has_soft_targets = requested.soft_width > 0})
          .bytes();
  plan.batches = BatchFeed::device_bytes(requested.max_tokens(), requested.soft_width);
  // Captured steps have temporary memory of their own, in addition to that of steps without graphs.
  const bool may_be_captured = requested.profile.run.cuda_graphs == CudaGraphs::kAuto;
  plan.attention = (may_be_captured ? 2 : 1) * attention_bytes(requested);
  plan.workspaces = kGemmWorkspaceBytes + 4 * kernels::kWorkspaceElements;
  plan.tasks = requested.task_bytes;
  return plan;
}

void refuse_memory(const MemoryCase& requested, std::int64_t budget_bytes) {
  const MemoryPlan plan = plan_memory(requested);
  throw DeviceError("out of GPU memory before step 1",
                    "a micro-batch of {} x {} tokens needs {}, but only {} is available: {} short. Needed for: {}. To "
                    "fit, {}",
                    requested.rows, requested.max_seq_len, in_words(plan.total()), in_words(budget_bytes),
                    in_words(plan.total() - budget_bytes), plan.describe(), advice(requested, budget_bytes));
}

std::int64_t memory_budget(const RunDevice& device) {
  const DeviceMemory memory = device_memory(device);
  const DeviceRoom room = device_room(device);
  return memory_budget(room.total, room.free + memory.reserved - memory.allocated);
}

std::int64_t memory_budget(std::int64_t total_bytes, std::int64_t free_bytes) {
  const auto reserve =
      std::max(kReserveBytes, static_cast<std::int64_t>(kReserveShare * static_cast<double>(total_bytes)));
  return std::max<std::int64_t>(0, free_bytes - reserve);
}

void throw_out_of_memory(const MemoryCase& planned, const RunDevice& device, const std::string& reason) {
  const DeviceMemory memory = device_memory(device);
  const DeviceRoom room = device_room(device);
  throw DeviceError("out of GPU memory",
                    "{}. Planned: {}; in use: {} of {}, free: {}. Other programs may have taken memory since the start "
                    "(lora-train doctor). To use less, {}",
                    reason, plan_memory(planned).describe(), in_words(memory.allocated), in_words(room.total),
                    in_words(room.free), advice(planned, room.free + memory.reserved));
}

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
