// Attention backends of LibTorch. N tokens of all documents, H heads, K kv heads, E head size.
#include <ATen/Context.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include "attention/attention_parts.h"
#include "library.h"

namespace lora_train::cuda {
namespace {

using kernels::AttentionGradients;
using kernels::AttentionLayout;

/// ATen's backward is deterministic only if the whole process insists on it; warn-only mode is not enough. While it
/// does, ATen would also fill every buffer that it allocates.
class DeterministicBackward {
 public:
  explicit DeterministicBackward(bool wanted)
      : wanted_(wanted),
        was_deterministic_(at::globalContext().deterministicAlgorithms()),
        only_warned_(at::globalContext().deterministicAlgorithmsWarnOnly()),
        filled_(at::globalContext().deterministicFillUninitializedMemory()) {
    if (!wanted_) return;
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ~DeterministicBackward() {
    if (!wanted_) return;
    at::globalContext().setDeterministicAlgorithms(was_deterministic_, only_warned_);
    at::globalContext().setDeterministicFillUninitializedMemory(filled_);
  }
  DeterministicBackward(const DeterministicBackward&) = delete;
  DeterministicBackward& operator=(const DeterministicBackward&) = delete;

 private:
  bool wanted_, was_deterministic_, only_warned_, filled_;
};

/// An argument for layers with a sliding window only.
std::optional<std::int64_t> if_windowed(const AttentionLayout& layout, std::int64_t value) {
  return layout.window > 0 ? std::optional(value) : std::nullopt;
}

/// With documents of one query, ATen would swap heads and queries and give lse in yet another shape. Decoding benefits:
/// it reads a key once for the query heads that share it, and splits the keys over blocks; its lse is unused.
std::int64_t longest_query(const AttentionLayout& layout) { return std::max<std::int64_t>(layout.max_len_q, 2); }

void fa2_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                 at::Tensor& out, at::Tensor& lse) {
  const bool is_cached = layout.seqused_k_device.defined();
  const std::int64_t N = total(layout.cu_seqlens_q), Nk = is_cached ? k.size(0) : total(layout.cu_seqlens_k);
  const auto seqused = is_cached ? std::optional(layout.seqused_k_device) : std::nullopt;
  const auto result = at::_flash_attention_forward(
      aligned(q.narrow(0, 0, N)), aligned(k.narrow(0, 0, Nk)), aligned(v.narrow(0, 0, Nk)), layout.cu_seqlens_q_device,
      layout.cu_seqlens_k_device, is_cached ? layout.max_len_q : longest_query(layout), layout.max_len_k,
      /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, layout.scale,
      if_windowed(layout, layout.window - 1), if_windowed(layout, 0), seqused);
  out.narrow(0, 0, N).copy_(std::get<0>(result));
  if (lse.defined()) lse.narrow(0, 0, N).copy_(std::get<1>(result).t());  // from [H, N]
}

void fa2_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                  AttentionGradients& gradients) {
  const std::int64_t N = total(layout.cu_seqlens_q), Nk = total(layout.cu_seqlens_k);
  const at::Tensor heads_first = lse.narrow(0, 0, N).t().contiguous();
  // The forward's random state for dropout; not read without dropout.
  static const at::Tensor* const random = new at::Tensor(at::empty({2}, q.options().dtype(at::kLong)));
  const DeterministicBackward guard(settings().deterministic);
  const auto [gq, gk, gv] = at::_flash_attention_backward(
      aligned(dout.narrow(0, 0, N)), aligned(q.narrow(0, 0, N)), aligned(k.narrow(0, 0, Nk)),
      aligned(v.narrow(0, 0, Nk)), aligned(out.narrow(0, 0, N)), heads_first, layout.cu_seqlens_q_device,
      layout.cu_seqlens_k_device, longest_query(layout), layout.max_len_k, /*dropout_p=*/0.0,
      /*is_causal=*/true, *random, *random, layout.scale, if_windowed(layout, layout.window - 1),
      if_windowed(layout, 0));
  gradients = {gq.contiguous(), gk.contiguous(), gv.contiguous()};  // ATen's layout
}

constexpr std::int64_t kCausalFromBottomRight = 2;  // sdp::CustomMaskType

/// [1, N, H, E], heads repeated if several share one. ATen takes strided rows, but one stride for all heads.
at::Tensor expanded(const at::Tensor& t, std::int64_t num_tokens, std::int64_t num_heads) {
  const at::Tensor used = aligned(t.narrow(0, 0, num_tokens));
  const std::int64_t K = t.size(1), E = t.size(2);
  if (num_heads == K) return used.unsqueeze(0);
  return used.unsqueeze(2).expand({num_tokens, K, num_heads / K, E}).reshape({1, num_tokens, num_heads, E});
}

/// [1, N, H, E] to [N, K, E], shared heads summed; contiguous.
at::Tensor summed(const at::Tensor& t, std::int64_t num_kv_heads) {
  if (t.size(2) == num_kv_heads) return t.squeeze(0).contiguous();
  return t.reshape({t.size(1), num_kv_heads, t.size(2) / num_kv_heads, t.size(3)}).sum(2);
}

template <class T>
kernels::PackedLse<T> packed(const at::Tensor& lse, T* data) {
  return {data, lse.stride(0), lse.stride(1)};
}

void efficient_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                       at::Tensor& out, at::Tensor& lse) {
  const std::int64_t N = total(layout.cu_seqlens_q), Nk = total(layout.cu_seqlens_k), H = q.size(1);
  const auto result = at::_efficient_attention_forward(
      expanded(q, N, H), expanded(k, Nk, H), expanded(v, Nk, H), /*bias=*/std::nullopt, layout.cu_seqlens_q_device,
      layout.cu_seqlens_k_device, layout.max_len_q, layout.max_len_k, /*dropout_p=*/0.0, kCausalFromBottomRight,
      /*compute_log_sumexp=*/true, layout.scale, /*seqlen_k=*/std::nullopt, if_windowed(layout, layout.window));
  out.narrow(0, 0, N).copy_(std::get<0>(result).squeeze(0));
  const at::Tensor& padded = std::get<1>(result);  // [documents, H, the longest, rounded up]
  kernels::unpad_lse_cuda(layout.cu_seqlens_q_device.const_data_ptr<std::int32_t>(), padded.size(0), H,
                          padded.const_data_ptr<float>(), padded.size(2), packed(lse, lse.mutable_data_ptr<float>()),
                          c10::cuda::getCurrentCUDAStream().stream());
}

void efficient_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                        AttentionGradients& gradients) {
  constexpr std::int64_t kMultiple = 32;  // the kernel needs lse rows rounded up to this
  const std::int64_t N = total(layout.cu_seqlens_q), Nk = total(layout.cu_seqlens_k), H = q.size(1), K = k.size(1);
  const std::int64_t row = (layout.max_len_q + kMultiple - 1) / kMultiple * kMultiple;
  const at::Tensor padded = at::empty({std::ssize(layout.cu_seqlens_q) - 1, H, row}, lse.options());
  kernels::pad_lse_cuda(layout.cu_seqlens_q_device.const_data_ptr<std::int32_t>(), padded.size(0), H,
                        packed(lse, lse.const_data_ptr<float>()), padded.mutable_data_ptr<float>(), row,
                        c10::cuda::getCurrentCUDAStream().stream());
  const at::Tensor seed = at::empty({}, at::dtype(at::kLong));  // not read without dropout
  // The kernel assumes contiguous rows of out, whatever their stride.
  const auto [gq, gk, gv, no_bias] = at::_efficient_attention_backward(
      expanded(dout, N, H).contiguous(), expanded(q, N, H), expanded(k, Nk, H), expanded(v, Nk, H),
      /*bias=*/std::nullopt, expanded(out, N, H).contiguous(), layout.cu_seqlens_q_device, layout.cu_seqlens_k_device,
      layout.max_len_q, layout.max_len_k, padded, /*dropout_p=*/0.0, seed, seed, kCausalFromBottomRight,
      /*bias_requires_grad=*/false, layout.scale, /*num_splits_key=*/1, if_windowed(layout, layout.window));
  gradients = {gq.squeeze(0).contiguous(), summed(gk, K), summed(gv, K)};
}

}  // namespace

const kernels::CudaAttention kFa2 = {&fa2_forward, &fa2_backward};
const kernels::CudaAttention kEfficient = {&efficient_forward, &efficient_backward};

}  // namespace lora_train::cuda
