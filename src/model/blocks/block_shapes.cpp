// D hidden, F ffn, H heads, K kv heads, E head size, C adapter columns.
#include "block_shapes.h"

namespace lora_train::model::attention {

BlockShape shape(const ModelConfig& c, std::int64_t) {
  using Shared = BufferShape::Shared;
  using Layout = BufferShape::Layout;
  const std::int64_t D = c.hidden_size, E = c.head_dim, H = c.num_heads, K = c.num_kv_heads;
  BlockShape block;
  block.kind = BlockKind::kAttention;
  block.name = "attention";
  block.has_output_norm = c.has_output_norms;
  block.projections.resize(2);
  ProjectionShape& qkv = block.projections[kQkv];
  qkv.in_features = D;
  qkv.has_bias = c.qkv_bias;
  qkv.gradient_columns = GradientColumns::kBesideOutput;
  qkv.linears = {{"self_attn.q_proj", 0, H * E}, {"self_attn.k_proj", 0, K * E}, {"self_attn.v_proj", 0, K * E}};
  ProjectionShape& o = block.projections[kO];
  o.in_features = H * E;
  o.has_bias = c.o_bias;
  o.gradient_columns = GradientColumns::kBesideOutput;
  o.output_scale = c.residual_multiplier;
  o.linears = {{"self_attn.o_proj", 0, D}};
  block.norms = {{"input_layernorm", D, 0},
                 {"self_attn.q_norm", c.qk_norm ? E : 0, 1},
                 {"self_attn.k_norm", c.qk_norm ? E : 0, 1},
                 {"post_attention_layernorm", c.has_output_norms ? D : 0, 2}};
  const std::int64_t qk = c.qk_norm ? H + K : 0, branch = c.has_output_norms ? D : 0, one = branch > 0 ? 1 : 0;
  constexpr ElementType compute = ElementType::kCompute, fp32 = ElementType::kFloat;
  block.saved = {{"attention.normed", D, compute, Shared::kCheap, Layout::kRows, kQkv},
                 {"attention.rstd", 1, fp32, Shared::kFull, Layout::kVector},
                 {"attention.qkv", (H + 2 * K) * E},
                 {"attention.qk_raw", qk * E},
                 {"attention.qk_rstd", qk, fp32, Shared::kFull, Layout::kTokenLast},
                 {"attention.out", H * E, compute, Shared::kFull, Layout::kRows, kO},
                 {"attention.lse", H, fp32},
                 {"attention.branch", branch},
                 {"attention.branch_rstd", one, fp32, Shared::kNever, Layout::kVector}};
  block.gradients = {{"d_qkv", (H + 2 * K) * E, compute, Shared::kFull, Layout::kRows, kQkv},
                     {"d_branch", branch, compute, Shared::kFull, Layout::kRows, kO}};
  return block;
}

}  // namespace lora_train::model::attention

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
