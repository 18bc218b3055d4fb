#include "lora_train/kernels/rope/rope.h"

#include <ATen/core/Tensor.h>

#include "dispatch/arguments.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/rms_norm/rms_norm.h"
#include "rope_parts.h"

namespace lora_train::kernels {

RopeTable make_rope_table(const at::Tensor& inv_freq, int64_t num_positions, double attention_factor) {
  check_rows("make_rope_table", "inv_freq", inv_freq, {-1}, at::kFloat);
  const auto angles = at::arange(num_positions, inv_freq.options()).unsqueeze(1) * inv_freq;
  return {angles.cos().mul_(attention_factor), angles.sin().mul_(attention_factor)};
}

namespace {

/// The dimensions that rotate.
int64_t rotary_size(const RopeTable& table) { return 2 * table.cos.size(1); }

void check_table(const char* kernel, const RopeTable& table, int64_t head_size) {
  check_rows(kernel, "table.cos", table.cos, {-1, -1}, at::kFloat);
  check_rows(kernel, "table.sin", table.sin, table.cos.sizes(), at::kFloat);
  if (head_size % 2 == 0 && rotary_size(table) <= head_size) return;
  throw ShapeError(std::string(kernel) + ": table.cos", "rotates {} dimensions of heads of size {}", rotary_size(table),
                   head_size);
}

}  // namespace

void rope_in_place(at::Tensor& x, const at::Tensor& positions, const RopeTable& table, bool inverse) {
  constexpr auto kName = "rope_in_place";
  check_floating(kName, "x", x, {-1, -1, -1});
  check_vector(kName, "positions", positions, x.size(0), at::kInt);
  check_table(kName, table, x.size(2));
  const WorkScope recorded(kName, WorkClass::kRope,
                           [&](Work& work) { work.updates("x", x).reads("positions", positions); });
  const auto reference = [&] { rope_in_place_reference(x, positions, table, inverse); };
  run_kernel(KernelName::kRope, x, reference, [&]<class T>(ElementType<T>, Implementation how) {
    const RotationTable turns{read<std::int32_t>(positions), read_rows<float>(table.cos), read_rows<float>(table.sin),
                              nullptr};
    run_native<T>(how, rope_cpu<T>, &NativeKernelsOf<T>::rope, write_rows<T>(x), turns, inverse, x.size(0),
                  HeadCounts{0, x.size(1), x.size(2), rotary_size(table)});
  });
}

void rope_in_place_reference(at::Tensor& x, const at::Tensor& positions, const RopeTable& table, bool inverse) {
  const auto cos = table.cos.index_select(0, positions).unsqueeze(1);
  auto sin = table.sin.index_select(0, positions).unsqueeze(1);
  if (inverse) sin = -sin;
  const auto turned = x.narrow(-1, 0, rotary_size(table));
  const auto halves = to_math(turned).chunk(2, -1);
  const auto first = halves[0] * cos - halves[1] * sin;
  const auto second = halves[1] * cos + halves[0] * sin;
  turned.copy_(at::cat({first, second}, -1));
}

namespace {

RotationTable table_of(const QkRotation& rotation) {
  const RopeTable& table = rotation.table;
  return {read<std::int32_t>(rotation.positions), read_rows<float>(table.cos), read_rows<float>(table.sin),
          table.q_scale.defined() ? read<float>(table.q_scale) : nullptr};
}

HeadCounts heads_of(const QkRotation& rotation) {
  return {rotation.num_heads, rotation.num_kv_heads, rotation.head_size, rotary_size(rotation.table)};
}

void rotate_qk_reference(const at::Tensor& qkv, const QkRotation& rotation, bool inverse) {
  const int64_t H = rotation.num_heads, K = rotation.num_kv_heads, E = rotation.head_size;
  at::Tensor q = qkv.narrow(1, 0, H * E).unflatten(1, {H, E}), k = qkv.narrow(1, H * E, K * E).unflatten(1, {K, E});
  const auto scale_q = [&] {
    if (!rotation.table.q_scale.defined()) return;
    const at::Tensor scale = rotation.table.q_scale.index_select(0, rotation.positions).to(q.scalar_type());
    q.mul_(scale.view({-1, 1, 1}));
  };
  if (inverse) scale_q();
  rope_in_place_reference(q, rotation.positions, rotation.table, inverse);
  rope_in_place_reference(k, rotation.positions, rotation.table, inverse);
  if (!inverse) scale_q();
}

void rotate_qk_on_cpu(const at::Tensor& qkv, const QkRotation& rotation, bool inverse) {
  const HeadCounts heads = heads_of(rotation);
  dispatch_dtype(qkv, [&]<class T>(ElementType<T>) {
    at::Tensor qk = qkv.narrow(1, 0, heads.total() * heads.head_size);
    rope_cpu<T>(write_rows<T>(qk), table_of(rotation), inverse, qkv.size(0), heads);
  });
}

/// qk_norm_rope composed of rms_norm and a rotation: with references, the reference; with CPU kernels, the CPU path.
struct QkNormRopeParts {
  decltype(&rms_norm_forward) norm_forward;
  decltype(&rms_norm_backward) norm_backward;
  decltype(&rotate_qk_reference) rotate;
};

constexpr QkNormRopeParts kReferenceParts = {rms_norm_forward_reference, rms_norm_backward_reference,
                                             rotate_qk_reference};
constexpr QkNormRopeParts kCpuParts = {rms_norm_forward, rms_norm_backward, rotate_qk_on_cpu};

/// True if a gradient is already in its columns of d_qkv.
bool lies_in(const at::Tensor& place, const at::Tensor& gradient) {
  return gradient.is_alias_of(place) && gradient.storage_offset() == place.storage_offset() &&
         gradient.stride(0) == place.stride(0);
}

/// The columns of d_qkv that take the gradients of q, k and v, narrowed to their number of tokens.
AttentionGradients places_of(const AttentionGradients& gradients, const QkRotation& rotation, const at::Tensor& d_qkv) {
  const int64_t H = rotation.num_heads, K = rotation.num_kv_heads, E = rotation.head_size;
  const auto place = [&](int64_t begin, int64_t heads) {
    return d_qkv.narrow(0, 0, gradients.q.size(0)).narrow(1, begin * E, heads * E).unflatten(1, {heads, E});
  };
  return {place(0, H), place(H, K), place(H + K, K)};
}

void copy_unless_there(const at::Tensor& gradient, at::Tensor& place) {
  if (!lies_in(place, gradient)) place.copy_(gradient);
}

void qk_norm_rope_forward_by(const QkNormRopeParts& parts, at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm) {
  if (norm.q_weight.defined()) {
    const int64_t E = norm.q_weight.size(0);
    norm.raw.copy_(qkv.narrow(1, 0, norm.raw.size(1)));
    for (int64_t head = 0; head < rotation.num_heads + rotation.num_kv_heads; ++head) {
      at::Tensor y = qkv.narrow(1, head * E, E), rstd = norm.rstd.select(0, head);
      const at::Tensor& weight = head < rotation.num_heads ? norm.q_weight : norm.k_weight;
      parts.norm_forward(norm.raw.narrow(1, head * E, E), weight, norm.eps, y, rstd, norm.weight_offset, {});
    }
  }
  parts.rotate(qkv, rotation, /*inverse=*/false);
}

/// Copies gradients that are elsewhere into d_qkv, then works in place.
void qk_norm_rope_backward_by(const QkNormRopeParts& parts, const AttentionGradients& gradients,
                              const QkRotation& rotation, QkNorm& norm, at::Tensor& d_qkv) {
  AttentionGradients places = places_of(gradients, rotation, d_qkv);
  copy_unless_there(gradients.q, places.q);
  copy_unless_there(gradients.k, places.k);
  copy_unless_there(gradients.v, places.v);
  const int64_t M = gradients.q.size(0);
  if (M < d_qkv.size(0)) d_qkv.narrow(0, M, d_qkv.size(0) - M).zero_();
  parts.rotate(d_qkv, rotation, /*inverse=*/true);
  if (!norm.q_weight.defined()) return;
  const int64_t E = norm.q_weight.size(0);
  for (int64_t head = 0; head < rotation.num_heads + rotation.num_kv_heads; ++head) {
    at::Tensor dx = d_qkv.narrow(1, head * E, E);
    const bool is_q = head < rotation.num_heads;
    parts.norm_backward(dx, norm.raw.narrow(1, head * E, E), is_q ? norm.q_weight : norm.k_weight,
                        norm.rstd.select(0, head), dx, false, is_q ? &norm.grad_q_weight : &norm.grad_k_weight,
                        norm.weight_offset);
  }
}

void check_rotation(const char* kernel, const at::Tensor& qkv, const QkRotation& rotation) {
  check_table(kernel, rotation.table, rotation.head_size);
  const auto& [cos, sin, q_scale] = rotation.table;
  if (q_scale.defined()) {
    check_vector(kernel, "table.q_scale", q_scale, cos.size(0), at::kFloat);
    if (rotary_size(rotation.table) < rotation.head_size)
      throw ShapeError(std::string(kernel) + ": table.q_scale", "is not supported with heads that rotate in part");
  }
  check_floating(kernel, "qkv", qkv, {-1, (rotation.num_heads + 2 * rotation.num_kv_heads) * rotation.head_size});
  check_vector(kernel, "positions", rotation.positions, qkv.size(0), at::kInt);
}

void check_norm(const char* kernel, const at::Tensor& qkv, const QkRotation& rotation, const QkNorm& norm) {
  if (!norm.q_weight.defined()) return;
  if (rotation.table.q_scale.defined())
    throw ShapeError(std::string(kernel) + ": table.q_scale", "is not supported with a norm: no model has both");
  const int64_t E = rotation.head_size, heads = rotation.num_heads + rotation.num_kv_heads;
  for (const at::Tensor& weight : {norm.q_weight, norm.k_weight}) {
    check_vector(kernel, "norm weight", weight, E, qkv.scalar_type());
  }
  check_rows(kernel, "raw", norm.raw, {qkv.size(0), heads * E}, qkv.scalar_type());
  check_rows(kernel, "rstd", norm.rstd, {heads, qkv.size(0)}, math_dtype(qkv));
  if (norm.grad_q_weight.defined()) check_vector(kernel, "grad_q_weight", norm.grad_q_weight, E, math_dtype(qkv));
  if (norm.grad_k_weight.defined()) check_vector(kernel, "grad_k_weight", norm.grad_k_weight, E, math_dtype(qkv));
}

/// The q and k columns of the q|k|v buffer.
at::Tensor qk_of(const at::Tensor& qkv, const QkRotation& rotation) {
  return qkv.narrow(1, 0, (rotation.num_heads + rotation.num_kv_heads) * rotation.head_size);
}

bool wants_gradient(const QkNorm& norm) { return norm.grad_q_weight.defined() || norm.grad_k_weight.defined(); }

template <class T>
QkNormWeights<T> weights_of(const QkNorm& norm) {
  return {read<T>(norm.q_weight), read<T>(norm.k_weight), static_cast<float>(norm.weight_offset)};
}

template <class T>
void backward_on_cuda(const AttentionGradients& given, const QkRotation& rotation, QkNorm& norm, at::Tensor& d_qkv) {
  const NativeKernelsOf<T>& own = native_kernels_of<T>();
  const HeadCounts heads = heads_of(rotation);
  const int64_t N = d_qkv.size(0);
  const bool has_v = lies_in(places_of(given, rotation, d_qkv).v, given.v);
  const QkvGradients<T> d = {read_rows<T>(given.q), read_rows<T>(given.k),
                             has_v ? Rows<const T>{nullptr, 0} : read_rows<T>(given.v), given.q.size(0)};
  if (!norm.q_weight.defined()) {
    return own.rope_backward(d, table_of(rotation), write_rows<T>(d_qkv), N, heads, native_stream());
  }
  if (wants_gradient(norm)) {  // first: the next kernel may overwrite d
    own.qk_norm_weight_gradient(d, read_rows<T>(norm.raw), read_rows<float>(norm.rstd), table_of(rotation),
                                write<float>(norm.grad_q_weight), write<float>(norm.grad_k_weight),
                                native_workspace(qk_norm_workspace(heads.head_size)), heads, native_stream());
  }
  own.qk_norm_rope_backward(d, read_rows<T>(norm.raw), read_rows<float>(norm.rstd), table_of(rotation),
                            weights_of<T>(norm), write_rows<T>(d_qkv), N, heads, native_stream());
}

void check_gradients(const char* kernel, const AttentionGradients& gradients, const QkRotation& rotation,
                     const at::Tensor& d_qkv) {
  const int64_t M = gradients.q.dim() > 0 ? gradients.q.size(0) : 0, E = rotation.head_size;
  const auto check = [&](const char* name, const at::Tensor& gradient, int64_t heads) {
    check_rows(kernel, name, gradient, {M, heads, E}, d_qkv.scalar_type());
  };
  check("dq", gradients.q, rotation.num_heads);
  check("dk", gradients.k, rotation.num_kv_heads);
  check("dv", gradients.v, rotation.num_kv_heads);
  if (M > d_qkv.size(0)) {
    throw ShapeError(std::string(kernel) + ": dq", "{} tokens for {} rows of d_qkv", M, d_qkv.size(0));
  }
}

/// The memory traffic of the backward.
void describe_backward(Work& work, const AttentionGradients& given, const QkRotation& rotation, const QkNorm& norm,
                       const at::Tensor& d_qkv) {
  const AttentionGradients places = places_of(given, rotation, d_qkv);
  work.reads("positions", rotation.positions).reads("dq", given.q).reads("dk", given.k);
  const bool has_v = lies_in(places.v, given.v);
  if (!has_v) work.reads("dv", given.v);
  work.writes("d_qkv", has_v ? qk_of(d_qkv, rotation) : d_qkv);
  if (!norm.q_weight.defined()) return;
  work.reads("raw", norm.raw).reads("rstd", norm.rstd);
  if (!wants_gradient(norm)) return;
  work.reads("positions", rotation.positions).reads("dq of weights", given.q).reads("dk of weights", given.k);
  work.reads("raw of weights", norm.raw).reads("rstd", norm.rstd).launches(3);
}

}  // namespace

void qk_norm_rope_forward(at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm) {
  constexpr auto kName = "qk_norm_rope_forward";
  check_rotation(kName, qkv, rotation);
  check_norm(kName, qkv, rotation, norm);
  const WorkScope recorded(kName, WorkClass::kRope, [&](Work& work) {
    work.updates("qk", qk_of(qkv, rotation)).reads("positions", rotation.positions);
    if (norm.q_weight.defined()) work.writes("raw", norm.raw).writes("rstd", norm.rstd);
  });
  if (qkv.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kRope, qkv);
  if (how == Implementation::kReference) return qk_norm_rope_forward_reference(qkv, rotation, norm);
  if (how == Implementation::kCpu) return qk_norm_rope_forward_by(kCpuParts, qkv, rotation, norm);
  dispatch_dtype(qkv, [&]<class T>(ElementType<T>) {
    const NativeKernelsOf<T>& own = native_kernels_of<T>();
    const HeadCounts heads = heads_of(rotation);
    if (!norm.q_weight.defined()) {
      return own.rope(write_rows<T>(qkv), table_of(rotation), /*inverse=*/false, qkv.size(0), heads, native_stream());
    }
    own.qk_norm_rope_forward(write_rows<T>(qkv), table_of(rotation), weights_of<T>(norm), static_cast<float>(norm.eps),
                             write_rows<T>(norm.raw), write_rows<float>(norm.rstd), qkv.size(0), heads,
                             native_stream());
  });
}

void qk_norm_rope_backward(const AttentionGradients& gradients, const QkRotation& rotation, QkNorm& norm,
                           at::Tensor& d_qkv) {
  constexpr auto kName = "qk_norm_rope_backward";
  check_rotation(kName, d_qkv, rotation);
  check_norm(kName, d_qkv, rotation, norm);
  check_gradients(kName, gradients, rotation, d_qkv);
  const WorkScope recorded(kName, WorkClass::kRope,
                           [&](Work& work) { describe_backward(work, gradients, rotation, norm, d_qkv); });
  if (d_qkv.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kRope, d_qkv);
  if (how == Implementation::kReference) return qk_norm_rope_backward_reference(gradients, rotation, norm, d_qkv);
  if (how == Implementation::kCpu) return qk_norm_rope_backward_by(kCpuParts, gradients, rotation, norm, d_qkv);
  dispatch_dtype(d_qkv, [&]<class T>(ElementType<T>) { backward_on_cuda<T>(gradients, rotation, norm, d_qkv); });
}

void qk_norm_rope_forward_reference(at::Tensor& qkv, const QkRotation& rotation, QkNorm& norm) {
  qk_norm_rope_forward_by(kReferenceParts, qkv, rotation, norm);
}

void qk_norm_rope_backward_reference(const AttentionGradients& gradients, const QkRotation& rotation, QkNorm& norm,
                                     at::Tensor& d_qkv) {
  qk_norm_rope_backward_by(kReferenceParts, gradients, rotation, norm, d_qkv);
}

}  // namespace lora_train::kernels
