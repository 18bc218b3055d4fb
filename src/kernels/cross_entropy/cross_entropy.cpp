#include "lora_train/kernels/cross_entropy/cross_entropy.h"

#include "cross_entropy_cpu.h"
#include "dispatch/checks.h"
#include "dispatch/native_arguments.h"
#include "lora_train/kernels/accounting/work_record.h"

namespace lora_train::kernels {

void cross_entropy_in_place(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& weights,
                            const at::Tensor& denominator, CrossEntropyOutput& output) {
  constexpr auto kName = "cross_entropy_in_place";
  check_rows(kName, "logits", logits, {-1, -1});
  check_contiguous(kName, "logits", logits);
  check_floating(kName, "logits", logits);
  const int64_t num_rows = logits.size(0);
  check_vector(kName, "targets", targets, num_rows, at::kInt);
  check_vector(kName, "losses", output.losses, num_rows, math_dtype(logits));
  if (output.correct.defined()) check_vector(kName, "correct", output.correct, num_rows, at::kBool);
  if (output.confidence.defined()) check_vector(kName, "confidence", output.confidence, num_rows, at::kFloat);
  if (weights.defined()) check_vector(kName, "weights", weights, num_rows, at::kFloat);
  if (denominator.defined()) check_rows(kName, "denominator", denominator, {}, at::kDouble);
  const WorkScope recorded(kName, WorkClass::kLoss, [&](Work& work) {
    // A row is read for its sum and, where it does not stay in registers, again for the gradient.
    work.reads("logits", logits, denominator.defined() ? 2 : 1).reads("targets", targets).reads("weights", weights);
    work.writes("losses", output.losses).writes("correct", output.correct).writes("confidence", output.confidence);
    if (denominator.defined()) work.writes("dlogits", logits);
  });
  if (logits.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kCrossEntropy, logits);
  if (how == Implementation::kReference) {
    return cross_entropy_in_place_reference(logits, targets, weights, denominator, output);
  }
  dispatch_dtype(logits, [&]<class T>(ElementType<T>) {
    const auto run = [&](auto kernel, auto... stream) {
      kernel(write_rows<T>(logits), read<std::int32_t>(targets), read<float>(weights), read<double>(denominator),
             write<float>(output.losses), write<bool>(output.correct), write<float>(output.confidence), num_rows,
             logits.size(1), stream...);
    };
    how == Implementation::kCpu ? run(cross_entropy_in_place_cpu<T>)
                                : run(native_kernels_of<T>().cross_entropy_in_place, native_stream());
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

}  // namespace lora_train::kernels
