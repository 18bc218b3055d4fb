// Contracts in rope.h; T is float or Bf16. On a GPU in stream order: pointers are device memory; N tokens, H heads of
// q, K of k, E head size, R dimensions that rotate (both even). No torch.
#pragma once

#include <cstdint>

#include "launch/elements.h"
#include "rms_norm/rms_norm_parts.h"

namespace lora_train::kernels {

/// The rotations of all positions. Token n uses row positions[n] of cos and sin, R / 2 elements each.
struct RotationTable {
  const std::int32_t* positions;
  Rows<const float> cos, sin;
  const float* q_scale;  ///< by position, or null; null if R is below E
  /// The factor of a head of token n.
  LORA_TRAIN_INLINE float scale_of(std::int64_t n, bool is_q) const {
    return is_q && q_scale != nullptr ? q_scale[positions[n]] : 1.0F;
  }
};

/// The heads of a token are adjacent: H of q, then K of k.
struct HeadCounts {
  std::int64_t num_q, num_k, head_size, rotary;  ///< E, R
  LORA_TRAIN_INLINE std::int64_t total() const { return num_q + num_k; }
  LORA_TRAIN_INLINE std::int64_t width() const { return (total() + num_k) * head_size; }  ///< of q|k|v
};

LORA_TRAIN_CPU_AND_CUDA(rope, Rows<T> x, RotationTable table, bool inverse, std::int64_t num_tokens, HeadCounts heads);
/// Gradients of the rotated q and k, and of v, for num_tokens tokens, anywhere in memory. v without data is already in
/// place.
template <class T>
struct QkvGradients {
  Rows<const T> q, k, v;
  std::int64_t num_tokens;
  /// Head `head` of token n: first the q heads, then the k heads.
  LORA_TRAIN_INLINE const T* head(std::int64_t n, std::int64_t head, const HeadCounts& heads) const {
    return head < heads.num_q ? q[n] + head * heads.head_size : k[n] + (head - heads.num_q) * heads.head_size;
  }
};

/// dx [num_tokens, (H + 2K) E] = d with q and k rotated back and v copied; 0 for tokens past d.num_tokens. d.q and d.k
/// may be their columns of dx; otherwise, d and dx must not overlap.
template <class T>
void rope_backward_cuda(QkvGradients<T> d, RotationTable table, Rows<T> dx, std::int64_t num_tokens, HeadCounts heads,
                        Stream stream);

template <class T>
struct QkNormWeights {
  const T *q, *k;    ///< [E]
  float offset = 0;  ///< NormWeight::offset of both
  LORA_TRAIN_INLINE NormWeight<T> of_head(std::int64_t head, const HeadCounts& heads) const {
    return {head < heads.num_q ? q : k, offset};
  }
};

/// x = rotated(norm(x)). Writes the old x to raw, and rstd as [H + K] rows of N.
template <class T>
void qk_norm_rope_forward_cuda(Rows<T> x, RotationTable table, QkNormWeights<T> weights, float eps, Rows<T> raw,
                               Rows<float> rstd, std::int64_t num_tokens, HeadCounts heads, Stream stream);

/// Like rope_backward_cuda, then q and k through the backward of the norm.
template <class T>
void qk_norm_rope_backward_cuda(QkvGradients<T> d, Rows<const T> raw, Rows<const float> rstd, RotationTable table,
                                QkNormWeights<T> weights, Rows<T> dx, std::int64_t num_tokens, HeadCounts heads,
                                Stream stream);

/// Workspace of qk_norm_weight_gradient_cuda, in floats.
constexpr std::int64_t kQkNormChunks = 64;
constexpr std::int64_t qk_norm_workspace(std::int64_t head_size) { return kQkNormChunks * 2 * head_size; }

/// dq[e], dk[e] (either may be null) += sum over tokens and heads of (d rotated back) * raw * rstd.
template <class T>
void qk_norm_weight_gradient_cuda(QkvGradients<T> d, Rows<const T> raw, Rows<const float> rstd, RotationTable table,
                                  float* dq, float* dk, float* workspace, HeadCounts heads, Stream stream);

}  // namespace lora_train::kernels
