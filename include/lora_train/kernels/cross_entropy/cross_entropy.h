// Cross entropy of a chunk of logits, with the gradient in place. M rows, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lora_train::kernels {

/// Per row: loss = logsumexp(logits) - logits[target], computed in fp32 (fp64 for fp64).
/// logits [M, V] contiguous, fp32, bf16 or fp64. targets [M] int32, in [0, V), or kNoTarget: loss and gradient of that
/// row are 0, and it is not correct.
/// losses [M] fp32 (fp64): -log p(target). correct [M] bool or undefined: true if the target is the argmax (the first
/// of equal logits). confidence [M] fp32 or undefined: the largest probability.
/// denominator [] fp64 on the device, or undefined. If defined, logits are replaced by the gradient of
/// sum(weights * losses) / denominator: weight * (softmax - onehot(target)) / denominator.
/// weights [M] fp32, any finite numbers, or undefined: 1, with the same bits as a tensor of ones. Losses do not depend
/// on them.
constexpr std::int32_t kNoTarget = -1;
struct CrossEntropyOutput {
  at::Tensor losses, correct, confidence;
};
void cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                            const at::Tensor& denominator, CrossEntropyOutput& output);

decltype(cross_entropy_in_place) cross_entropy_in_place_reference;

/// A teacher's prediction of the next token: K tokens and their log-probabilities.
struct SoftTargets {
  at::Tensor ids;        ///< [M, K] int32, distinct in a row; negative: none
  at::Tensor log_probs;  ///< [M, K] fp32
};
struct SoftTargetOptions {
  double temperature = 1;  ///< T, above 0
  double share = 1;        ///< a, the share of the divergence in the loss, 0 to 1
};

/// Cross entropy mixed with the divergence from a teacher. Per row, with p the teacher's probabilities of its K tokens
/// at temperature T, which sum to 1, and q = softmax(logits / T):
///   losses = (1 - a) * -log softmax(logits)[target] + a * T^2 * sum(p * (log p - log q)).
/// A row without teacher tokens has a = 0; one with kNoTarget has loss and gradient 0. Other arguments are as above.
/// Uses LibTorch's functions on every device, with two (T = 1) or four temporary tensors [M, V].
void soft_cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                                 const SoftTargets& soft, const SoftTargetOptions& options,
                                 const at::Tensor& denominator, at::Tensor& losses);

/// sum += sum(weights * losses). losses [M] fp32 (fp64) and weights [M] fp32 or undefined (1), contiguous; sum [] fp64
/// on the same device. Multiplies and adds in fp64, in a fixed order, without synchronizing.
void add_losses(const at::Tensor& losses, const at::Tensor& weights, at::Tensor& sum);

void add_losses_reference(const at::Tensor& losses, const at::Tensor& weights, at::Tensor& sum);

}  // namespace lora_train::kernels
