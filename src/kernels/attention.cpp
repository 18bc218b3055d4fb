#include "lora_train/kernels/attention.h"

#include "attention_cpu.h"
#include "checks.h"
#include "lora_train/base/error.h"

namespace lora_train::kernels {
namespace {

void check_lengths(const char* kernel, const char* name, const std::vector<int64_t>& cu_seqlens, int64_t num_tokens) {
  bool ok = !cu_seqlens.empty() && cu_seqlens.front() == 0 && cu_seqlens.back() <= num_tokens;
  for (std::size_t d = 1; ok && d < cu_seqlens.size(); ++d) {
    ok = cu_seqlens[d - 1] <= cu_seqlens[d];
  }
  if (!ok) {
    throw ShapeError(std::string(kernel) + ": " + name,
                     "must begin with 0, never fall and stay within " + std::to_string(num_tokens) + " tokens");
  }
}

void check_inputs(const char* kernel, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionLayout& layout, const at::Tensor& out, const at::Tensor& lse) {
  check_rows(kernel, "q", q, {-1, -1, -1});
  check_floating(kernel, "q", q);
  check_rows(kernel, "k", k, {-1, -1, q.size(2)});
  check_rows(kernel, "v", v, k.sizes());
  check_rows(kernel, "out", out, q.sizes());
  check_shape(kernel, "lse", lse, {q.size(0), q.size(1)});
  check_dtype(kernel, "k", k, q.scalar_type());
  check_dtype(kernel, "v", v, q.scalar_type());
  check_dtype(kernel, "out", out, q.scalar_type());
  check_dtype(kernel, "lse", lse, math_dtype(q));
  if (k.size(1) == 0 || q.size(1) % k.size(1) != 0) {
    throw ShapeError(std::string(kernel) + ": k", std::to_string(q.size(1)) + " heads cannot share " +
                                                      std::to_string(k.size(1)) + " kv heads evenly");
  }
  check_lengths(kernel, "cu_seqlens_q", layout.cu_seqlens_q, q.size(0));
  check_lengths(kernel, "cu_seqlens_k", layout.cu_seqlens_k, k.size(0));
  if (layout.cu_seqlens_q.size() != layout.cu_seqlens_k.size() || layout.window < 0) {
    throw ShapeError(kernel, "cu_seqlens_q and cu_seqlens_k must name equally many documents, window be 0 or more");
  }
}

}  // namespace

void attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                       at::Tensor& out, at::Tensor& lse) {
  check_inputs("attention_forward", q, k, v, layout, out, lse);
  const auto run = q.is_cpu() ? attention_forward_cpu : attention_forward_reference;
  run(q, k, v, layout, out, lse);
}

void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout, at::Tensor& dq,
                        at::Tensor& dk, at::Tensor& dv) {
  constexpr auto kName = "attention_backward";
  check_inputs(kName, q, k, v, layout, out, lse);
  const auto check_like = [&](const char* name, const at::Tensor& t, const at::Tensor& like) {
    check_rows(kName, name, t, like.sizes());
    check_dtype(kName, name, t, like.scalar_type());
  };
  check_like("dout", dout, q);
  check_like("dq", dq, q);
  check_like("dk", dk, k);
  check_like("dv", dv, v);
  const auto run = q.is_cpu() ? attention_backward_cpu : attention_backward_reference;
  run(dout, q, k, v, out, lse, layout, dq, dk, dv);
}

}  // namespace lora_train::kernels
