// N tokens of all documents, H heads, K kv heads, E head size.
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <limits>

#include "attention.h"

namespace lora_train::cuda {
namespace {

using kernels::AttentionGradients;
using kernels::AttentionLayout;

constexpr std::int64_t kCausalFromBottomRight = 2;  // sdp::CustomMaskType
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::optional<std::int64_t> window_of(const AttentionLayout& layout) {
  return layout.window > 0 ? std::optional(layout.window) : std::nullopt;
}

/// [1, N, H, E], heads repeated where several share one.
at::Tensor expanded(const at::Tensor& t, std::int64_t num_tokens, std::int64_t num_heads) {
  const at::Tensor used = aligned(t.narrow(0, 0, num_tokens));
  return (num_heads == t.size(1) ? used : used.repeat_interleave(num_heads / t.size(1), 1)).unsqueeze(0);
}

/// [1, N, H, E] to [N, K, E], shared heads summed; contiguous.
at::Tensor summed(const at::Tensor& t, std::int64_t num_kv_heads) {
  if (t.size(2) == num_kv_heads) return t.squeeze(0).contiguous();
  return t.reshape({t.size(1), num_kv_heads, t.size(2) / num_kv_heads, t.size(3)}).sum(2);
}

/// Calls body(document, its first query, its queries).
template <class Body>
void for_each_document(const AttentionLayout& layout, const Body& body) {
  for (std::size_t d = 0; d + 1 < layout.cu_seqlens_q.size(); ++d) {
    const std::int64_t begin = layout.cu_seqlens_q[d], length = layout.cu_seqlens_q[d + 1] - begin;
    if (length > 0) body(static_cast<std::int64_t>(d), begin, length);
  }
}

void forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
             at::Tensor& out, at::Tensor& lse) {
  const std::int64_t N = total(layout.cu_seqlens_q), Nk = total(layout.cu_seqlens_k), H = q.size(1);
  const auto result = at::_efficient_attention_forward(
      expanded(q, N, H), expanded(k, Nk, H), expanded(v, Nk, H), /*bias=*/std::nullopt, layout.cu_seqlens_q_device,
      layout.cu_seqlens_k_device, layout.max_len_q, layout.max_len_k, /*dropout_p=*/0.0, kCausalFromBottomRight,
      /*compute_log_sumexp=*/true, layout.scale, /*seqlen_k=*/std::nullopt, window_of(layout));
  out.narrow(0, 0, N).copy_(std::get<0>(result).squeeze(0));
  const at::Tensor per_document = std::get<1>(result);  // [documents, H, longest, rounded up]
  for_each_document(layout, [&](std::int64_t d, std::int64_t begin, std::int64_t length) {
    lse.narrow(0, begin, length).copy_(per_document.select(0, d).narrow(1, 0, length).t());
  });
}

void backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
              AttentionGradients& gradients) {
  constexpr std::int64_t kMultiple = 32;  // to which the kernel wants the rows of lse rounded up
  const std::int64_t N = total(layout.cu_seqlens_q), Nk = total(layout.cu_seqlens_k), H = q.size(1), K = k.size(1);
  const std::int64_t row = (layout.max_len_q + kMultiple - 1) / kMultiple * kMultiple;
  const auto num_docs = static_cast<std::int64_t>(layout.cu_seqlens_q.size()) - 1;
  at::Tensor per_document = at::full({num_docs, H, row}, kInfinity, lse.options());
  for_each_document(layout, [&](std::int64_t d, std::int64_t begin, std::int64_t length) {
    per_document.select(0, d).narrow(1, 0, length).copy_(lse.narrow(0, begin, length).t());
  });
  const at::Tensor seed = at::empty({}, at::dtype(at::kLong));  // not read without dropout
  const auto [gq, gk, gv, no_bias] = at::_efficient_attention_backward(
      expanded(dout, N, H).contiguous(), expanded(q, N, H), expanded(k, Nk, H), expanded(v, Nk, H),
      /*bias=*/std::nullopt, expanded(out, N, H).contiguous(), layout.cu_seqlens_q_device, layout.cu_seqlens_k_device,
      layout.max_len_q, layout.max_len_k, per_document, /*dropout_p=*/0.0, seed, seed, kCausalFromBottomRight,
      /*bias_requires_grad=*/false, layout.scale, /*num_splits_key=*/1, window_of(layout));
  gradients = {gq.squeeze(0).contiguous(), summed(gk, K), summed(gv, K)};
}

}  // namespace

const kernels::CudaAttention kEfficient = {&forward, &backward};

}  // namespace lora_train::cuda
