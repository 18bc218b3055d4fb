// Keys of the batch, the length of the run, the optimizer, the schedule and how it is computed.
#include "field_kinds.h"

namespace lora_train {
namespace {

constexpr double kMaxSeed = 9007199254740991.0;  // 2^53 - 1: every JSON reader keeps it

FieldGroup batch_group() {
  return {"Batch and length of the run",
          {integer_field("micro_batch_size", &ScheduleSection::micro_batch_size, Range::at_least(1), "auto",
                         "Rows per rank in one forward pass. auto: the largest that fits and divides."),
           integer_field("global_batch_size", &ScheduleSection::global_batch_size, Range::at_least(1), "null",
                         "Rows per optimizer step over all ranks. Or gradient_accumulation_steps.")
               .default_is("16"),
           integer_field("gradient_accumulation_steps", &ScheduleSection::gradient_accumulation_steps,
                         Range::at_least(1), "null", "Forward passes per optimizer step. Or global_batch_size."),
           number_field(
               "num_epochs", &ScheduleSection::num_epochs, Range::above(0),
               "Passes over the data. With max_steps too, the smaller ends the run; with max_steps alone there is no "
               "limit here.")
               .may_grow_on_resume(),
           integer_field("max_steps", &ScheduleSection::max_steps, Range::at_least(1), "null", "Optimizer steps.")
               .may_grow_on_resume(),
           duration_field("max_time", &ScheduleSection::max_time,
                          "Stop with a checkpoint and exit code 75 after this time; the same command goes on.")
               .free_on_resume()}};
}

FieldGroup optimizer_group() {
  return {"Optimizer and schedule",
          {choice_field("optim", &OptimizerSection::kind,
                        "AdamW with decoupled weight decay. adamw_torch and adamw_torch_fused are the same code here."),
           number_field("learning_rate", &OptimizerSection::learning_rate, Range::above(0), "Peak learning rate."),
           number_field("loraplus_lr_ratio", &OptimizerSection::loraplus_lr_ratio, Range::above(0),
                        "LoRA+: the B matrices of an adapter learn at learning_rate times this, schedule included."),
           choice_field("lr_scheduler_type", &ScheduleSection::lr_scheduler_type,
                        "Course of the learning rate after warm-up. constant has no warm-up."),
           number_field("warmup_ratio", &ScheduleSection::warmup_ratio, Range::from_to_below(0, 1),
                        "Share of all steps in which the rate rises from 0. Or warmup_steps.")
               .silent_when([](const Profile& profile) { return profile.schedule.warmup_steps.has_value(); }),
           integer_field("warmup_steps", &ScheduleSection::warmup_steps, Range::at_least(0), "null",
                         "Steps in which the rate rises from 0. Or warmup_ratio."),
           number_field("min_lr_ratio", &ScheduleSection::min_lr_ratio, Range::between(0, 1),
                        "Last learning rate as a share of the peak, for cosine_with_min_lr."),
           choice_field("lr_scaling", &ScheduleSection::lr_scaling,
                        "Multiply learning_rate by (rows per step / lr_base_batch), or its root."),
           integer_field("lr_base_batch", &ScheduleSection::lr_base_batch, Range::at_least(1), "null",
                         "Rows per step for which learning_rate was chosen; needed by lr_scaling."),
           number_field("weight_decay", &OptimizerSection::weight_decay, Range::at_least(0),
                        "Decoupled weight decay. Biases and norms are not decayed in full fine-tuning."),
           number_field("adam_beta1", &OptimizerSection::adam_beta1, Range::from_to_below(0, 1),
                        "Decay of the first moment."),
           number_field("adam_beta2", &OptimizerSection::adam_beta2, Range::from_to_below(0, 1),
                        "Decay of the second moment."),
           number_field("adam_epsilon", &OptimizerSection::adam_epsilon, Range::above(0), "Added outside the root."),
           number_field("max_grad_norm", &OptimizerSection::max_grad_norm, Range::at_least(0),
                        "Gradients are scaled down to this norm. 0 or null: no clipping.")
               .null_means("0"),
           integer_field("seed", &RunSection::seed, Range::between(0, kMaxSeed),
                         "Of the adapter's first values, the order of the data and dropout.")}};
}

FieldGroup compute_group() {
  return {"How it is computed",
          {choice_field("gradient_checkpointing", &RunSection::gradient_checkpointing,
                        "Recompute activations in the backward pass instead of keeping them: "
                        "cheap recomputes norms and SwiGLU, gate_up the product before it "
                        "too, full whole layers, auto what the memory asks for. The numbers "
                        "are the same.",
                        GradientCheckpointing::kFull)
               .free_on_resume(),
           choice_field("cuda_graphs", &RunSection::cuda_graphs,
                        "Replay the step as CUDA graphs where it can. The numbers are the same.", CudaGraphs::kAuto)
               .free_on_resume(),
           choice_field("tuning", &RunSection::tuning,
                        "On a GPU: attention, algorithms of matrix products and rows of the loss head are chosen by "
                        "measuring before step 1, once for a shape (docs/gpu.md). off: by rule, as with "
                        "deterministic: true.",
                        Tuning::kAuto)
               .free_on_resume(),
           choice_field("attn_implementation", &RunSection::attn_implementation,
                        "Attention kernel. auto: the fastest for the device. reference: plain code, slow.")
               .free_on_resume(),
           kernels_field("kernels", &RunSection::kernels,
                         "reference switches our own kernels off; own asks for them and refuses to run without. A map "
                         "chooses for single ones: {rms_norm: reference}, and all: for the others.")
               .free_on_resume(),
           flag_field("deterministic", &RunSection::deterministic,
                      "The same bits in every run on a GPU, at some cost. A CPU always gives them.")}};
}

}  // namespace

std::vector<FieldGroup> training_field_groups() { return {batch_group(), optimizer_group(), compute_group()}; }

}  // namespace lora_train
