// D hidden, F ffn, C adapter columns.
#include "mlp_shape.h"

namespace lora_train::model::mlp {

BlockShape shape(const ModelConfig& c, std::int64_t, GradientColumns gradient_columns) {
  using Shared = BufferShape::Shared;
  using Layout = BufferShape::Layout;
  const std::int64_t D = c.hidden_size, F = c.intermediate_size;
  BlockShape block;
  block.kind = BlockKind::kMlp;
  block.name = "mlp";
  block.has_output_norm = c.has_output_norms;
  block.projections.resize(2);
  ProjectionShape& gate_up = block.projections[kGateUp];
  gate_up.in_features = D;
  gate_up.has_bias = c.mlp_bias;
  gate_up.gradient_columns = gradient_columns;
  gate_up.linears = {{"mlp.gate_proj", 0, F}, {"mlp.up_proj", 0, F}};
  ProjectionShape& down = block.projections[kDown];
  down.in_features = F;
  down.has_bias = c.mlp_bias;
  down.gradient_columns = GradientColumns::kBesideOutput;
  down.output_scale = c.residual_multiplier;
  down.linears = {{"mlp.down_proj", 0, D}};
  block.norms = {{c.has_output_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", D, 0},
                 {"post_feedforward_layernorm", c.has_output_norms ? D : 0, 2}};
  const std::int64_t branch = c.has_output_norms ? D : 0, one = branch > 0 ? 1 : 0;
  constexpr ElementType compute = ElementType::kCompute, fp32 = ElementType::kFloat;
  block.saved = {{"mlp.normed", D, compute, Shared::kCheap, Layout::kRows, kGateUp},
                 {"mlp.rstd", 1, fp32, Shared::kFull, Layout::kVector},
                 {"mlp.gate_up", 2 * F, compute, Shared::kGateUp, Layout::kRows, BufferShape::kNoProjection, kGateUp},
                 {"mlp.hidden", F, compute, Shared::kCheap, Layout::kRows, kDown},
                 {"mlp.branch", branch},
                 {"mlp.branch_rstd", one, fp32, Shared::kNever, Layout::kVector}};
  for (BufferShape& buffer : block.saved) buffer.is_tiled = buffer.shared != Shared::kNever;
  block.gradients = {{"d_branch", branch, compute, Shared::kFull, Layout::kRows, kDown}};
  return block;
}

}  // namespace lora_train::model::mlp
