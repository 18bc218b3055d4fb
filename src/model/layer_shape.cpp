#include "lora_train/model/layer_shape.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "blocks/block_shapes.h"
#include "lora_train/base/error.h"

namespace lora_train::model {

// The blocks (block_shapes.h). D hidden, F ffn, H heads, K kv heads, E head size; Hv value heads of a gated delta net.

namespace {

using Layout = BufferShape::Layout;
constexpr ElementType kCompute = ElementType::kCompute, kFloat = ElementType::kFloat;

ProjectionShape projection(std::int64_t in_features, bool has_bias, GradientColumns columns,
                           std::vector<LinearShape> linears) {
  return {{.in_features = in_features, .gradient_columns = columns}, has_bias, std::move(linears), {}};
}

/// Size 0: the model has no norm here.
SmallWeightShape norm(std::string name, std::int64_t size, std::int64_t after) {
  return {std::move(name) + ".weight", size > 0 ? std::vector{size} : std::vector<std::int64_t>{}, after};
}

/// A block of two projections, the second of which returns to the residual stream.
BlockShape two_projections(BlockKind kind, const char* name, const ModelConfig& c, ProjectionShape in,
                           ProjectionShape out) {
  BlockShape block{kind, name, c.has_output_norms, {std::move(in), std::move(out)}, {}, {}, {}};
  block.projections.back().output_scale = c.residual_multiplier;
  return block;
}

/// What an output norm reads and saves: the last two of a block's saved buffers, and a gradient.
void add_branch(const ModelConfig& c, BlockShape& block) {
  const std::int64_t D = c.has_output_norms ? c.hidden_size : 0, last = std::ssize(block.projections) - 1;
  block.saved.push_back({block.name + ".branch", D});
  block.saved.push_back({block.name + ".branch_rstd", D > 0 ? 1 : 0, kFloat, std::nullopt, Layout::kVector});
  block.gradients.push_back({"d_branch", D, kCompute, Recompute::kFull, Layout::kRows, last});
}

}  // namespace

BlockShape attention::shape(const ModelConfig& c, std::int64_t) {
  const std::int64_t D = c.hidden_size, E = c.head_dim, H = c.num_heads, K = c.num_kv_heads;
  const std::int64_t qk = c.qk_norm ? H + K : 0, gates = c.has_attention_gate ? H : 0;
  BlockShape block = two_projections(
      BlockKind::kAttention, "attention", c,
      projection(
          D, c.qkv_bias, GradientColumns::kBesideOutput,
          {{"self_attn.q_proj", 0, (H + gates) * E}, {"self_attn.k_proj", 0, K * E}, {"self_attn.v_proj", 0, K * E}}),
      projection(H * E, c.o_bias, GradientColumns::kBesideOutput, {{"self_attn.o_proj", 0, D}}));
  block.small = {norm("input_layernorm", D, 0), norm("self_attn.q_norm", c.qk_norm ? E : 0, 1),
                 norm("self_attn.k_norm", c.qk_norm ? E : 0, 1),
                 norm("post_attention_layernorm", c.has_output_norms ? D : 0, 2)};
  const Recompute gated = gates > 0 ? Recompute::kCheap : Recompute::kFull;
  block.saved = {{"attention.normed", D, kCompute, Recompute::kCheap, Layout::kRows, kQkv},
                 {"attention.rstd", 1, kFloat, Recompute::kFull, Layout::kVector},
                 {"attention.projected", gates > 0 ? (2 * H + 2 * K) * E : 0, kCompute, Recompute::kOff},
                 {"attention.qkv", (H + 2 * K) * E},
                 {"attention.qk_raw", qk * E},
                 {"attention.qk_rstd", qk, kFloat, Recompute::kFull, Layout::kTokenLast},
                 {"attention.gate", gates * E},
                 {"attention.ungated", gates * E},
                 {"attention.out", H * E, kCompute, gated, Layout::kRows, kO},
                 {"attention.lse", H, kFloat}};
  block.gradients = {{"d_projected", (H + gates + 2 * K) * E, kCompute, Recompute::kFull, Layout::kRows, kQkv},
                     {"d_qkv", gates > 0 ? (H + 2 * K) * E : 0}};
  add_branch(c, block);
  return block;
}

BlockShape linear_attention::shape(const ModelConfig& c, std::int64_t) {
  const kernels::GatedDeltaSizes& sizes = c.gated_delta;
  const std::int64_t D = c.hidden_size, Hv = sizes.value_heads, qkv = sizes.qkv_width(), values = sizes.value_width();
  const std::int64_t projected = qkv + values + 2 * Hv, grouped = c.projects_by_key_head ? projected : 0;
  std::vector<LinearShape> linears = {{"linear_attn.in_proj_qkv", 0, qkv},
                                      {"linear_attn.in_proj_z", 0, values},
                                      {"linear_attn.in_proj_b", 0, Hv},
                                      {"linear_attn.in_proj_a", 0, Hv}};
  if (c.projects_by_key_head) {
    linears = {{"linear_attn.in_proj_qkvz", 0, qkv + values}, {"linear_attn.in_proj_ba", 0, 2 * Hv}};
  }
  BlockShape block =
      two_projections(BlockKind::kGatedDelta, "linear_attention", c,
                      projection(D, false, GradientColumns::kBesideOutput, std::move(linears)),
                      projection(values, false, GradientColumns::kBesideOutput, {{"linear_attn.out_proj", 0, D}}));
  block.small = {norm("input_layernorm", D, 0),
                 {"linear_attn.conv1d.weight", {qkv, 1, c.convolution_taps}, 1, WeightKind::kConvolution},
                 {"linear_attn.A_log", {Hv}, 1, WeightKind::kDecayRate},
                 {"linear_attn.dt_bias", {Hv}, 1, WeightKind::kStepBias},
                 {"linear_attn.norm.weight", {sizes.value_size}, 1, WeightKind::kGatedNorm},
                 norm("", 0, 2)};
  block.saved = {{"linear_attention.normed", D, kCompute, Recompute::kCheap, Layout::kRows, kIn},
                 {"linear_attention.rstd", 1, kFloat, Recompute::kFull, Layout::kVector},
                 {"linear_attention.by_key_head", grouped, kCompute, Recompute::kOff},
                 {"linear_attention.projected", projected},
                 {"linear_attention.convolved", qkv, kCompute, Recompute::kOff},
                 {"linear_attention.scratch", kernels::gated_delta_scratch_width(sizes), kCompute, Recompute::kOff},
                 {"linear_attention.ungated", values},
                 {"linear_attention.out", values, kCompute, Recompute::kCheap, Layout::kRows, kOut}};
  block.gradients = {{"d_projected", projected, kCompute, Recompute::kFull, Layout::kRows, kIn},
                     {"d_in_order", grouped},
                     {"d_convolved", qkv}};
  add_branch(c, block);
  return block;
}

BlockShape mlp::shape(const ModelConfig& c, std::int64_t, GradientColumns gate_up) {
  const std::int64_t D = c.hidden_size, F = c.intermediate_size;
  BlockShape block = two_projections(
      BlockKind::kMlp, "mlp", c, projection(D, c.mlp_bias, gate_up, {{"mlp.gate_proj", 0, F}, {"mlp.up_proj", 0, F}}),
      projection(F, c.mlp_bias, GradientColumns::kBesideOutput, {{"mlp.down_proj", 0, D}}));
  block.small = {norm(c.has_output_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", D, 0),
                 norm("post_feedforward_layernorm", c.has_output_norms ? D : 0, 2)};
  block.saved = {
      {"mlp.normed", D, kCompute, Recompute::kCheap, Layout::kRows, kGateUp},
      {"mlp.rstd", 1, kFloat, Recompute::kFull, Layout::kVector},
      {"mlp.gate_up", 2 * F, kCompute, Recompute::kGateUp, Layout::kRows, BufferShape::kNoProjection, kGateUp},
      {"mlp.hidden", F, kCompute, Recompute::kCheap, Layout::kRows, kDown}};
  add_branch(c, block);
  for (BufferShape& buffer : block.saved) buffer.is_tiled = buffer.shared_from.has_value();
  return block;
}

namespace {

constexpr std::string_view kPeft = "base_model.model.", kModel = "model.";

/// The part that PEFT puts before the names of a model, if it is there.
std::string_view peft_prefix(std::string_view name) {
  return name.substr(0, name.starts_with(kPeft) ? kPeft.size() : 0);
}

}  // namespace

std::string text_class_name(const std::string& name) {
  constexpr std::pair<std::string_view, std::string_view> kForms[] = {
      {"model.language_model.", kModel},
      {"language_model.model.", kModel},
      {"language_model.lm_head", "lm_head"},
      {"layers.", "model.layers."},  // AutoModel's class, which has no head
      {"embed_tokens.", "model.embed_tokens."}};
  const std::string_view before = peft_prefix(name), rest = std::string_view(name).substr(before.size());
  for (const auto& [form, text] : kForms) {
    if (rest.starts_with(form)) return fmt::format("{}{}{}", before, text, rest.substr(form.size()));
  }
  return name;
}

std::string name_in_class(const std::string& name, const std::string& module_prefix) {
  const std::string_view before = peft_prefix(name), rest = std::string_view(name).substr(before.size());
  return rest.starts_with(kModel) ? fmt::format("{}{}{}", before, module_prefix, rest.substr(kModel.size())) : name;
}

std::string linear_path(std::int64_t layer, const std::string& linear) { return layer_prefix(layer) + linear; }

std::string linear_path(const AdapterSpec& spec) { return linear_path(spec.layer, spec.linear); }

std::vector<Parameter> token_row_tensors(const TokenRows& rows, std::int64_t hidden_size) {
  std::vector<Parameter> tensors;
  if (!rows.embedding.empty()) tensors.push_back({kEmbeddingRows, {std::ssize(rows.embedding), hidden_size}});
  if (!rows.head.empty()) tensors.push_back({kHeadRows, {std::ssize(rows.head), hidden_size}});
  return tensors;
}

namespace {

LayerShape layer_shape(const ModelConfig& config, std::int64_t layer, const ColumnLayout& columns = {}) {
  const bool is_attention = config.kind_of(layer) == LayerKind::kAttention;
  LayerShape shape{{is_attention ? attention::shape(config, layer) : linear_attention::shape(config, layer),
                    mlp::shape(config, layer, columns.gate_up)}};
  for (BlockShape& block : shape.blocks) {
    for (ProjectionShape& projection : block.projections) {
      projection.row_pitch = columns.row_pitch;
      for (LinearShape& linear : projection.linears) {
        linear.out_begin = projection.out_features;
        projection.out_features += linear.out_features;
      }
    }
  }
  return shape;
}

/// Gives the adapter the columns that follow those of the previous adapters.
void place_adapter(const AdapterSpec& spec, std::int64_t index, LayerShape& layer) {
  for (BlockShape& block : layer.blocks) {
    for (ProjectionShape& projection : block.projections) {
      for (std::size_t i = 0; i < projection.linears.size(); ++i) {
        if (projection.linears[i].name != spec.linear) continue;
        const auto& before = projection.adapters;
        const std::int64_t column = before.empty() ? 0 : before.back().column + before.back().spec.rank;
        projection.num_columns = (column + spec.rank + kColumnStep - 1) / kColumnStep * kColumnStep;
        projection.adapters.push_back({spec, index, static_cast<std::int64_t>(i), column});
        return;
      }
    }
  }
  throw ShapeError(linear_path(spec), "the model has no such linear");
}

/// Gives buffers the width of a projection's input, or of the gradient of its output, with adapter columns.
void widen_buffers(BlockShape& block) {
  const auto widen = [&](BufferShape& buffer, std::int64_t index, bool is_output) {
    if (index == BufferShape::kNoProjection || buffer.width == 0) return;
    const ProjectionShape& projection = block.projections[static_cast<std::size_t>(index)];
    buffer.width = is_output ? projection.d_output_width() : projection.input_width();
    buffer.pitch = is_output ? projection.d_output_pitch() : projection.input_pitch();
  };
  for (BufferShape& buffer : block.saved) {
    widen(buffer, buffer.projection, /*is_output=*/false);
    widen(buffer, buffer.output_of, /*is_output=*/true);
  }
  for (BufferShape& buffer : block.gradients) widen(buffer, buffer.projection, /*is_output=*/true);
}

}  // namespace

ModelShape model_shape(const ModelConfig& config, const std::vector<AdapterSpec>& adapters, const ColumnLayout& columns,
                       const TokenRows& rows) {
  ModelShape shape;
  shape.rows = rows;
  shape.hidden_size = config.hidden_size;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    shape.layers.push_back(layer_shape(config, layer, columns));
  }
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const AdapterSpec& spec = adapters[i];
    place_adapter(spec, static_cast<std::int64_t>(i), shape.layers.at(static_cast<std::size_t>(spec.layer)));
  }
  for (LayerShape& layer : shape.layers) std::for_each(layer.blocks.begin(), layer.blocks.end(), widen_buffers);
  return shape;
}

std::vector<Parameter> adapter_parameters(const ModelShape& shape) {
  std::map<std::int64_t, std::vector<Parameter>> by_index;
  shape.for_each_projection([&](const ProjectionShape& projection) {
    for (const AdapterPlace& place : projection.adapters) {
      const LinearShape& linear = projection.linears[static_cast<std::size_t>(place.linear)];
      by_index[place.index] = adapter_tensors(place.spec, projection.in_features, linear.out_features);
    }
  });
  std::vector<Parameter> list;
  for (const auto& [index, tensors] : by_index) list.insert(list.end(), tensors.begin(), tensors.end());
  std::ranges::move(token_row_tensors(shape.rows, shape.hidden_size), std::back_inserter(list));
  return list;
}

std::vector<std::string> linear_names(const ModelConfig& config, std::int64_t layer) {
  std::vector<std::string> names;
  for (const BlockShape& block : layer_shape(config, layer).blocks) {
    for (const ProjectionShape& projection : block.projections) {
      for (const LinearShape& linear : projection.linears) names.push_back(linear.name);
    }
  }
  return names;
}

const BufferShape& saved_buffer(const LayerShape& layer, std::string_view name) {
  for (const BlockShape& block : layer.blocks) {
    for (const BufferShape& buffer : block.saved) {
      if (buffer.name == name) return buffer;
    }
  }
  throw ShapeError(std::string(name), "no block saves such a buffer");
}

std::string layer_prefix(std::int64_t layer) { return fmt::format("model.layers.{}.", layer); }

}  // namespace lora_train::model
