// L queries and S keys of one document, H heads, K kv heads, E head size.
#include <ATen/ATen.h>

#include <limits>

#include "dispatch/checks.h"
#include "lora_train/kernels/attention/attention.h"

namespace lora_train::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Document {
  int64_t query, len_q, key, len_k;
};

std::vector<Document> documents_of(const AttentionLayout& layout) {
  std::vector<Document> documents;
  for (std::size_t d = 0; d + 1 < layout.cu_seqlens_q.size(); ++d) {
    const Document doc{layout.cu_seqlens_q[d], layout.cu_seqlens_q[d + 1] - layout.cu_seqlens_q[d],
                       layout.cu_seqlens_k[d], layout.cu_seqlens_k[d + 1] - layout.cu_seqlens_k[d]};
    if (doc.len_q > 0 || doc.len_k > 0) {
      documents.push_back(doc);
    }
  }
  return documents;
}

// [N, H, E] to [num_heads, L, E] in fp32 (fp64), heads repeated where several share one.
at::Tensor heads_of(const at::Tensor& t, int64_t begin, int64_t size, int64_t num_heads) {
  return to_math(t.narrow(0, begin, size)).transpose(0, 1).repeat_interleave(num_heads / t.size(1), 0);
}

// Scaled scores [H, L, S], -inf where a query may not look.
at::Tensor masked_scores(const at::Tensor& q, const at::Tensor& k, const AttentionLayout& layout) {
  const int64_t len_q = q.size(1), len_k = k.size(1);
  const auto options = q.options().dtype(at::kLong);
  const auto last_visible = (at::arange(len_q, options) + (len_k - len_q)).unsqueeze(1);
  const auto key = at::arange(len_k, options).unsqueeze(0);
  auto hidden = key > last_visible;
  if (layout.window > 0) {
    hidden = hidden | (key <= last_visible - layout.window);
  }
  return (at::matmul(q, k.transpose(1, 2)) * layout.scale).masked_fill(hidden, -kInfinity);
}

// exp(scores - lse); zero, not NaN, for a query that sees nothing.
at::Tensor probabilities(const at::Tensor& scores, const at::Tensor& lse) {
  return (scores - lse.masked_fill(lse == -kInfinity, 0).unsqueeze(-1)).exp();
}

// [H, S, E] to [S, K, E], shared heads summed.
at::Tensor sum_heads_of_groups(const at::Tensor& t, int64_t num_kv_heads) {
  return t.reshape({num_kv_heads, t.size(0) / num_kv_heads, t.size(1), t.size(2)}).sum(1).transpose(0, 1);
}

}  // namespace

void attention_forward_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionLayout& layout, at::Tensor& out, at::Tensor& lse) {
  const int64_t num_heads = q.size(1);
  for (const auto& d : documents_of(layout)) {
    const auto scores =
        masked_scores(heads_of(q, d.query, d.len_q, num_heads), heads_of(k, d.key, d.len_k, num_heads), layout);
    const auto row_lse = scores.logsumexp(-1);
    const auto o = at::matmul(probabilities(scores, row_lse), heads_of(v, d.key, d.len_k, num_heads));
    out.narrow(0, d.query, d.len_q).copy_(o.transpose(0, 1));
    lse.narrow(0, d.query, d.len_q).copy_(row_lse.transpose(0, 1));
  }
}

void attention_backward_reference(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                                  AttentionGradients& gradients) {
  const int64_t num_heads = q.size(1), num_kv_heads = k.size(1);
  for (const auto& d : documents_of(layout)) {
    const auto qh = heads_of(q, d.query, d.len_q, num_heads), kh = heads_of(k, d.key, d.len_k, num_heads);
    const auto vh = heads_of(v, d.key, d.len_k, num_heads), oh = heads_of(out, d.query, d.len_q, num_heads);
    const auto gh = heads_of(dout, d.query, d.len_q, num_heads);
    const auto p = probabilities(masked_scores(qh, kh, layout), lse.narrow(0, d.query, d.len_q).transpose(0, 1));
    const auto delta = (gh * oh).sum(-1, /*keepdim=*/true);
    const auto dscores = p * (at::matmul(gh, vh.transpose(1, 2)) - delta) * layout.scale;
    gradients.q.narrow(0, d.query, d.len_q).copy_(at::matmul(dscores, kh).transpose(0, 1));
    gradients.k.narrow(0, d.key, d.len_k)
        .copy_(sum_heads_of_groups(at::matmul(dscores.transpose(1, 2), qh), num_kv_heads));
    gradients.v.narrow(0, d.key, d.len_k).copy_(sum_heads_of_groups(at::matmul(p.transpose(1, 2), gh), num_kv_heads));
  }
}

}  // namespace lora_train::kernels
