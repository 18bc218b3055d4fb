#include "lora_train/plan/memory_plan.h"

#include <algorithm>
#include <array>
#include <functional>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/gemm/gemm.h"
#include "lora_train/model/activation_plan.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/plan/run_spec.h"
#include "lora_train/plan/setup/batch_feed.h"

namespace lora_train::plan {
namespace {

constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kReserveBytes = std::int64_t{512}
                                       << 20;  // late-loaded kernels, fragments of LibTorch's allocator
constexpr double kReserveShare = 0.02;

/// The backends that auto may choose, by measuring in bf16 (plan/tuning/tuning.h).
std::vector<kernels::AttentionBackend> planned_backends(const Profile& profile) {
  const kernels::AttentionBackend requested = attention_backend(profile.run.attn_implementation);
  if (requested != kernels::AttentionBackend::kAuto) return {requested};
  if (profile.model.precision == Precision::kFp32) return {kernels::AttentionBackend::kEfficient};
  if (profile.run.deterministic) return {kernels::AttentionBackend::kFa2};
  return {kernels::AttentionBackend::kFa2, kernels::AttentionBackend::kCudnn};
}

/// Rows of the largest micro-batch, evaluations included.
std::int64_t most_rows(const RunSpec& spec) { return std::max(spec.micro_batch_size, spec.eval_micro_batch_size); }

std::int64_t most_tokens(const RunFacts& facts, const RunSpec& spec) { return facts.max_seq_len * most_rows(spec); }

model::ModelShape shape_of(const RunFacts& facts, const RunSpec& spec) {
  return model::model_shape(facts.config, facts.adapters, spec.columns, facts.token_rows);
}

std::int64_t attention_bytes(const RunFacts& facts, const RunSpec& spec) {
  constexpr std::int64_t kFewTokensADocument = 64;
  const model::ModelConfig& config = facts.config;
  const std::int64_t tokens = most_tokens(facts, spec);
  const Profile& profile = facts.profile;
  const kernels::AttentionSizes sizes = {tokens,
                                         tokens / kFewTokensADocument + most_rows(spec),
                                         facts.max_seq_len,
                                         config.num_heads,
                                         config.num_kv_heads,
                                         config.head_dim,
                                         facts.num_multiprocessors,
                                         profile.run.deterministic};
  std::int64_t bytes = 0;
  for (const auto backend : planned_backends(profile))
    bytes = std::max(bytes, kernels::attention_call_bytes(backend, sizes));
  return bytes;
}

// Measured with models of 0.1 to 150 M parameters on two threads (docs/plan.md). 68 MiB of pages of LibTorch's files,
// 13 of ours and the system's libraries, 55 for tables that LibTorch's operators fill as they register, and stacks.
constexpr std::int64_t kProgramBytes = std::int64_t{138} << 20;
// oneDNN keeps the kernels it compiles for bf16 products: about 70, of 256 KiB each.
constexpr std::int64_t kBf16KernelBytes = std::int64_t{19} << 20;
// The same of our products in fp32 on a CPU with AVX-512, and of attention.
constexpr std::int64_t kFp32KernelBytes = std::int64_t{4} << 20;
// MKL keeps the buffers that it packs operands of fp32 products into. For a result [M, N] over K: a panel of up to
// kPanelColumns of the N columns by equal parts of K, each at most kPanelDepth; and nine copies (both threads, several
// products) of up to kCopiedRows of the M rows by kCopiedDepth of K.
constexpr std::int64_t kPanelColumns = 19936, kPanelDepth = 384, kRowCopies = 9, kCopiedRows = 1024, kCopiedDepth = 512;
// Memory that reading and quantising a chunk of weights leaves in the allocator.
constexpr std::int64_t kQuantisingBytes = std::int64_t{10} << 20;

/// With AVX-512, operands and sums of a kv head of the longest document for each thread; else outputs and gradients of
/// all heads, which LibTorch allocates in each call.
std::int64_t cpu_attention_bytes(const RunFacts& facts) {
  const std::int64_t per_element = kernels::attention_backward_bytes(facts.element_bytes());
  if (per_element > 0) return at::get_num_threads() * per_element * facts.max_seq_len * facts.config.head_dim;
  return 4 * facts.max_seq_len * facts.config.num_heads * facts.config.head_dim * facts.element_bytes();
}

std::int64_t panel_bytes(std::int64_t columns, std::int64_t depth) {
  const std::int64_t part = ceil_div(depth, ceil_div(depth, kPanelDepth));
  return std::min(columns, kPanelColumns) * part * static_cast<std::int64_t>(sizeof(float));
}

/// Memory of products.
std::int64_t product_bytes(const RunFacts& facts, const model::ModelShape& shape, std::int64_t tokens) {
  const model::ModelConfig& config = facts.config;
  std::int64_t panel = panel_bytes(config.vocab_size, config.hidden_size);
  std::int64_t largest = config.vocab_size * config.hidden_size;
  shape.for_each_projection([&](const model::ProjectionShape& p) {
    panel = std::max(panel, panel_bytes(p.out_features, p.in_features));
    largest = std::max(largest, p.in_features * p.out_features);
  });
  const bool trains_all = trained_weights(facts.profile) == model::TrainedWeights::kAll;
  const bool is_fp32 = facts.profile.get().model.precision == Precision::kFp32;
  const std::int64_t packed = at::get_num_threads() * kernels::packed_gemm_bytes(tokens, facts.element_bytes());
  if (is_fp32 && packed > 0 && !trains_all) return packed + kFp32KernelBytes;  // gradients of weights are MKL's
  if (is_fp32) {
    return panel + kRowCopies * std::min(tokens, kCopiedRows) * std::min(config.hidden_size, kCopiedDepth) *
                       static_cast<std::int64_t>(sizeof(float));
  }
  // A weight's gradient is computed in bf16, then added in fp32.
  return kBf16KernelBytes + (trains_all ? largest * 6 : 0);
}

/// The part of a buffer for `rows` that `touched` rows need.
std::int64_t touched_part(std::int64_t bytes, std::int64_t touched, std::int64_t rows) {
  return bytes / std::max<std::int64_t>(1, rows) * std::min(touched, rows);
}

}  // namespace

std::string MemoryPlan::describe() const {
  std::array<std::pair<std::int64_t, const char*>, 8> parts = {
      {{weights + quantization, "weights"},
       {adapter + optimizer, "trained parameters with optimizer"},
       {activations, "activations"},
       {loss_head, "loss head"},
       {batches, "micro-batches"},
       {attention, "attention"},
       {workspaces, "workspaces"},
       {tasks, "eval_tasks"}}};
  std::ranges::sort(parts, std::greater(), &std::pair<std::int64_t, const char*>::first);
  std::vector<std::string> words;
  for (const auto& [bytes, name] : parts) {
    if (bytes > 0) words.push_back(fmt::format("{} {}", name, format_bytes(bytes)));
  }
  return join(words);
}

MemoryPlan plan_memory(const RunFacts& facts, const RunSpec& spec) {
  const Profile& profile = facts.profile;
  const std::int64_t element_bytes = facts.element_bytes(), max_tokens = most_tokens(facts, spec);
  const model::ModelShape shape = shape_of(facts, spec);
  const auto weights = [&](std::int64_t decoded_layers) {
    return model::weight_bytes(facts.config, shape, element_bytes, facts.base, decoded_layers);
  };
  model::OuterWeights outer;
  outer.head = at::empty({facts.config.vocab_size, facts.config.hidden_size},
                         at::TensorOptions(compute_dtype(profile.model.precision)).device(at::kMeta));
  MemoryPlan plan;
  const std::int64_t all_weights = weights(spec.decoded_layers);
  plan.weights = facts.base.empty() ? all_weights : std::min(weights(0), all_weights);
  plan.quantization = all_weights - plan.weights;
  const model::Trainables parameters = model::make_trainables(facts.config, shape, trained_weights(profile), at::kMeta);
  plan.adapter = model::Trainables::bytes(parameters.size());
  plan.optimizer = optim::optimizer_for(profile.optimizer.kind).state_bytes(parameters.blocks());
  const model::ActivationPlan activations = model::plan_activations(
      shape, {.max_tokens = max_tokens, .offload_inputs = spec.offload_inputs, .mlp_tile_tokens = spec.mlp_tile_tokens},
      spec.recompute);
  plan.activations = activations.bytes(element_bytes);
  plan.host = activations.host_bytes(element_bytes);
  plan.loss_head = model::LossHead(model::lm_head_of(facts.config, outer), {.max_rows = max_tokens,
                                                                            .chunk_bytes = spec.loss_chunk_bytes,
                                                                            .has_weights = facts.has_token_weights,
                                                                            .has_soft_targets = facts.soft_width > 0})
                       .bytes();
  plan.batches = BatchFeed::device_bytes(max_tokens, facts.soft_width, facts.config.is_hybrid());
  // Captured steps have temporary memory of their own, in addition to that of steps without graphs.
  plan.attention = (profile.run.cuda_graphs == CudaGraphs::kAuto ? 2 : 1) * attention_bytes(facts, spec);
  plan.workspaces = kGemmWorkspaceBytes + 4 * kernels::kWorkspaceElements;
  plan.tasks = facts.task_bytes;
  return plan;
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

void throw_out_of_memory(const RunFacts& facts, const RunSpec& spec, const RunDevice& device,
                         const std::string& reason) {
  const DeviceMemory memory = device_memory(device);
  const DeviceRoom room = device_room(device);
  RunFacts now = facts;
  now.memory_bytes = room.free + memory.reserved;
  throw DeviceError("out of GPU memory",
                    "{}. Planned: {}; in use: {} of {}, free: {}. Other programs may have taken memory since the start "
                    "(lora-train doctor). To use less, {}",
                    reason, plan_memory(facts, spec).describe(), format_bytes(memory.allocated),
                    format_bytes(room.total), format_bytes(room.free), ways_on(now));
}

MemoryPlan plan_host(const RunFacts& facts, const RunSpec& spec, const TouchedTokens& touched) {
  MemoryPlan plan = plan_memory(facts, spec);
  const std::int64_t max_tokens = most_tokens(facts, spec);
  plan.attention = cpu_attention_bytes(facts);
  plan.workspaces = product_bytes(facts, shape_of(facts, spec), touched.tokens);
  plan.activations = touched_part(plan.activations, touched.tokens, max_tokens);
  const std::int64_t logit_bytes = facts.config.vocab_size * facts.element_bytes();
  plan.loss_head = touched_part(plan.loss_head, touched.supervised,
                                std::min(max_tokens, std::max<std::int64_t>(1, spec.loss_chunk_bytes / logit_bytes)));
  const std::int64_t checkpoint_copy = plan.adapter / 2 + plan.optimizer;  // the values without their gradients
  plan.program = checkpoint_copy + kProgramBytes + (facts.base.empty() ? 0 : kQuantisingBytes);
  return plan;
}

void require_host_memory(const Profile& profile, const model::ModelConfig& config, const model::BaseStorage& base,
                         std::int64_t free_bytes, std::int64_t max_seq_len, const HostPlanner& plan_with) {
  const MemoryPlan plan = plan_with(profile, base);
  if (plan.total() <= free_bytes) return;
  std::vector<std::string> ways;
  for (const auto choice : {BasePrecision::kBf16, BasePrecision::kFp8, BasePrecision::kInt8, BasePrecision::kNf4}) {
    Profile other = profile;
    other.model.base_precision = choice;
    const bool is_quantised = other.model.is_quantised(), trains_base = profile.adapter.kind == AdapterKind::kNone;
    if ((is_quantised && trains_base) || config.quantization.format != model::LinearFormat::kPlain) continue;
    if (!is_quantised) other.model.precision = Precision::kBf16;
    const std::int64_t bytes = plan_with(other, base_storage(other.model, config)).total();
    if (bytes > free_bytes) continue;
    ways.push_back(fmt::format("base_precision: {}{} ({})", to_string(choice),
                               is_quantised ? "" : " with precision: bf16", format_bytes(bytes)));
  }
  Profile least = with_least_memory(profile);
  for (least.data.max_seq_len = max_seq_len; ways.empty() && least.data.max_seq_len > 0; *least.data.max_seq_len /= 2) {
    if (plan_with(least, base).total() <= free_bytes)
      ways.push_back(
          fmt::format("max_seq_len: {} with micro_batch_size: 1, eval_micro_batch_size: 1 and "
                      "gradient_checkpointing: full (no base_precision is small enough)",
                      *least.data.max_seq_len));
  }
  if (ways.empty()) ways.emplace_back("a smaller model or a GPU (no base_precision is small enough)");
  throw DeviceError("out of host memory before the model is read",
                    "{} are needed, but only {} are free for this process: {} short. Needed for: {}. To fit, use {}, "
                    "or a machine with more memory",
                    format_bytes(plan.total()), format_bytes(free_bytes), format_bytes(plan.total() - free_bytes),
                    plan.describe(), join(ways, " or "));
}

}  // namespace lora_train::plan
