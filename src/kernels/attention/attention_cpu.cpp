// L length of a query block, S keys it sees, H heads, K kv heads, E head size.
#include "attention_cpu.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "dispatch/checks.h"

namespace lora_train::kernels {
namespace {

constexpr int64_t kMaxBlock = 1024;
constexpr int64_t kMinBlock = 128;

/// Queries [query, query + num_queries) of the whole batch and the only keys they can see. Query i of the block sees
/// keys up to i + diagonal of the block's keys, and `window` of them (0 = all).
struct Block {
  int64_t query = 0, num_queries = 0, key = 0, num_keys = 0, diagonal = 0, window = 0;

  /// ATen's causal aligns top-left, so it serves exactly this case.
  bool is_plain_causal() const { return diagonal == 0 && num_queries == num_keys && window == 0; }
};

struct Plan {
  std::vector<Block> blocks;
  std::vector<std::pair<int64_t, int64_t>> blind_queries;  ///< ranges of queries that see no key
};

void plan_document(int64_t query, int64_t len_q, int64_t key, int64_t len_k, int64_t window, Plan& plan) {
  const int64_t blind = std::min(len_q, std::max<int64_t>(0, len_q - len_k));
  if (blind > 0) {
    plan.blind_queries.emplace_back(query, query + blind);
  }
  query += blind;
  len_q -= blind;
  if (len_q == 0) {
    return;
  }
  const bool is_windowed = window > 0 && window < len_k;
  const int64_t offset = len_k - len_q;
  if (!is_windowed && offset == 0) {
    plan.blocks.push_back({query, len_q, key, len_k, 0, 0});
    return;
  }
  // A block also computes the masked corners of its keys: for a narrow window large blocks would be mostly waste.
  const int64_t block = is_windowed ? std::clamp(window, kMinBlock, kMaxBlock) : kMaxBlock;
  for (int64_t begin = 0; begin < len_q; begin += block) {
    const int64_t size = std::min(block, len_q - begin);
    const int64_t first = is_windowed ? std::max<int64_t>(0, begin + offset - window + 1) : 0;
    const int64_t last = begin + size + offset;
    plan.blocks.push_back(
        {query + begin, size, key + first, last - first, begin + offset - first, is_windowed ? window : 0});
  }
}

Plan make_plan(const AttentionLayout& layout) {
  Plan plan;
  for (std::size_t d = 0; d + 1 < layout.cu_seqlens_q.size(); ++d) {
    const int64_t query = layout.cu_seqlens_q[d];
    const int64_t key = layout.cu_seqlens_k[d];
    plan_document(query, layout.cu_seqlens_q[d + 1] - query, key, layout.cu_seqlens_k[d + 1] - key, layout.window,
                  plan);
  }
  return plan;
}

/// Additive mask [L, S] of the last block shape; inner blocks of a window all have the same one.
class MaskCache {
 public:
  const at::Tensor& get(const Block& b, const at::Tensor& like) {
    const bool is_same = mask_.defined() && last_.num_queries == b.num_queries && last_.num_keys == b.num_keys &&
                         last_.diagonal == b.diagonal && last_.window == b.window;
    if (!is_same) {
      last_ = b;
      const auto ones = at::ones({b.num_queries, b.num_keys}, like.options().dtype(at::kBool));
      auto visible = ones.tril(b.diagonal);
      if (b.window > 0) {
        visible = visible.triu(b.diagonal - b.window + 1);
      }
      mask_ = at::zeros({b.num_queries, b.num_keys}, like.options());
      mask_.masked_fill_(visible.logical_not(), -std::numeric_limits<double>::infinity());
    }
    return mask_;
  }

 private:
  Block last_;
  at::Tensor mask_;
};

// Tokens [begin, begin + size) of t [N, H, E] as ATen's [1, H, L, E].
at::Tensor heads_first(const at::Tensor& t, int64_t begin, int64_t size) {
  return t.narrow(0, begin, size).transpose(0, 1).unsqueeze(0);
}

// [1, H, L, E] back to [L, H, E].
at::Tensor tokens_first(const at::Tensor& t) { return t.squeeze(0).transpose(0, 1); }

// Every kv head repeated for the heads that share it: [1, K, S, E] to [1, H, S, E].
at::Tensor expand_heads(const at::Tensor& t, int64_t num_heads) {
  return t.size(1) == num_heads ? t : t.repeat_interleave(num_heads / t.size(1), 1);
}

// [S, H, E] to [S, K, E], the heads of a group summed in fp32.
at::Tensor sum_groups(const at::Tensor& t, int64_t num_kv_heads) {
  if (t.size(1) == num_kv_heads) {
    return to_math(t);
  }
  return t.view({t.size(0), num_kv_heads, t.size(1) / num_kv_heads, t.size(2)})
      .sum(2, /*keepdim=*/false, math_dtype(t));
}

}  // namespace

void attention_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                           at::Tensor& out, at::Tensor& lse) {
  const Plan plan = make_plan(layout);
  MaskCache masks;
  for (const auto& b : plan.blocks) {
    const bool is_causal = b.is_plain_causal();
    const auto mask = is_causal ? std::nullopt : std::optional<at::Tensor>(masks.get(b, q));
    const auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(
        heads_first(q, b.query, b.num_queries), heads_first(k, b.key, b.num_keys), heads_first(v, b.key, b.num_keys),
        /*dropout_p=*/0.0, is_causal, mask, layout.scale);
    out.narrow(0, b.query, b.num_queries).copy_(tokens_first(o));
    lse.narrow(0, b.query, b.num_queries).copy_(l.squeeze(0).transpose(0, 1));
  }
  for (const auto& [begin, end] : plan.blind_queries) {
    out.narrow(0, begin, end - begin).zero_();
    lse.narrow(0, begin, end - begin).fill_(-std::numeric_limits<double>::infinity());
  }
}

void attention_backward_cpu(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                            AttentionGradients& gradients) {
  const Plan plan = make_plan(layout);
  MaskCache masks;
  // Blocks of one document share keys: their gradients are summed in fp32 and rounded once.
  const bool is_blocked =
      !std::all_of(plan.blocks.begin(), plan.blocks.end(), [](auto& b) { return b.is_plain_causal(); });
  const auto options = k.options().dtype(math_dtype(k));
  auto dk_sum = is_blocked ? at::zeros(k.sizes(), options) : at::Tensor();
  auto dv_sum = is_blocked ? at::zeros(v.sizes(), options) : at::Tensor();
  // ATen's backward with shared kv heads rounds every head's share to bf16 before it sums them.
  const int64_t num_heads = k.scalar_type() == at::kBFloat16 ? q.size(1) : k.size(1);
  for (const auto& b : plan.blocks) {
    const bool is_causal = b.is_plain_causal();
    const auto mask = is_causal ? std::nullopt : std::optional<at::Tensor>(masks.get(b, q));
    const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        heads_first(dout, b.query, b.num_queries), heads_first(q, b.query, b.num_queries),
        expand_heads(heads_first(k, b.key, b.num_keys), num_heads),
        expand_heads(heads_first(v, b.key, b.num_keys), num_heads), heads_first(out, b.query, b.num_queries),
        lse.narrow(0, b.query, b.num_queries).transpose(0, 1).unsqueeze(0), /*dropout_p=*/0.0, is_causal, mask,
        layout.scale);
    gradients.q.narrow(0, b.query, b.num_queries).copy_(tokens_first(gq));
    const auto gk_sum = sum_groups(tokens_first(gk), k.size(1));
    const auto gv_sum = sum_groups(tokens_first(gv), k.size(1));
    if (is_blocked) {
      dk_sum.narrow(0, b.key, b.num_keys).add_(gk_sum);
      dv_sum.narrow(0, b.key, b.num_keys).add_(gv_sum);
    } else {
      gradients.k.narrow(0, b.key, b.num_keys).copy_(gk_sum);
      gradients.v.narrow(0, b.key, b.num_keys).copy_(gv_sum);
    }
  }
  for (const auto& [begin, end] : plan.blind_queries) {
    gradients.q.narrow(0, begin, end - begin).zero_();
  }
  if (is_blocked) {
    gradients.k.copy_(dk_sum);
    gradients.v.copy_(dv_sum);
  }
}

}  // namespace lora_train::kernels
