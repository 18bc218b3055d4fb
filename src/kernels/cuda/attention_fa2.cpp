// N tokens of all documents, H heads, E head size.
#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include "attention.h"
#include "settings.h"

namespace lora_train::cuda {
namespace {

using kernels::AttentionGradients;
using kernels::AttentionLayout;

/// ATen's backward is deterministic only where the whole process insists on it; with warnings alone it is not. While it
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

/// Keys to the left that a query sees besides itself.
std::optional<std::int64_t> left_of(const AttentionLayout& layout) {
  return layout.window > 0 ? std::optional(layout.window - 1) : std::nullopt;
}
std::optional<std::int64_t> right_of(const AttentionLayout& layout) {
  return layout.window > 0 ? std::optional<std::int64_t>(0) : std::nullopt;
}

/// With documents of one query, ATen would swap heads and queries and give lse in yet another shape. Decoding wants that: it reads
/// a key once for the query heads that share it, and splits the keys over blocks; nobody reads its lse.
std::int64_t longest_query(const AttentionLayout& layout) { return std::max<std::int64_t>(layout.max_len_q, 2); }

void forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
             at::Tensor& out, at::Tensor& lse) {
  const bool is_cached = layout.seqused_k_device.defined();
  const std::int64_t N = total(layout.cu_seqlens_q), Nk = is_cached ? k.size(0) : total(layout.cu_seqlens_k);
  const auto seqused = is_cached ? std::optional(layout.seqused_k_device) : std::nullopt;
  const auto result = at::_flash_attention_forward(
      aligned(q.narrow(0, 0, N)), aligned(k.narrow(0, 0, Nk)), aligned(v.narrow(0, 0, Nk)), layout.cu_seqlens_q_device,
      layout.cu_seqlens_k_device, is_cached ? layout.max_len_q : longest_query(layout), layout.max_len_k,
      /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, layout.scale, left_of(layout),
      right_of(layout), seqused);
  out.narrow(0, 0, N).copy_(std::get<0>(result));
  if (lse.defined()) lse.narrow(0, 0, N).copy_(std::get<1>(result).t());  // from [H, N]
}

void backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
              AttentionGradients& gradients) {
  const std::int64_t N = total(layout.cu_seqlens_q), Nk = total(layout.cu_seqlens_k);
  const at::Tensor heads_first = lse.narrow(0, 0, N).t().contiguous();
  // What the forward would have drawn dropout from; not read without dropout.
  static const at::Tensor* const random = new at::Tensor(at::empty({2}, q.options().dtype(at::kLong)));
  const DeterministicBackward guard(settings().deterministic);
  const auto [gq, gk, gv] = at::_flash_attention_backward(
      aligned(dout.narrow(0, 0, N)), aligned(q.narrow(0, 0, N)), aligned(k.narrow(0, 0, Nk)),
      aligned(v.narrow(0, 0, Nk)), aligned(out.narrow(0, 0, N)), heads_first, layout.cu_seqlens_q_device,
      layout.cu_seqlens_k_device, longest_query(layout), layout.max_len_k, /*dropout_p=*/0.0,
      /*is_causal=*/true, *random, *random, layout.scale, left_of(layout), right_of(layout));
  gradients = {gq.contiguous(), gk.contiguous(), gv.contiguous()};  // as ATen has made them
}

}  // namespace

const kernels::CudaAttention kFa2 = {&forward, &backward};

}  // namespace lora_train::cuda
