#include "lora_train/kernels/cross_entropy/cross_entropy.h"

#include <limits>

#include "cross_entropy_parts.h"
#include "dispatch/arguments.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {
namespace {

void check(const char* kernel, const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
           const at::Tensor& denominator, const at::Tensor& losses) {
  check_rows(kernel, "logits", logits, {-1, -1});
  check_contiguous(kernel, "logits", logits);
  check_floating(kernel, "logits", logits);
  const int64_t M = logits.size(0);
  check_vector(kernel, "targets", targets, M, at::kInt);
  check_vector(kernel, "losses", losses, M, math_dtype(logits));
  if (weights.defined()) check_vector(kernel, "weights", weights, M, at::kFloat);
  if (denominator.defined()) check_rows(kernel, "denominator", denominator, {}, at::kDouble);
}

}  // namespace

void cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                            const at::Tensor& denominator, CrossEntropyOutput& output) {
  constexpr auto kName = "cross_entropy_in_place";
  check(kName, logits, targets, weights, denominator, output.losses);
  const int64_t num_rows = logits.size(0);
  if (output.correct.defined()) check_vector(kName, "correct", output.correct, num_rows, at::kBool);
  if (output.confidence.defined()) check_vector(kName, "confidence", output.confidence, num_rows, at::kFloat);
  const WorkScope recorded(kName, WorkClass::kLoss, [&](Work& work) {
    // A row is read for its sum and, unless it stays in registers, again for the gradient.
    work.reads("logits", logits, denominator.defined() ? 2 : 1).reads("targets", targets).reads("weights", weights);
    work.writes("losses", output.losses).writes("correct", output.correct).writes("confidence", output.confidence);
    if (denominator.defined()) work.writes("dlogits", logits);
  });
  const auto reference = [&] { cross_entropy_in_place_reference(logits, targets, weights, denominator, output); };
  run_kernel(KernelName::kCrossEntropy, logits, reference, [&]<class T>(ElementType<T>, Implementation how) {
    run_native<T>(how, cross_entropy_in_place_cpu<T>, &NativeKernelsOf<T>::cross_entropy_in_place,
                  write_rows<T>(logits), read<std::int32_t>(targets), read<float>(weights), read<double>(denominator),
                  write<float>(output.losses), write<bool>(output.correct), write<float>(output.confidence), num_rows,
                  logits.size(1));
  });
}

void add_losses(const at::Tensor& losses, const at::Tensor& weights, at::Tensor& sum) {
  constexpr auto kName = "add_losses";
  check_shape(kName, "losses", losses, {-1});
  check_contiguous(kName, "losses", losses);
  check_floating(kName, "losses", losses);
  if (weights.defined()) check_vector(kName, "weights", weights, losses.size(0), at::kFloat);
  check_rows(kName, "sum", sum, {}, at::kDouble);
  const WorkScope recorded(kName, WorkClass::kLoss, [&](Work& work) {
    work.reads("losses", losses).reads("weights", weights).updates("sum", sum);
  });
  if (losses.is_meta()) return;
  const bool is_own = losses.scalar_type() == at::kFloat &&
                      implementation_for(KernelName::kCrossEntropy, losses) == Implementation::kCuda;
  if (!is_own) return add_losses_reference(losses, weights, sum);
  native_kernels().add_losses(read<float>(losses), read<float>(weights), losses.numel(), write<double>(sum),
                              native_stream());
}

namespace {

/// [M, K], and [M, 1] for the share.
struct Teacher {
  at::Tensor index, probabilities, log_probabilities;  ///< 0 if there is no token
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

}  // namespace

void soft_cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                                 const SoftTargets& soft, const SoftTargetOptions& options,
                                 const at::Tensor& denominator, at::Tensor& losses) {
  constexpr auto kName = "soft_cross_entropy_in_place";
  check(kName, logits, targets, weights, denominator, losses);
  check_rows(kName, "soft.ids", soft.ids, {logits.size(0), -1}, at::kInt);
  check_rows(kName, "soft.log_probs", soft.log_probs, soft.ids.sizes(), at::kFloat);
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

void cross_entropy_in_place_reference(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                                      const at::Tensor& denominator, CrossEntropyOutput& output) {
  const auto values = to_math(logits);
  const auto has_target = (targets != kNoTarget).unsqueeze(1);
  const auto index = targets.to(at::kLong).unsqueeze(1).clamp_min(0);
  const auto lse = values.logsumexp(1, /*keepdim=*/true);
  output.losses.copy_(at::where(has_target, lse - values.gather(1, index), 0.0).squeeze(1));
  const auto largest = values.amax(1, /*keepdim=*/true);
  if (output.correct.defined()) {
    const auto columns = at::arange(values.size(1), index.options());
    const auto first = at::where(values == largest, columns, values.size(1)).amin(1);
    output.correct.copy_(first == targets);
  }
  if (output.confidence.defined()) output.confidence.copy_((largest - lse).exp().squeeze(1));
  if (denominator.defined()) {
    auto gradient = (values - lse).exp();
    gradient.scatter_add_(1, index, at::full_like(index, -1, gradient.options()));
    if (weights.defined()) gradient.mul_(weights.unsqueeze(1));
    logits.copy_(at::where(has_target, gradient / denominator.to(gradient.scalar_type()), 0.0));
  }
}

void add_losses_reference(const at::Tensor& losses, const at::Tensor& weights, at::Tensor& sum) {
  sum.add_(weights.defined() ? losses.to(at::kDouble).mul(weights).sum() : losses.sum(at::kDouble));
}

}  // namespace lora_train::kernels
