// TRL's `trl sft`: ScriptArguments, SFTConfig, ModelConfig and DatasetMixtureConfig.
#include "tool_keys.h"

namespace lora_train {

namespace {

ToolKeys own_trl_keys() {
  ToolKeys keys;
  keys.same = {{"chat_template_path", "chat_template"},
               {"packing", "packing"},
               {"lora_r", "lora_r"},
               {"lora_alpha", "lora_alpha"},
               {"lora_dropout", "lora_dropout"}};
  keys.converted = {"model_name_or_path",
                    "model_revision",
                    "dtype",
                    "torch_dtype",
                    "use_peft",
                    "lora_target_modules",
                    "use_rslora",
                    "use_dora",
                    "load_in_4bit",
                    "load_in_8bit",
                    "use_bnb_nested_quant",
                    "dataset_name",
                    "dataset_train_split",
                    "dataset_config",
                    "dataset_test_split",
                    "datasets",
                    "test_split_size",
                    "dataset_text_field",
                    "max_length",
                    "max_seq_length",
                    "truncation_mode",
                    "packing_strategy",
                    "completion_only_loss",
                    "assistant_only_loss",
                    "loss_type",
                    "activation_offloading",
                    "eos_token",
                    "model_init_kwargs"};
  keys.idle = {
      {"attention is chosen for the device; the numbers agree", {"attn_implementation", "use_liger"}},
      {"padding is never computed", {"pad_token", "pad_to_multiple_of", "padding_free"}},
      {"evaluation gives the same numbers packed or not", {"eval_packing"}},
      {"documents are shuffled in every epoch", {"shuffle_dataset"}},
      {"rows are tokenised once and read from the token cache", {"dataset_num_proc", "dataset_streaming", "streaming"}},
      {"code from a model folder is never run", {"trust_remote_code"}},
      {"mixture-of-experts models are not supported", {"router_aux_loss_coef"}},
      {"it is the storage of bitsandbytes", {"bnb_4bit_quant_storage"}},
      // `trl sft` hands these, and those of an accelerate configuration, to `accelerate launch`.
      {"several GPUs: --nproc N, mpirun, torchrun or Slurm",
       {"num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids",
        "rdzv_backend", "rdzv_conf", "distributed_type", "compute_environment", "main_training_function",
        "same_network", "enable_cpu_affinity", "downcast_bf16"}},
      {kNeverSharded, {"accelerate_config"}},
      {"it is for Python libraries", {"env", "ignore_bias_buffers"}},
  };
  keys.refused = {
      {"Only nf4 is built. Use base_precision: nf4.", {{"bnb_4bit_quant_type", {"nf4"}}}},
      {"Whole modules cannot be trained beside an adapter. Remove it, or train all weights (use_peft: false).",
       {{"lora_modules_to_save"}}},
      {"Adapters stand on linears only: use lora_target_modules.", {{"lora_target_parameters"}}},
      {"Only causal language models are trained.", {{"lora_task_type", {"causal_lm"}}}},
      {"Rows are always prepared. Name pre-tokenised files as `datasets` with type: pretokenized.",
       {{"dataset_kwargs"}}},
  };
  return keys;
}

}  // namespace

const ToolKeys& trl_keys() {
  static const ToolKeys keys = joined(trainer_keys(), own_trl_keys());
  return keys;
}

}  // namespace lora_train
