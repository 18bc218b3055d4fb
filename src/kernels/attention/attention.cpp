// L queries and S keys of one document, or of a block of its queries; H heads, K kv heads, E head size.
#include "lora_train/kernels/attention/attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <algorithm>
#include <limits>

#include "attention_parts.h"
#include "dispatch/arguments.h"
#include "gemm/gemm_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/launch/graph.h"

namespace lora_train::kernels {
namespace {

constexpr int64_t kMaxBlock = 1024, kMinBlock = 128;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<AttentionDocument> documents_of(const AttentionLayout& layout) {
  std::vector<AttentionDocument> documents;
  for (std::size_t d = 0; d + 1 < layout.cu_seqlens_q.size(); ++d) {
    const AttentionDocument doc{layout.cu_seqlens_q[d], layout.cu_seqlens_q[d + 1] - layout.cu_seqlens_q[d],
                                layout.cu_seqlens_k[d], layout.cu_seqlens_k[d + 1] - layout.cu_seqlens_k[d]};
    if (doc.len_q > 0 || doc.len_k > 0) documents.push_back(doc);
  }
  return documents;
}

/// Queries [query, query + num_queries) of the whole batch and all keys they can see. Query i of the block sees
/// keys up to i + diagonal of the block's keys, and `window` of them (0 = all).
struct Block {
  int64_t query = 0, num_queries = 0, key = 0, num_keys = 0, diagonal = 0, window = 0;

  /// ATen's causal mask aligns top-left, so it fits exactly this case.
  bool is_plain_causal() const { return diagonal == 0 && num_queries == num_keys && window == 0; }
};

struct Plan {
  std::vector<Block> blocks;
  std::vector<std::pair<int64_t, int64_t>> blind_queries;  ///< ranges of queries that see no key
};

void plan_document(const AttentionDocument& document, int64_t window, Plan& plan) {
  auto [query, len_q, key, len_k] = document;
  const int64_t blind = std::min(len_q, std::max<int64_t>(0, len_q - len_k));
  if (blind > 0) plan.blind_queries.emplace_back(query, query + blind);
  query += blind;
  len_q -= blind;
  if (len_q == 0) return;
  const bool is_windowed = window > 0 && window < len_k;
  const int64_t offset = len_k - len_q;
  if (!is_windowed && offset == 0) {
    plan.blocks.push_back({query, len_q, key, len_k, 0, 0});
    return;
  }
  // A block also computes the masked corners of its keys: with a narrow window, large blocks would be mostly waste.
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
  for (const AttentionDocument& document : documents_of(layout)) plan_document(document, layout.window, plan);
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
      if (b.window > 0) visible = visible.triu(b.diagonal - b.window + 1);
      mask_ = at::zeros({b.num_queries, b.num_keys}, like.options());
      mask_.masked_fill_(visible.logical_not(), -kInfinity);
    }
    return mask_;
  }

 private:
  Block last_;
  at::Tensor mask_;
};

// Tokens [begin, begin + size) of t [N, H, E] as ATen's [1, H, L, E]; bf16 in fp32 if the CPU has no bf16 products.
at::Tensor heads_first(const at::Tensor& t, int64_t begin, int64_t size) {
  const at::Tensor tokens = t.narrow(0, begin, size);
  const bool is_widened = t.scalar_type() == at::kBFloat16 && !has_bf16_gemm();
  return (is_widened ? tokens.to(at::kFloat) : tokens).transpose(0, 1).unsqueeze(0);
}

// [1, H, L, E] back to [L, H, E].
at::Tensor tokens_first(const at::Tensor& t) { return t.squeeze(0).transpose(0, 1); }

// Every kv head repeated for the heads that share it: [1, K, S, E] to [1, H, S, E].
at::Tensor expand_heads(const at::Tensor& t, int64_t num_heads) {
  return t.size(1) == num_heads ? t : t.repeat_interleave(num_heads / t.size(1), 1);
}

// [S, H, E] to [S, K, E], the heads of a group summed in fp32.
at::Tensor sum_groups(const at::Tensor& t, int64_t num_kv_heads) {
  if (t.size(1) == num_kv_heads) return to_math(t);
  return t.view({t.size(0), num_kv_heads, t.size(1) / num_kv_heads, t.size(2)})
      .sum(2, /*keepdim=*/false, math_dtype(t));
}

void backward_by_aten(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
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
  for (const auto& b : plan.blocks) {
    const bool is_causal = b.is_plain_causal();
    const at::Tensor queries = heads_first(q, b.query, b.num_queries);
    const auto mask = is_causal ? std::nullopt : std::optional<at::Tensor>(masks.get(b, queries));
    // ATen's backward with shared kv heads rounds every head's share to bf16 before it sums them.
    const int64_t num_heads = queries.scalar_type() == at::kBFloat16 ? q.size(1) : k.size(1);
    const auto [gq, gk, gv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        heads_first(dout, b.query, b.num_queries), queries, expand_heads(heads_first(k, b.key, b.num_keys), num_heads),
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
  for (const auto& [begin, end] : plan.blind_queries) gradients.q.narrow(0, begin, end - begin).zero_();
  if (is_blocked) {
    gradients.k.copy_(dk_sum);
    gradients.v.copy_(dv_sum);
  }
}

void forward_by_aten(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                     at::Tensor& out, at::Tensor& lse) {
  const Plan plan = make_plan(layout);
  MaskCache masks;
  for (const auto& b : plan.blocks) {
    const bool is_causal = b.is_plain_causal();
    const at::Tensor queries = heads_first(q, b.query, b.num_queries);
    const auto mask = is_causal ? std::nullopt : std::optional<at::Tensor>(masks.get(b, queries));
    const auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(
        queries, heads_first(k, b.key, b.num_keys), heads_first(v, b.key, b.num_keys),
        /*dropout_p=*/0.0, is_causal, mask, layout.scale);
    out.narrow(0, b.query, b.num_queries).copy_(tokens_first(o));
    lse.narrow(0, b.query, b.num_queries).copy_(l.squeeze(0).transpose(0, 1));
  }
  for (const auto& [begin, end] : plan.blind_queries) {
    out.narrow(0, begin, end - begin).zero_();
    lse.narrow(0, begin, end - begin).fill_(-kInfinity);
  }
}

bool uses_blocks(const at::Tensor& q) { return q.scalar_type() != at::kDouble && has_avx512(); }

template <class T>
AttentionOperands<T> operands_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionLayout& layout, const std::vector<AttentionDocument>& documents) {
  return {read_rows<T>(q),
          read_rows<T>(k),
          read_rows<T>(v),
          documents,
          {q.size(1), k.size(1), q.size(2)},
          layout.window,
          static_cast<float>(layout.scale)};
}

template <class T>
void forward_in_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                       at::Tensor& out, at::Tensor& lse) {
  const std::vector<AttentionDocument> documents = documents_of(layout);
  attention_forward_blocks(operands_of<T>(q, k, v, layout, documents), write_rows<T>(out),
                           {write<float>(lse), lse.stride(0), lse.stride(1)});
}

template <class T>
void backward_in_blocks(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                        AttentionGradients& gradients) {
  const std::vector<AttentionDocument> documents = documents_of(layout);
  attention_backward_blocks(operands_of<T>(q, k, v, layout, documents),
                            {read_rows<T>(dout),
                             read_rows<T>(out),
                             {read<float>(lse), lse.stride(0), lse.stride(1)},
                             write_rows<T>(gradients.q),
                             write_rows<T>(gradients.k),
                             write_rows<T>(gradients.v)});
}

void attention_backward_cpu(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& out, const at::Tensor& lse, const AttentionLayout& layout,
                            AttentionGradients& gradients) {
  const auto run = !uses_blocks(q)                    ? backward_by_aten
                   : q.scalar_type() == at::kBFloat16 ? backward_in_blocks<Bf16>
                                                      : backward_in_blocks<float>;
  run(dout, q, k, v, out, lse, layout, gradients);
}

struct AttentionTensors {
  const at::Tensor &q, &k, &v, &out, &lse;
};

/// The number of keys that the queries of a head see, summed.
std::int64_t num_visible(const AttentionLayout& layout) {
  std::int64_t visible = 0;
  for (const auto& [query, len_q, key, len_k] : documents_of(layout)) {
    const std::int64_t most = layout.window > 0 ? std::min(layout.window, len_k) : len_k;
    // Query i sees min(most, i + 1 + len_k - len_q) keys: a triangle up to `most`, then `most` each.
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

/// FLOPs count the scores that the mask allows: 2 products forward, 5 backward. Bytes count q, k, v, out, lse and their
/// gradients once, and the copies that a CUDA backend makes around its kernels (cuda/attention_*.cpp), but not partial
/// sums inside them.
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

void check_inputs(const char* kernel, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const AttentionLayout& layout, const at::Tensor& out, const at::Tensor& lse) {
  check_attention(kernel, q, k, v, out);
  check_shape(kernel, "lse", lse, {q.size(0), q.size(1)});
  check_dtype(kernel, "lse", lse, math_dtype(q));
  check_lengths(kernel, "cu_seqlens_q", layout.cu_seqlens_q, q.size(0));
  check_lengths(kernel, "cu_seqlens_k", layout.cu_seqlens_k, k.size(0));
  if (layout.cu_seqlens_q.size() != layout.cu_seqlens_k.size() || layout.window < 0) {
    throw ShapeError(kernel, "cu_seqlens_q and cu_seqlens_k must have the same length, and window must be 0 or more");
  }
}

/// True when a query sees no key, or no query sees a key. Fused kernels leave that undefined; training has no such
/// documents.
bool has_unseen_parts(const AttentionLayout& layout) {
  return std::ranges::any_of(documents_of(layout), [](const AttentionDocument& d) {
    return d.len_q > d.len_k || (d.len_q == 0 && d.len_k > 0);
  });
}

bool is_complete(const AttentionLayout& layout) {
  return layout.max_len_q > 0 && layout.max_len_k > 0 && layout.cu_seqlens_q_device.defined() &&
         layout.cu_seqlens_k_device.defined();
}

/// The layout, with the device copies that CUDA backends read.
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

/// The backend shown to a work recorder: on the meta device, a Hopper GPU's.
AttentionBackend planned_backend(const at::Tensor& q, const AttentionLayout& layout) {
  constexpr int kHopper = 90;
  if (q.is_cpu()) return AttentionBackend::kReference;
  AttentionCase c = case_of(q, layout);
  c.sm = q.is_meta() ? kHopper : cuda_compute_capability();
  c.deterministic = !q.is_meta() && cuda_settings().deterministic;
  return choose_attention(c).backend;
}

/// The backend for this call on CUDA; null: the reference. Throws ConfigError when the requested backend does not
/// support it.
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
    throw DeviceError("attention", "the reference implementation reads document lengths on the host");
  }
  return backend;
}

/// Gradients in the backend's own memory, as some backends return them.
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

// [N, H, E] to [num_heads, L, E] in fp32 (fp64), heads repeated if several share one.
at::Tensor heads_of(const at::Tensor& t, int64_t begin, int64_t size, int64_t num_heads) {
  return to_math(t.narrow(0, begin, size)).transpose(0, 1).repeat_interleave(num_heads / t.size(1), 0);
}

// Scaled scores [H, L, S], -inf where masked.
at::Tensor masked_scores(const at::Tensor& q, const at::Tensor& k, const AttentionLayout& layout) {
  const int64_t len_q = q.size(1), len_k = k.size(1);
  const auto options = q.options().dtype(at::kLong);
  const auto last_visible = (at::arange(len_q, options) + (len_k - len_q)).unsqueeze(1);
  const auto key = at::arange(len_k, options).unsqueeze(0);
  auto hidden = key > last_visible;
  if (layout.window > 0) hidden = hidden | (key <= last_visible - layout.window);
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

void check_attention(const char* kernel, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& out) {
  check_floating(kernel, "q", q, {-1, -1, -1});
  check_rows(kernel, "k", k, {-1, -1, q.size(2)}, q.scalar_type());
  check_rows(kernel, "v", v, k.sizes(), q.scalar_type());
  check_rows(kernel, "out", out, q.sizes(), q.scalar_type());
  if (k.size(1) == 0 || q.size(1) % k.size(1) != 0) {
    throw ShapeError(std::string(kernel) + ": k", "{} heads cannot share {} kv heads evenly", q.size(1), k.size(1));
  }
}

int64_t longest(const std::vector<int64_t>& cu_seqlens) {
  int64_t length = 0;
  for (std::size_t d = 1; d < cu_seqlens.size(); ++d) length = std::max(length, cu_seqlens[d] - cu_seqlens[d - 1]);
  return length;
}

at::Tensor on_device(const std::vector<int64_t>& numbers, const at::Tensor& given, const c10::Device& device) {
  return given.defined() ? given : at::tensor(numbers, at::kInt).to(device);
}

std::int64_t attention_backward_bytes(std::int64_t element_bytes) {
  if (!has_avx512()) return 0;
  constexpr std::int64_t kOperands = 3, kSums = 4 * sizeof(float);  // k, its transpose and v; of dk, dv and two parts
  return kOperands * element_bytes + kSums;
}

void attention_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionLayout& layout,
                           at::Tensor& out, at::Tensor& lse) {
  const auto run = !uses_blocks(q)                    ? forward_by_aten
                   : q.scalar_type() == at::kBFloat16 ? forward_in_blocks<Bf16>
                                                      : forward_in_blocks<float>;
  run(q, k, v, layout, out, lse);
}

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
  check_like(kName, q, {{"dout", dout}, {"dq", gradients.q}});
  check_like(kName, k, {{"dk", gradients.k}, {"dv", gradients.v}});
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
  if (!is_complete(layout)) return backend->backward(dout, q, k, v, out, lse, completed(layout, q.device()), gradients);
  backend->backward(dout, q, k, v, out, lse, layout, gradients);
}

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
