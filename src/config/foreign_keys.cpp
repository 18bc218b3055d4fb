// Keys of other trainers that have no counterpart here: refused with the reason, or noted where they change nothing.
#include "aliases.h"

namespace lora_train {

const std::vector<ForeignKey>& refused_keys() {
  static const std::string dora = "only LoRA and rsLoRA are trained. Take it out, or use use_rslora: true.";
  static const std::string modules =
      "whole modules cannot be trained beside an adapter. Use add_tokens for new tokens, or adapter: none.";
  static const std::string rows = "existing token rows cannot be trained beside an adapter. Use add_tokens for new tokens.";
  static const std::string sharding = "each rank holds the whole model. Use base_precision: nf4 or int8 and "
                                      "gradient_checkpointing: full to save memory.";
  static const std::string ranks = "the number of ranks comes from torchrun, mpirun, srun or --nproc, never from a profile.";
  static const std::string hub = "a run never touches the network. Upload the adapter/ folder afterwards "
                                 "(`hf upload NAME OUTPUT_DIR/adapter`).";
  static const std::string merge = "merging is a command of its own: lora-train merge --model M --adapter A --output-dir O.";
  static const std::string wandb = "a run never touches the network. Use report_to: [tensorboard], then "
                                   "`wandb sync OUTPUT_DIR/tensorboard`.";
  static const std::string cadence = "use save_steps and eval_steps: a number of steps, a share of the run below 1, or epoch.";
  static const std::string quant = "the format is named by base_precision: nf4, int8 or fp8.";
  static const std::vector<ForeignKey> table = {
      {"fp16", "is not supported: fp16 needs loss scaling and overflows in large models, and all supported GPUs (Ampere and "
               "later) have bf16. Use precision: bf16.", ""},
      {"scale", "mlx's scale is alpha / r. Say lora_alpha: scale times lora_r.", ""},
      {"lora_parameters", "say lora_r, lora_alpha (mlx's scale times the rank), lora_dropout and lora_target_modules.", ""},
      {"use_dora", dora, ""},
      {"peft_use_dora", dora, ""},
      {"pissa_init", dora, ""},
      {"init_lora_weights", "the adapter starts as PEFT's default does (A Kaiming-uniform, B zero). To start from another, "
                            "save it as a PEFT folder and use init_adapter.", "true"},
      {"modules_to_save", modules, ""},
      {"lora_modules_to_save", modules, ""},
      {"additional_target", modules, ""},
      {"trainable_token_indices", rows, ""},
      {"peft_trainable_token_indices", rows, ""},
      {"train_token_rows", rows, ""},
      {"fsdp", sharding, ""},
      {"fsdp_config", sharding, ""},
      {"deepspeed", sharding, ""},
      {"zero_stage", sharding, ""},
      {"zero_level", sharding, ""},
      {"gpus", ranks, ""},
      {"nproc", ranks, ""},
      {"nproc_per_node", ranks, ""},
      {"ddp_timeout", "a lost rank is noticed and named within 60 s. Take it out.", ""},
      {"push_to_hub", hub, ""},
      {"hub_model_id", hub, ""},
      {"export_hub_model_id", hub, ""},
      {"merge_lora", merge, ""},
      {"merge_adapter", merge, ""},
      {"export_dir", merge, ""},
      {"use_wandb", wandb, ""},
      {"wandb_project", wandb, ""},
      {"wandb_name", wandb, ""},
      {"wandb_entity", wandb, ""},
      {"logging_dir", "TensorBoard files are in output_dir/tensorboard. Take it out.", ""},
      {"dataset_text_field", "name the column in the data set: datasets: [{path: ..., field_map: {text: COLUMN}}].", ""},
      {"roles_to_train", "use loss_on: assistant | last | completion | all.", ""},
      {"train_on_eos", "the end-of-turn token of a trained turn is always trained. Take it out.", ""},
      {"loss_scale", "use loss_on: assistant | last | completion | all.", ""},
      {"lr_scheduler_kwargs", "use min_lr_ratio with lr_scheduler_type: cosine_with_min_lr.", ""},
      {"saves_per_epoch", cadence, ""},
      {"evals_per_epoch", cadence, ""},
      {"max_samples", "it cuts the training data in some programs and the evaluation data in others. Use eval_max_samples, "
                      "or a shorter file for training.", ""},
      {"val_batches", "use eval_max_samples (documents).", ""},
      {"lora_dtype", "LoRA weights are always fp32 in training. save_dtype: bf16 makes a smaller adapter/.", ""},
      {"pure_bf16", "weights that are trained are always fp32. Use precision: bf16.", ""},
      {"quant_type", quant, "nf4"},
      {"bnb_4bit_quant_type", quant, "nf4"},
      {"quantization_type", quant, "nf4"},
  };
  return table;
}

const std::vector<ForeignKey>& idle_keys() {
  static const std::string isolated = "documents in a packed row are always isolated";
  static const std::vector<ForeignKey> table = {
      {"packing_strategy", isolated, ""},
      {"neat_packing", isolated, ""},
      {"padding_free", "padding is never computed", ""},
      {"torch_compile_mode", "the kernels are compiled ahead of time", ""},
      {"torch_compile_backend", "the kernels are compiled ahead of time", ""},
      {"gradient_checkpointing_kwargs", "recomputation has no variants here", ""},
      {"trust_remote_code", "no code of a model folder is ever run", ""},
      {"remove_unused_columns", "unused columns never reach the trainer", ""},
      {"use_cache", "training keeps no KV cache", ""},
      {"ddp_find_unused_parameters", "gradients of all ranks are reduced in one buffer", ""},
      {"logging_strategy", "logging goes by logging_steps", ""},
      {"overwrite_output_dir", "an existing run is replaced by --overwrite only", ""},
      {"do_train", "the command says what is done", ""},
      {"do_eval", "evaluation happens where there is evaluation data", ""},
  };
  return table;
}

}  // namespace lora_train
