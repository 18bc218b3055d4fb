// N query tokens, H heads, K kv heads, E head size.
#include "attention_work.h"

#include <algorithm>

namespace lora_train::kernels {
namespace {

/// Keys that all queries of a head see together.
std::int64_t num_visible(const AttentionLayout& layout) {
  std::int64_t visible = 0;
  for (std::size_t d = 1; d < layout.cu_seqlens_q.size(); ++d) {
    const std::int64_t len_q = layout.cu_seqlens_q[d] - layout.cu_seqlens_q[d - 1];
    const std::int64_t len_k = layout.cu_seqlens_k[d] - layout.cu_seqlens_k[d - 1];
    const std::int64_t most = layout.window > 0 ? std::min(layout.window, len_k) : len_k;
    // Query i sees min(most, i + 1 + len_k - len_q) keys: a triangle up to `most`, then as many each.
    const std::int64_t first = std::max<std::int64_t>(0, 1 + len_k - len_q);
    const std::int64_t rising = std::clamp<std::int64_t>(most - first, 0, len_q);
    visible += rising * first + rising * (rising - 1) / 2 + (len_q - rising) * std::min(most, len_k);
  }
  return visible;
}

std::int64_t flops_of_product(const at::Tensor& q, const AttentionLayout& layout) {
  return 2 * num_visible(layout) * q.size(1) * q.size(2);
}

}  // namespace

bool has_own_gradients(AttentionBackend backend) {
  return backend == AttentionBackend::kFa2 || backend == AttentionBackend::kCudnn ||
         backend == AttentionBackend::kEfficient;
}

void describe_attention_forward(Work& work, AttentionBackend backend, const AttentionTensors& t,
                                const AttentionLayout& layout) {
  work.reads("q", t.q).reads("k", t.k).reads("v", t.v).writes("out", t.out).writes("lse", t.lse);
  work.multiplies(2 * flops_of_product(t.q, layout));
  if (backend != AttentionBackend::kFa2) return;
  work.passes_through("copy of out", bytes_of(t.out)).passes_through("copy of lse", bytes_of(t.lse)).launches(3);
}

void describe_attention_backward(Work& work, AttentionBackend backend, const AttentionTensors& t,
                                 const at::Tensor& dout, const AttentionGradients& gradients,
                                 const AttentionLayout& layout) {
  work.reads("dout", dout).reads("q", t.q).reads("k", t.k).reads("v", t.v).reads("out", t.out).reads("lse", t.lse);
  const bool is_own = has_own_gradients(backend);
  const auto writes = [&](std::string_view name, const at::Tensor& gradient) {
    is_own ? work.writes_bytes(name, bytes_of(gradient)) : work.writes(name, gradient);
  };
  writes("dq", gradients.q);
  writes("dk", gradients.k);
  writes("dv", gradients.v);
  work.multiplies(5 * flops_of_product(t.q, layout)).launches(3);
  if (backend != AttentionBackend::kFa2) return;
  work.passes_through("copy of lse", bytes_of(t.lse)).launches(4);
  if (t.q.size(1) == t.k.size(1)) return;
  // dk and dv of every head, summed over the heads that share.
  work.passes_through("dk and dv of every head", 2 * bytes_of(t.q)).launches(6);
}

}  // namespace lora_train::kernels
