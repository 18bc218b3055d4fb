#include <ATen/ATen.h>

#include <limits>

#include "dispatch/checks.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"

namespace lora_train::kernels {
namespace {

/// [M, K], and [M, 1] for the share.
struct Teacher {
  at::Tensor index, probabilities, log_probabilities;  ///< 0 where there is no token
  at::Tensor share;
};

Teacher teacher_of(const SoftTargets& soft, const SoftTargetOptions& options, at::ScalarType dtype) {
  const at::Tensor is_token = soft.ids >= 0, has_any = is_token.any(1, /*keepdim=*/true);
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  const at::Tensor scores = at::where(is_token, soft.log_probs.to(dtype) / options.temperature, kNever);
  const at::Tensor log_p = at::where(is_token, at::where(has_any, scores, 0.0).log_softmax(1), 0.0);
  return {soft.ids.to(at::kLong).clamp_min(0), at::where(is_token, log_p.exp(), 0.0), log_p,
          has_any.to(dtype) * options.share};
}

void check(const char* kernel, const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
           const SoftTargets& soft, const at::Tensor& denominator, const at::Tensor& losses) {
  check_rows(kernel, "logits", logits, {-1, -1});
  check_contiguous(kernel, "logits", logits);
  check_floating(kernel, "logits", logits);
  const int64_t M = logits.size(0);
  check_vector(kernel, "targets", targets, M, at::kInt);
  check_vector(kernel, "losses", losses, M, math_dtype(logits));
  if (weights.defined()) check_vector(kernel, "weights", weights, M, at::kFloat);
  check_rows(kernel, "soft.ids", soft.ids, {M, -1}, at::kInt);
  check_rows(kernel, "soft.log_probs", soft.log_probs, {M, soft.ids.size(1)}, at::kFloat);
  if (denominator.defined()) check_rows(kernel, "denominator", denominator, {}, at::kDouble);
}

}  // namespace

void soft_cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                                 const SoftTargets& soft, const SoftTargetOptions& options,
                                 const at::Tensor& denominator, at::Tensor& losses) {
  constexpr auto kName = "soft_cross_entropy_in_place";
  check(kName, logits, targets, weights, soft, denominator, losses);
  const WorkScope recorded(kName, WorkClass::kLoss, [&](Work& work) {
    work.reads("logits", logits, 2).reads("targets", targets).reads("weights", weights).reads("soft.ids", soft.ids);
    work.reads("soft.log_probs", soft.log_probs).writes("losses", losses);
    if (denominator.defined()) work.writes("dlogits", logits);
  });
  if (logits.is_meta()) return;
  const double T = options.temperature;
  const at::Tensor values = to_math(logits), has_target = (targets >= 0).unsqueeze(1);
  const at::Tensor index = targets.to(at::kLong).unsqueeze(1).clamp_min(0);
  const Teacher teacher = teacher_of(soft, options, values.scalar_type());
  const at::Tensor rest = 1 - teacher.share;
  at::Tensor log_q1 = values.log_softmax(1), log_q = T == 1 ? log_q1 : (values / T).log_softmax(1);
  const at::Tensor differences = teacher.log_probabilities - log_q.gather(1, teacher.index);
  const at::Tensor divergence = T * T * (teacher.probabilities * differences).sum(1, /*keepdim=*/true);
  const at::Tensor loss = teacher.share * divergence - rest * log_q1.gather(1, index);
  losses.copy_(at::where(has_target, loss, 0.0).squeeze(1));
  if (!denominator.defined()) return;
  at::Tensor gradient = log_q1.exp_();
  if (T != 1) gradient.mul_(rest).add_(log_q.exp_().mul_(T * teacher.share));
  gradient.scatter_add_(1, index, -rest);
  gradient.scatter_add_(1, teacher.index, -T * teacher.share * teacher.probabilities);
  at::Tensor scale = denominator.reciprocal().to(gradient.scalar_type());
  if (weights.defined()) scale = scale * weights.unsqueeze(1);
  logits.copy_(gradient.mul_(at::where(has_target, scale, 0.0)));
}

}  // namespace lora_train::kernels
