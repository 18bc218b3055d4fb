#include "lora_train/kernels/attention/attention.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "attention_cpu.h"
#include "dispatch/checks.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/launch/graph.h"

namespace lora_train::kernels {
namespace {

struct AttentionTensors {
  const at::Tensor &q, &k, &v, &out, &lse;
};

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

/// True if the backend returns gradients in its own memory.
bool has_own_gradients(AttentionBackend backend) {
  return backend == AttentionBackend::kFa2 || backend == AttentionBackend::kCudnn ||
         backend == AttentionBackend::kEfficient;
}

/// FLOPs count the scores that the mask allows: 2 products forward, 5 backward. Bytes count q, k, v, out, lse and their gradients
/// once, and the copies that a CUDA backend makes around its kernels (cuda/attention_*.cpp), but not partial sums inside them.
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
  check_rows(kernel, "k", k, {-1, -1, q.size(2)}, q.scalar_type());
  check_rows(kernel, "v", v, k.sizes(), q.scalar_type());
  check_rows(kernel, "out", out, q.sizes(), q.scalar_type());
  check_shape(kernel, "lse", lse, {q.size(0), q.size(1)});
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

int64_t longest(const std::vector<int64_t>& cu_seqlens) {
  int64_t length = 0;
  for (std::size_t d = 1; d < cu_seqlens.size(); ++d) length = std::max(length, cu_seqlens[d] - cu_seqlens[d - 1]);
  return length;
}

at::Tensor on_device(const std::vector<int64_t>& cu_seqlens, const at::Tensor& given, at::Device device) {
  return given.defined() ? given : at::tensor(cu_seqlens, at::kInt).to(device);
}

/// True when a query sees no key, or no query sees a key. Fused kernels leave that undefined; training has no such
/// documents.
bool has_unseen_parts(const AttentionLayout& layout) {
  for (std::size_t d = 1; d < layout.cu_seqlens_q.size(); ++d) {
    const int64_t len_q = layout.cu_seqlens_q[d] - layout.cu_seqlens_q[d - 1];
    const int64_t len_k = layout.cu_seqlens_k[d] - layout.cu_seqlens_k[d - 1];
    if (len_q > len_k || (len_q == 0 && len_k > 0)) return true;
  }
  return false;
}

bool is_complete(const AttentionLayout& layout) {
  return layout.max_len_q > 0 && layout.max_len_k > 0 && layout.cu_seqlens_q_device.defined() &&
         layout.cu_seqlens_k_device.defined();
}

/// The layout with the device copies that CUDA backends read.
AttentionLayout completed(AttentionLayout layout, at::Device device) {
  if (layout.max_len_q == 0) layout.max_len_q = longest(layout.cu_seqlens_q);
  if (layout.max_len_k == 0) layout.max_len_k = longest(layout.cu_seqlens_k);
  layout.cu_seqlens_q_device = on_device(layout.cu_seqlens_q, layout.cu_seqlens_q_device, device);
  layout.cu_seqlens_k_device = on_device(layout.cu_seqlens_k, layout.cu_seqlens_k_device, device);
  return layout;
}

AttentionCase case_of(const at::Tensor& q, const AttentionLayout& layout) {
  AttentionCase c;
  c.requested = layout.backend;
  c.dtype = q.scalar_type();
  c.head_size = q.size(2);
  c.num_docs = static_cast<int64_t>(layout.cu_seqlens_q.size()) - 1;
  c.num_heads = q.size(1);
  c.max_len_q = layout.max_len_q > 0 ? layout.max_len_q : longest(layout.cu_seqlens_q);
  c.max_len_k = layout.max_len_k > 0 ? layout.max_len_k : longest(layout.cu_seqlens_k);
  return c;
}

/// The backend that a work recorder sees: on the meta device, that of a Hopper GPU.
AttentionBackend planned_backend(const at::Tensor& q, const AttentionLayout& layout) {
  constexpr int kHopper = 90;
  if (q.is_cpu()) return AttentionBackend::kReference;
  AttentionCase c = case_of(q, layout);
  c.sm = q.is_meta() ? kHopper : cuda_compute_capability();
  c.deterministic = !q.is_meta() && cuda_settings().deterministic;
  return choose_attention(c).backend;
}

/// The backend for this call on CUDA; null: the reference. Throws ConfigError when the requested backend does not support
/// it.
const CudaAttention* cuda_backend(const at::Tensor& q, const AttentionLayout& layout) {
  const CudaLibrary* const cuda = cuda_library();
  if (layout.cu_seqlens_q.back() == 0 || has_unseen_parts(layout)) return nullptr;
  AttentionCase c = case_of(q, layout);
  c.has_cuda_library = cuda != nullptr;
  c.sm = cuda != nullptr ? cuda_compute_capability() : 0;
  c.deterministic = cuda_settings().deterministic;
  const AttentionChoice choice = choose_attention(c);
  if (!choice.refusal.empty()) throw ConfigError("attn_implementation", choice.refusal);
  if (choice.backend == AttentionBackend::kFa2) return &cuda->fa2;
  if (choice.backend == AttentionBackend::kCudnn) return &cuda->cudnn;
  return choice.backend == AttentionBackend::kEfficient ? &cuda->efficient : nullptr;
}

/// The same. Throws inside a capture when the call needs anything that is not on the device.
const CudaAttention* capturable_backend(const at::Tensor& q, const AttentionLayout& layout) {
  const CudaAttention* const backend = cuda_backend(q, layout);
  if (is_capturing() && (backend == nullptr || !is_complete(layout))) {
    throw DeviceError("attention", "the reference implementation reads the lengths of documents on the host");
  }
  return backend;
}

/// Gradients in memory of the backend's own, as some backends return them.
AttentionGradients own_gradients(const AttentionGradients& like, const AttentionLayout& layout) {
  const auto make = [](const at::Tensor& t, int64_t num_tokens) {
    return at::empty({num_tokens, t.size(1), t.size(2)}, t.options());
  };
  const int64_t Nq = layout.cu_seqlens_q.back(), Nk = layout.cu_seqlens_k.back();
  return {make(like.q, Nq), make(like.k, Nk), make(like.v, Nk)};
}

/// The layout read back from its device copies, which a GPU uses: they may have changed since the capture.
AttentionLayout as_on_device(AttentionLayout layout) {
  const auto read = [](const at::Tensor& from, std::vector<int64_t>& to) {
    if (!from.defined()) return;
    const auto* const values = from.const_data_ptr<std::int32_t>();
    to.assign(values, values + from.numel());
  };
  read(layout.cu_seqlens_q_device, layout.cu_seqlens_q);
  read(layout.cu_seqlens_k_device, layout.cu_seqlens_k);
  return layout;
}

}  // namespace

void attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                       at::Tensor& out, at::Tensor& lse) {
  constexpr auto kName = "attention_forward";
  check_inputs(kName, q, k, v, layout, out, lse);
  const WorkScope recorded(kName, WorkClass::kAttention, [&](Work& work) {
    describe_attention_forward(work, planned_backend(q, layout), {q, k, v, out, lse}, layout);
  });
  if (q.is_meta()) return;
  if (q.is_cpu()) {
    return run_or_capture([=]() mutable { attention_forward_cpu(q, k, v, as_on_device(layout), out, lse); });
  }
  const CudaAttention* const backend = capturable_backend(q, layout);
  if (backend == nullptr) return attention_forward_reference(q, k, v, layout, out, lse);
  if (!is_complete(layout)) return backend->forward(q, k, v, completed(layout, q.device()), out, lse);
  backend->forward(q, k, v, layout, out, lse);
}

void attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                        AttentionGradients& gradients) {
  constexpr auto kName = "attention_backward";
  check_inputs(kName, q, k, v, layout, out, lse);
  check_rows(kName, "dout", dout, q.sizes(), q.scalar_type());
  check_rows(kName, "dq", gradients.q, q.sizes(), q.scalar_type());
  check_rows(kName, "dk", gradients.k, k.sizes(), k.scalar_type());
  check_rows(kName, "dv", gradients.v, v.sizes(), v.scalar_type());
  const WorkScope recorded(kName, WorkClass::kAttention, [&](Work& work) {
    describe_attention_backward(work, planned_backend(q, layout), {q, k, v, out, lse}, dout, gradients, layout);
  });
  if (q.is_meta()) {
    if (has_own_gradients(planned_backend(q, layout))) gradients = own_gradients(gradients, layout);
    return;
  }
  if (q.is_cpu()) {
    return run_or_capture(
        [=]() mutable { attention_backward_cpu(dout, q, k, v, out, lse, as_on_device(layout), gradients); });
  }
  const CudaAttention* const backend = capturable_backend(q, layout);
  if (backend == nullptr) return attention_backward_reference(dout, q, k, v, out, lse, layout, gradients);
  if (!is_complete(layout)) {
    return backend->backward(dout, q, k, v, out, lse, completed(layout, q.device()), gradients);
  }
  backend->backward(dout, q, k, v, out, lse, layout, gradients);
}

}  // namespace lora_train::kernels
