#include "lora_train/kernels/attention/attention_cache.h"

#include <algorithm>

#include "attention_parts.h"
#include "dispatch/arguments.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/launch/graph.h"

namespace lora_train::kernels {
namespace {

constexpr auto kName = "attention_cached";

int64_t num_queries(const CachedLayout& layout, std::size_t d) {
  return layout.cu_seqlens_q[d + 1] - layout.cu_seqlens_q[d];
}

void check_layout(const at::Tensor& q, const at::Tensor& k, const CachedLayout& layout) {
  const std::size_t num_docs = layout.num_docs();
  bool ok = layout.cu_seqlens_q.size() == num_docs + 1 && layout.num_keys.size() == num_docs && layout.window >= 0 &&
            layout.cu_seqlens_q.front() == 0 && layout.cu_seqlens_q.back() <= q.size(0);
  for (std::size_t d = 0; ok && layout.max_keys == 0 && d < num_docs; ++d) {
    const int64_t begin = layout.key_begin[d], end = begin + layout.num_keys[d];
    ok = begin >= 0 && end <= k.size(0) && num_queries(layout, d) > 0 && num_queries(layout, d) <= layout.num_keys[d];
  }
  if (!ok) {
    throw ShapeError(kName,
                     "documents must have queries, at least as many keys, and stay within {} queries and {} keys",
                     q.size(0), k.size(0));
  }
}

void attention_cached_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const CachedLayout& layout,
                          at::Tensor& out) {
  std::vector<DecodeDocument> documents;
  for (std::size_t d = 0; d < layout.num_docs(); ++d) {
    if (num_queries(layout, d) > 1 || q.scalar_type() == at::kDouble) {
      const int64_t begin = layout.cu_seqlens_q[d], count = num_queries(layout, d), keys = layout.num_keys[d];
      at::Tensor rows = out.narrow(0, begin, count);
      at::Tensor lse = at::empty({count, q.size(1)}, q.options().dtype(math_dtype(q)));
      attention_forward_cpu(q.narrow(0, begin, count), k.narrow(0, layout.key_begin[d], keys),
                            v.narrow(0, layout.key_begin[d], keys),
                            {{0, count}, {0, keys}, layout.window, layout.scale, layout.backend}, rows, lse);
      continue;
    }
    const int64_t keys = layout.num_keys[d], seen = layout.window > 0 ? std::min(layout.window, keys) : keys;
    documents.push_back({layout.cu_seqlens_q[d], layout.key_begin[d] + keys - seen, seen});
  }
  if (documents.empty()) return;
  dispatch_dtype(q, [&]<class T>(ElementType<T>) {
    attention_decode_cpu(read_rows<T>(q), read_rows<T>(k), read_rows<T>(v), documents,
                         {q.size(1), k.size(1), q.size(2)}, static_cast<float>(layout.scale), write_rows<T>(out));
  });
}

/// The layout with the lengths of its device copies, for a CPU.
CachedLayout as_on_device(CachedLayout layout) {
  const auto read = [&](const at::Tensor& from, std::vector<int64_t>& to) {
    std::copy_n(from.const_data_ptr<std::int32_t>(), to.size(), to.begin());
  };
  read(layout.key_begin_device, layout.key_begin);
  read(layout.num_keys_device, layout.num_keys);
  return layout;
}

/// For FlashAttention 2, which reads the keys in place.
AttentionLayout layout_in_cache(const CachedLayout& layout, at::Device device) {
  AttentionLayout made{layout.cu_seqlens_q, layout.key_begin, layout.window, layout.scale, layout.backend};
  made.cu_seqlens_k.push_back(0);
  made.cu_seqlens_q_device = on_device(layout.cu_seqlens_q, layout.cu_seqlens_q_device, device);
  made.cu_seqlens_k_device = on_device(made.cu_seqlens_k, layout.key_begin_device, device);
  made.seqused_k_device = on_device(layout.num_keys, layout.num_keys_device, device);
  made.max_len_q = longest(layout.cu_seqlens_q);
  made.max_len_k =
      layout.max_keys > 0 ? layout.max_keys : *std::max_element(layout.num_keys.begin(), layout.num_keys.end());
  return made;
}

bool fa2_serves(at::ScalarType dtype, int64_t head_size, AttentionBackend backend) {
  if (cuda_library() == nullptr) return false;
  if (backend != AttentionBackend::kAuto && backend != AttentionBackend::kFa2) return false;
  AttentionCase c;
  c.requested = AttentionBackend::kFa2;
  c.dtype = dtype;
  c.head_size = head_size;
  c.sm = cuda_compute_capability();
  return choose_attention(c).refusal.empty();
}

/// Copies the keys in use side by side, then computes as in training.
void attention_by_copy(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const CachedLayout& layout,
                       at::Tensor& out) {
  std::vector<at::Tensor> keys, values;
  AttentionLayout packed{layout.cu_seqlens_q, {0}, layout.window, layout.scale, layout.backend};
  for (std::size_t d = 0; d < layout.num_docs(); ++d) {
    keys.push_back(k.narrow(0, layout.key_begin[d], layout.num_keys[d]));
    values.push_back(v.narrow(0, layout.key_begin[d], layout.num_keys[d]));
    packed.cu_seqlens_k.push_back(packed.cu_seqlens_k.back() + layout.num_keys[d]);
  }
  at::Tensor lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(math_dtype(q)));
  attention_forward(q, at::cat(keys), at::cat(values), packed, out, lse);
}

}  // namespace

void attention_cached(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const CachedLayout& layout,
                      at::Tensor& out) {
  check_attention(kName, q, k, v, out);
  check_layout(q, k, layout);
  if (layout.num_docs() == 0) return;
  if (q.is_cpu() && layout.max_keys == 0) return attention_cached_cpu(q, k, v, layout, out);
  if (q.is_cpu()) {
    return run_or_capture([=]() mutable { attention_cached_cpu(q, k, v, as_on_device(layout), out); });
  }
  const std::string refusal = refuses_max_keys(q.device(), q.scalar_type(), q.size(2), layout.backend);
  if (layout.max_keys > 0 && !refusal.empty()) throw DeviceError(kName, refusal);
  if (!refusal.empty()) return attention_by_copy(q, k, v, layout, out);
  at::Tensor no_lse;
  cuda_library()->fa2.forward(q, k, v, layout_in_cache(layout, q.device()), out, no_lse);
}

std::string refuses_max_keys(at::Device device, at::ScalarType dtype, int64_t head_size, AttentionBackend backend) {
  if (device.is_cpu() || fa2_serves(dtype, head_size, backend)) return {};
  return "attention over the cache reads sequence lengths on the host, except FlashAttention 2 (bf16)";
}

}  // namespace lora_train::kernels
