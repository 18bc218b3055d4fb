// Keys of other trainers that have no counterpart here: refused with the reason, or noted where they change nothing.
#include "lora_train/config/keys/aliases.h"

namespace lora_train {

namespace {

const char* const kAdapter = "this kind of adapter is not supported. Remove it, or set use_rslora: true.";
const char* const kModules =
    "whole modules cannot be trained beside an adapter. Remove it, or set adapter: none to train all weights.";
const char* const kRows =
    "rows of tokens that exist are not trained beside an adapter. Name new tokens in add_tokens, or set adapter: none "
    "to "
    "train all weights.";
const char* const kSharding =
    "the model is never sharded. Remove it; to save memory, set "
    "gradient_checkpointing: full.";
const char* const kRanks = "the number of ranks comes from torchrun, mpirun, srun or --nproc, never from a profile.";
const char* const kMerge = "merging is a command of its own: lora-train merge --model M --adapter A --output-dir O.";
const char* const kQuant = "the format is named by base_precision: nf4, int8 or fp8.";

std::vector<ForeignKey> with_adapter_flags(std::vector<ForeignKey> table) {
  for (const auto& [name, kind] : adapter_flags(false)) table.push_back({name, kAdapter, "", true});
  return table;
}

}  // namespace

const std::vector<ForeignKey>& refused_keys() {
  static const std::vector<ForeignKey> table = with_adapter_flags({
      {"fp16",
       "is not supported: fp16 needs loss scaling and overflows in large models, and all supported GPUs (Ampere and "
       "later) have bf16. Use precision: bf16.",
       "", true},
      {"scale", "mlx's scale is alpha / r. Set lora_alpha to scale times lora_r.", ""},
      {"lora_parameters", "use lora_r, lora_alpha (mlx's scale times the rank), lora_dropout and lora_target_modules.",
       ""},
      {"pissa_init", kAdapter, "", true},
      {"init_lora_weights",
       "the adapter starts with PEFT's default (A Kaiming-uniform, B zero). To start from another, "
       "save it as a PEFT folder and use init_adapter.",
       "true"},
      {"modules_to_save", kModules, ""},
      {"lora_modules_to_save", kModules, ""},
      {"additional_target", kModules, ""},
      {"trainable_token_indices", kRows, ""},
      {"peft_trainable_token_indices", kRows, ""},
      {"train_token_rows", kRows, "", true},
      {"zero_stage", kSharding, ""},
      {"zero_level", kSharding, ""},
      {"gpus", kRanks, ""},
      {"nproc", kRanks, ""},
      {"local_rank", kRanks, "-1"},
      {"nproc_per_node", kRanks, ""},
      {"merge_lora", kMerge, "", true},
      {"merge_adapter", kMerge, "", true},
      {"dataset_text_field", "name the column in the dataset: datasets: [{path: ..., field_map: {text: COLUMN}}].",
       "text"},
      {"dataset_dir",
       "names in its dataset_info.json are read by lora-train convert only. In a profile, name the files: datasets: "
       "[{path: ...}].",
       ""},
      {"dataset_train_split", "name the split in the dataset: datasets: [{path: FOLDER, split: NAME}].", ""},
      {"dataset_test_split", "name the split in the dataset: eval_datasets: [{path: FOLDER, split: NAME}].", ""},
      {"dataset_config", "name it in the dataset: datasets: [{path: org/name, subset: NAME}].", ""},
      {"roles_to_train", "use loss_on: assistant | last | completion | all.", ""},
      {"train_on_eos", "the end-of-turn token of a trained turn is always trained. Remove it.", "", true},
      {"loss_scale", "use loss_on: assistant | last | completion | all.", ""},
      {"lr_scheduler_kwargs", "use min_lr_ratio with lr_scheduler_type: cosine_with_min_lr.", ""},
      {"max_samples",
       "it cuts the training data in some programs and the evaluation data in others. Use max_samples in an "
       "entry of datasets, or eval_max_samples.",
       ""},
      {"packing_strategy", "documents stay whole in a packed row. Remove it, or cut the texts beforehand.", "bfd"},
      {"bias", "biases are not trained beside an adapter. Remove it, or set adapter: none to train all weights.",
       "none"},
      {"task_type", "only causal language models are trained. Remove it.", "causal_lm"},
      {"inference_mode", "an adapter is always trained. Remove it; generate and chat answer with one.", "", true},
      {"val_batches", "use eval_max_samples (documents).", ""},
      {"lora_dtype", "LoRA weights are always fp32 in training. save_dtype: bf16 makes a smaller adapter/.", ""},
      {"pure_bf16", "trained weights are always fp32. Use precision: bf16.", "", true},
      {"quant_type", kQuant, "nf4"},
      {"bnb_4bit_quant_type", kQuant, "nf4"},
      {"quantization_type", kQuant, "nf4"},
  });
  return table;
}

const std::vector<ForeignKey>& idle_keys() {
  static const std::string isolated = "documents in a packed row are always isolated";
  static const std::vector<ForeignKey> table = {
      {"neat_packing", isolated, "", true},
      {"padding_free", "padding is never computed", "", true},
      {"torch_compile_mode", "the kernels are compiled ahead of time", ""},
      {"torch_compile_backend", "the kernels are compiled ahead of time", ""},
      {"gradient_checkpointing_kwargs", "recomputation has no variants here", ""},
      {"trust_remote_code", "code from a model folder is never run", "", true},
      {"remove_unused_columns", "unused columns never reach the trainer", "", true},
      {"use_cache", "training keeps no KV cache", "", true},
      {"ddp_find_unused_parameters", "gradients of all ranks are reduced in one buffer", "", true},
      {"logging_strategy", "logging_steps decides", ""},
      {"overwrite_output_dir", "only --overwrite replaces an existing run", "", true},
      {"do_train", "the command decides what is done", "", true},
      {"do_eval", "a run evaluates if it has evaluation data", "", true},
  };
  return table;
}

}  // namespace lora_train
