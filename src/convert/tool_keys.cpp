#include "tool_keys.h"

#include <algorithm>
#include <set>

namespace lora_train {
namespace {

bool has_name(const std::vector<const char*>& names, const std::string& name) {
  return std::ranges::any_of(names, [&](const char* known) { return name == known; });
}

void remove_key(ToolKeys& keys, const std::string& name) {
  const auto is_it = [&](const char* known) { return name == known; };
  std::erase_if(keys.same, [&](const SameValue& same) { return is_it(same.name); });
  std::erase_if(keys.converted, is_it);
  for (auto& group : keys.idle) std::erase_if(group.names, is_it);
  for (auto& group : keys.refused) std::erase_if(group.keys, [&](const RefusedKey& key) { return is_it(key.name); });
  for (auto& group : keys.options) std::erase_if(group.names, is_it);
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

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
      {"examples are tokenised once and read from the token cache",
       {"dataset_num_proc", "dataset_streaming", "streaming"}},
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
      {"Only nf4 is supported. Use base_precision: nf4.", {{"bnb_4bit_quant_type", {"nf4"}}}},
      {"Whole modules cannot be trained alongside an adapter. Remove it, or train all weights (use_peft: false).",
       {{"lora_modules_to_save"}}},
      {"Adapters are on linears only: use lora_target_modules.", {{"lora_target_parameters"}}},
      {"Only causal language models are trained.", {{"lora_task_type", {"causal_lm"}}}},
      {"Examples are always prepared. Name pre-tokenised files as `datasets` with type: pretokenized.",
       {{"dataset_kwargs"}}},
  };
  return keys;
}

const std::vector<IdleGroup> kTrainerIdle = {
    {"the command decides what is computed", {"do_train", "do_eval", "do_predict"}},
    {"only --overwrite replaces a run", {"overwrite_output_dir"}},
    {"logging_steps decides", {"logging_strategy", "logging_first_step", "logging_nan_inf_filter"}},
    {"--log-level and --quiet decide", {"log_level", "log_level_replica", "log_on_each_node", "disable_tqdm"}},
    {"TensorBoard files are in output_dir/tensorboard", {"logging_dir"}},
    {"nothing is uploaded during a run; upload the adapter folder afterwards",
     {"push_to_hub", "hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push", "hub_revision",
      "push_to_hub_model_id", "push_to_hub_organization", "push_to_hub_token", "project", "trackio_space_id",
      "trackio_bucket_id", "trackio_static_space_id"}},
    {"ranks come from torchrun, mpirun, srun or --nproc",
     {"local_rank", "ddp_backend", "ddp_timeout", "ddp_bucket_cap_mb", "ddp_broadcast_buffers",
      "ddp_find_unused_parameters", "ddp_static_graph", "ray_scope"}},
    {kNeverSharded,
     {"fsdp", "fsdp_config", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap", "accelerator_config",
      "parallelism_config"}},
    {"the kernels are compiled ahead of time",
     {"torch_compile", "torch_compile_backend", "torch_compile_mode", "torchdynamo", "use_liger_kernel",
      "liger_kernel_config", "jit_mode_eval"}},
    {"recomputation never changes the numbers, and has no variants here", {"gradient_checkpointing_kwargs"}},
    {"memory is reserved before step 1", {"torch_empty_cache_steps", "skip_memory_metrics"}},
    {"the loader keeps its own order and threads",
     {"dataloader_persistent_workers", "dataloader_in_order", "dataloader_multiprocessing_context"}},
    {"columns that are not named never reach the trainer",
     {"remove_unused_columns", "length_column_name", "label_names", "include_inputs_for_metrics", "include_for_metrics",
      "sortish_sampler"}},
    {"training keeps no KV cache, and evaluation reads the logits in place",
     {"use_cache", "past_index", "prediction_loss_only", "eval_accumulation_steps", "eval_use_gather_object",
      "eval_do_concat_batches", "batch_eval_metrics", "bf16_full_eval", "use_legacy_prediction_loop"}},
    {"tokens are always counted", {"include_num_input_tokens_seen", "include_tokens_per_second"}},
    {"checkpoints are whole and in safetensors, and a resumed run gives the same numbers",
     {"save_safetensors", "save_on_each_node", "save_only_model", "enable_jit_checkpoint",
      "restore_callback_states_from_checkpoint", "ignore_data_skip"}},
    {"it is for debugging PyTorch or for other hardware",
     {"debug", "tpu_metrics_debug", "tpu_num_cores", "mp_parameters", "use_mps_device", "fp16_backend",
      "half_precision_backend", "fp16_opt_level", "fp16_full_eval"}},
    {"evaluation during the run never changes the training", {"eval_delay"}},
    {"lora-train generate and eval write answers",
     {"predict_with_generate", "generation_max_length", "generation_num_beams", "generation_config"}},
};

const std::vector<RefusedGroup> kTrainerRefused = {
    {"Noise on embeddings is not supported. Remove it.", {{"neftune_noise_alpha", {"0"}}}},
    {"Label smoothing is not supported. Remove it.", {{"label_smoothing_factor", {"0"}}}},
    {"Examples of similar length are not grouped: shuffle is on or off. Use packing, which wastes no padding either.",
     {{"group_by_length"}}},
    {"The last, smaller batch of an epoch is always trained. Remove it.", {{"dataloader_drop_last"}}},
    {"The loss is always the mean over all trained tokens of a step, on all devices. Remove it.",
     {{"average_tokens_across_devices", {"true"}}}},
    {"Only AdamW and 8-bit AdamW are supported. Use optim: adamw_torch or adamw_8bit.",
     {{"adafactor"}, {"optim_args"}, {"optim_target_modules"}}},
    {"The batch size is never found by trial and error. Use micro_batch_size: auto.", {{"auto_find_batch_size"}}},
    {"Use per_device_train_batch_size.", {{"per_gpu_train_batch_size"}, {"per_gpu_eval_batch_size"}}},
};

}  // namespace

const SameValue* ToolKeys::find_same(const std::string& name) const {
  const auto found = std::ranges::find_if(same, [&](const SameValue& entry) { return name == entry.name; });
  return found == same.end() ? nullptr : &*found;
}

const char* ToolKeys::find_idle(const std::string& name) const {
  for (const auto& group : idle) {
    if (has_name(group.names, name)) return group.reason;
  }
  return nullptr;
}

const RefusedKey* ToolKeys::find_refused(const std::string& name, const char** advice) const {
  for (const auto& group : refused) {
    for (const auto& key : group.keys) {
      if (name != key.name) continue;
      *advice = group.advice;
      return &key;
    }
  }
  return nullptr;
}

const char* ToolKeys::find_option(const std::string& name) const {
  for (const auto& group : options) {
    if (has_name(group.names, name)) return group.of;
  }
  return nullptr;
}

std::vector<std::string> ToolKeys::all() const {
  std::set<std::string> names(converted.begin(), converted.end());
  for (const auto& entry : same) names.insert(entry.name);
  for (const auto& group : idle) names.insert(group.names.begin(), group.names.end());
  for (const auto& group : options) names.insert(group.names.begin(), group.names.end());
  for (const auto& group : refused) {
    for (const auto& key : group.keys) names.insert(key.name);
  }
  return {names.begin(), names.end()};
}

const ToolKeys& keys_of(ForeignTool tool) {
  switch (tool) {
    case ForeignTool::kAxolotl: return axolotl_keys();
    case ForeignTool::kLlamaFactory: return llamafactory_keys();
    case ForeignTool::kTrl: break;
  }
  return trl_keys();
}

ToolKeys joined(ToolKeys base, const ToolKeys& more) {
  for (const auto& name : more.all()) remove_key(base, name);
  append(base.same, more.same);
  append(base.converted, more.converted);
  append(base.idle, more.idle);
  append(base.refused, more.refused);
  append(base.options, more.options);
  return base;
}

const ToolKeys& trl_keys() {
  static const ToolKeys keys = joined(trainer_keys(), own_trl_keys());
  return keys;
}

ToolKeys trainer_keys() {
  ToolKeys keys;
  keys.same = {{"learning_rate", "learning_rate"},
               {"weight_decay", "weight_decay"},
               {"adam_beta1", "adam_beta1"},
               {"adam_beta2", "adam_beta2"},
               {"adam_epsilon", "adam_epsilon"},
               {"max_grad_norm", "max_grad_norm"},
               {"num_train_epochs", "num_epochs"},
               {"seed", "seed"},
               {"per_device_train_batch_size", "micro_batch_size"},
               {"gradient_accumulation_steps", "gradient_accumulation_steps"},
               {"output_dir", "output_dir"},
               {"run_name", "run_name"},
               {"save_total_limit", "save_total_limit"},
               {"load_best_model_at_end", "load_best_model_at_end"},
               {"greater_is_better", "greater_is_better"},
               {"tf32", "tf32"},
               {"dataloader_num_workers", "dataloader_num_workers"},
               {"dataloader_pin_memory", "dataloader_pin_memory"},
               {"dataloader_prefetch_factor", "dataloader_prefetch_factor"},
               {"full_determinism", "deterministic"}};
  keys.converted = {"max_steps",
                    "lr_scheduler_type",
                    "lr_scheduler_kwargs",
                    "warmup_steps",
                    "warmup_ratio",
                    "optim",
                    "bf16",
                    "fp16",
                    "eval_strategy",
                    "evaluation_strategy",
                    "eval_steps",
                    "eval_on_start",
                    "save_strategy",
                    "save_steps",
                    "logging_steps",
                    "report_to",
                    "data_seed",
                    "gradient_checkpointing",
                    "deepspeed",
                    "use_cpu",
                    "no_cuda",
                    "metric_for_best_model",
                    "resume_from_checkpoint",
                    "train_sampling_strategy",
                    "per_device_eval_batch_size"};
  keys.idle = kTrainerIdle;
  keys.refused = kTrainerRefused;
  return keys;
}

}  // namespace lora_train
