// Keys of the batch, the length of the run, the loss, the optimizer, the schedule and how it is computed.
#include "field_kinds.h"

namespace lora_train {
namespace {

constexpr double kMaxSeed = 9007199254740991.0;  // 2^53 - 1: every JSON reader keeps it

FieldGroup batch_group() {
  return {
      "Batch size and run length",
      {integer_field("micro_batch_size", &ScheduleSection::micro_batch_size, Range::at_least(1), "auto",
                     "Rows per rank in one forward pass. auto: the fastest that fits into GPU memory (on a CPU, about "
                     "4096 tokens) and "
                     "divides the rows of a step."),
       integer_field("global_batch_size", &ScheduleSection::global_batch_size, Range::at_least(1), "null",
                     "Rows (batch_unit) per optimizer step, over all ranks. Alternative: gradient_accumulation_steps.")
           .default_is("16"),
       integer_field("gradient_accumulation_steps", &ScheduleSection::gradient_accumulation_steps, Range::at_least(1),
                     "null", "Forward passes per optimizer step. Alternative: global_batch_size."),
       choice_field(
           "batch_unit", &ScheduleSection::batch_unit,
           "What global_batch_size counts. With packing, a row holds several documents: rows keeps the number of "
           "tokens of a step about the same; documents keeps the number of examples, as trainers without packing "
           "do, and packs those of a step into as few rows as they need. Then gradient_accumulation_steps means "
           "micro_batch_size times as many documents a rank."),
       number_field("num_epochs", &ScheduleSection::num_epochs, Range::above(0),
                    "Passes over the data. If max_steps is set too, the run ends at whichever comes first; with "
                    "max_steps alone, epochs "
                    "are not limited.")
           .may_grow_on_resume(),
       integer_field("max_steps", &ScheduleSection::max_steps, Range::at_least(1), "null", "Optimizer steps.")
           .may_grow_on_resume(),
       duration_field("max_time", &ScheduleSection::max_time,
                      "After this time, save a checkpoint and stop with exit code 75; the same command resumes.")
           .free_on_resume()}};
}

FieldGroup optimizer_group() {
  return {
      "Loss, optimizer and schedule",
      {choice_field("loss_type", &ObjectiveSection::loss_type,
                    "nll: cross entropy. dft: Dynamic Fine-Tuning, which multiplies the cross entropy of a token "
                    "by its probability p, as a constant: -p log p. It computes logits twice and runs without "
                    "CUDA graphs. kl: the divergence from a teacher whose log-probabilities are in the rows "
                    "(docs/teach.md), also "
                    "without CUDA graphs. Evaluation always reports cross entropy."),
       number_field("kd_alpha", &ObjectiveSection::kd_alpha, Range::between(0, 1),
                    "loss_type: kl: share of the divergence from the teacher; the rest is cross entropy."),
       number_field("kd_temperature", &ObjectiveSection::kd_temperature, Range::above(0),
                    "loss_type: kl: temperature of teacher and student in the divergence, which is multiplied by its "
                    "square."),
       choice_field(
           "optim", &OptimizerSection::kind,
           "AdamW with decoupled weight decay. adamw_torch and adamw_torch_fused are the same code. adamw_8bit "
           "keeps moments in 8 bits, as bitsandbytes does on a GPU, except for embeddings and tensors of fewer "
           "than 4096 elements."),
       number_field("learning_rate", &OptimizerSection::learning_rate, Range::above(0), "Peak learning rate."),
       number_field("loraplus_lr_ratio", &OptimizerSection::loraplus_lr_ratio, Range::above(0),
                    "LoRA+: the B matrices learn at this multiple of the scheduled learning rate."),
       choice_field("lr_scheduler_type", &ScheduleSection::lr_scheduler_type,
                    "Learning rate schedule after warm-up. constant has no warm-up."),
       number_field("warmup_ratio", &ScheduleSection::warmup_ratio, Range::from_to_below(0, 1),
                    "Share of all steps over which the learning rate rises from 0. Alternative: warmup_steps.")
           .silent_when([](const Profile& profile) { return profile.schedule.warmup_steps.has_value(); }),
       integer_field("warmup_steps", &ScheduleSection::warmup_steps, Range::at_least(0), "null",
                     "Steps over which the learning rate rises from 0. Alternative: warmup_ratio."),
       number_field("min_lr_ratio", &ScheduleSection::min_lr_ratio, Range::between(0, 1),
                    "Final learning rate as a share of the peak, for cosine_with_min_lr."),
       choice_field(
           "lr_scaling", &ScheduleSection::lr_scaling,
           "Scale learning_rate by rows (batch_unit) per step / lr_base_batch (linear), or by its square root (sqrt)."),
       integer_field("lr_base_batch", &ScheduleSection::lr_base_batch, Range::at_least(1), "null",
                     "Rows (batch_unit) per step for which learning_rate was chosen; required by lr_scaling."),
       number_field("weight_decay", &OptimizerSection::weight_decay, Range::at_least(0),
                    "Decoupled weight decay. In full fine-tuning, biases and norms are not decayed."),
       number_field("adam_beta1", &OptimizerSection::adam_beta1, Range::from_to_below(0, 1),
                    "Decay rate of the first moment."),
       number_field("adam_beta2", &OptimizerSection::adam_beta2, Range::from_to_below(0, 1),
                    "Decay rate of the second moment."),
       number_field("adam_epsilon", &OptimizerSection::adam_epsilon, Range::above(0),
                    "Added to the denominator, outside the square root."),
       number_field("max_grad_norm", &OptimizerSection::max_grad_norm, Range::at_least(0),
                    "Clip the gradient norm to this value. 0 or null: no clipping.")
           .null_means("0"),
       integer_field("seed", &RunSection::seed, Range::between(0, kMaxSeed),
                     "Seed of adapter initialisation, data order and dropout.")}};
}

FieldGroup compute_group() {
  return {
      "Computation",
      {choice_field("gradient_checkpointing", &RunSection::gradient_checkpointing,
                    "Recompute activations in the backward pass instead of keeping them: "
                    "cheap recomputes norms and SwiGLU, gate_up also the GEMM before it, "
                    "full whole layers; auto recomputes as little as memory allows. The numbers "
                    "do not change.",
                    GradientCheckpointing::kFull)
           .free_on_resume(),
       choice_field("activation_offload", &RunSection::activation_offload,
                    "Keep the layers' inputs in page-locked host memory from forward to backward, for longer rows on "
                    "one GPU (docs/long_context.md). auto: on a GPU, if the run does not fit otherwise. The numbers do "
                    "not change.",
                    ActivationOffload::kOn)
           .free_on_resume(),
       integer_field("mlp_tile_tokens", &RunSection::mlp_tile_tokens, Range::at_least(0), "auto",
                     "Run each layer's MLP on so many tokens at a time, for longer rows on one GPU "
                     "(docs/long_context.md). auto: on a GPU, 4096 (1024 for rows of up to 4096) if the run does not "
                     "fit otherwise. off (0): never. "
                     "A number implies gradient_checkpointing: full. Gradients differ by rounding only.")
           .word_means("off", "0")
           .free_on_resume(),
       choice_field("cuda_graphs", &RunSection::cuda_graphs,
                    "Capture a step as CUDA graphs and replay them, where possible. The numbers do not change.",
                    CudaGraphs::kAuto)
           .free_on_resume(),
       choice_field("tuning", &RunSection::tuning,
                    "Autotuning on a GPU: choose the attention backend, GEMM algorithms, row pitch and rows of a loss "
                    "chunk by measuring before step 1, once per shape (docs/gpu.md). off: choose by rule, as with "
                    "deterministic: true.",
                    Tuning::kAuto)
           .free_on_resume(),
       choice_field("check_ranks", &RunSection::check_ranks,
                    "When several ranks compare their trained parameters, which must be equal bit for bit: at the "
                    "start and before every save, or after every step too (docs/multi_gpu.md).")
           .free_on_resume(),
       choice_field("attn_implementation", &RunSection::attn_implementation,
                    "Attention backend. auto: the fastest for the device. reference: plain LibTorch operations, slow.")
           .free_on_resume(),
       kernels_field("kernels", &RunSection::kernels,
                     "auto uses our native kernels where they exist, own requires them, reference uses plain LibTorch "
                     "operations. A map "
                     "chooses per kernel: {rms_norm: reference}; the name all stands for the rest.")
           .free_on_resume(),
       flag_field("deterministic", &RunSection::deterministic,
                  "Get the same bits in every run on a GPU, at some cost in speed. A CPU always does.")}};
}

}  // namespace

std::vector<FieldGroup> training_field_groups() { return {batch_group(), optimizer_group(), compute_group()}; }

}  // namespace lora_train
