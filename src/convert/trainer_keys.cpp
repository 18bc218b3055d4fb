// transformers.TrainingArguments 4.56 to 5.17.
#include "tool_keys.h"

namespace lora_train {

namespace {

const std::vector<IdleGroup> kTrainerIdle = {
    {"what is computed comes from the command", {"do_train", "do_eval", "do_predict"}},
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
    {"answers are written by lora-train generate and eval",
     {"predict_with_generate", "generation_max_length", "generation_num_beams", "generation_config"}},
};

const std::vector<RefusedGroup> kTrainerRefused = {
    {"Noise on embeddings is not supported. Remove it.", {{"neftune_noise_alpha", {"0"}}}},
    {"Label smoothing is not supported. Remove it.", {{"label_smoothing_factor", {"0"}}}},
    {"Rows of like length are not grouped: shuffle is on or off. Use packing, which wastes no padding either.",
     {{"group_by_length"}}},
    {"The last, smaller batch of an epoch is always trained. Remove it.", {{"dataloader_drop_last"}}},
    {"The loss is always the mean over all trained tokens of a step, on all devices. Remove it.",
     {{"average_tokens_across_devices", {"true"}}}},
    {"Only AdamW and 8-bit AdamW are built. Use optim: adamw_torch or adamw_8bit.",
     {{"adafactor"}, {"optim_args"}, {"optim_target_modules"}}},
    {"The batch size is never searched for by failing. Use micro_batch_size: auto.", {{"auto_find_batch_size"}}},
    {"Use per_device_train_batch_size.", {{"per_gpu_train_batch_size"}, {"per_gpu_eval_batch_size"}}},
};

}  // namespace

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
