// LLaMA-Factory's arguments of a model, its data, the training and generation.
#include "tool_keys.h"

namespace lora_train {

namespace {

const std::vector<IdleGroup> kFactoryIdle = {
    {"the token cache is lora-train's own",
     {"overwrite_cache", "preprocessing_num_workers", "preprocessing_batch_size", "tokenized_path", "streaming",
      "buffer_size", "data_shared_file_system"}},
    {"padding is never computed", {"ignore_pad_token_for_loss"}},
    {"attention is chosen for the device; the numbers agree", {"flash_attn"}},
    {"the kernels are lora-train's own; the numbers agree",
     {"use_unsloth", "use_unsloth_gc", "enable_liger_kernel", "use_v1_kernels", "use_reentrant_gc"}},
    {"it is for adapters on embeddings, which get none", {"loraplus_lr_embedding"}},
    {"norms, softmax and the loss are computed in fp32", {"upcast_layernorm", "upcast_lmhead_output"}},
    {"mixture-of-experts models are not supported", {"moe_aux_loss_coef"}},
    {"code from a model folder is never run", {"trust_remote_code"}},
    {"the model comes from its folder or the local Hugging Face cache",
     {"cache_dir", "hf_hub_token", "ms_hub_token", "om_hub_token", "low_cpu_mem_usage", "offload_folder", "device_map",
      "quantization_device_map", "model_max_length", "block_diag_attn", "compute_dtype"}},
    {"tokenizer.json is read by lora-train's own tokenizer", {"use_fast_tokenizer"}},
    {"training keeps no KV cache", {"use_kv_cache"}},
    {"the report has the curves, and token accuracy is always measured",
     {"plot_loss", "compute_accuracy", "include_effective_tokens_per_second", "print_param_status"}},
    {"images, video and audio are not supported, and text rows need none of it",
     {"media_dir", "image_max_pixels", "image_min_pixels", "image_do_pan_and_scan", "crop_to_patches",
      "video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen", "use_audio_in_video", "audio_sampling_rate",
      "freeze_vision_tower", "freeze_multi_modal_projector"}},
    {"it is for inference: lora-train generate",
     {"infer_backend",       "infer_dtype",         "vllm_maxlen",    "vllm_gpu_util",
      "vllm_enforce_eager",  "vllm_max_lora_rank",  "vllm_config",    "sglang_maxlen",
      "sglang_mem_fraction", "sglang_tp_size",      "sglang_config",  "sglang_lora_backend",
      "do_sample",           "temperature",         "top_p",          "top_k",
      "num_beams",           "max_length",          "max_new_tokens", "repetition_penalty",
      "length_penalty",      "skip_special_tokens", "eval_num_beams"}},
    {"it is for export: lora-train merge",
     {"export_dir", "export_size", "export_device", "export_quantization_bit", "export_quantization_dataset",
      "export_quantization_nsamples", "export_quantization_maxlen", "export_legacy_format", "export_hub_model_id"}},
    {"a run is measured in metrics.jsonl; the profiler is PyTorch's",
     {"enable_torch_profiler", "profiler_output_dir", "profiler_wait_steps", "profiler_warmup_steps",
      "profiler_active_steps", "profiler_repeat", "profiler_record_shapes", "profiler_profile_memory",
      "profiler_with_stack", "profile_modules"}},
    {"a run never touches the network; TensorBoard files are in output_dir/tensorboard",
     {"use_swanlab", "swanlab_project", "swanlab_workspace", "swanlab_run_name", "swanlab_mode", "swanlab_api_key",
      "swanlab_logdir", "swanlab_lark_webhook_url", "swanlab_lark_secret"}},
    {"ranks come from torchrun, mpirun, srun or --nproc",
     {"ray_num_workers", "ray_init_kwargs", "master_addr", "master_port", "use_mca", "use_hyper_parallel",
      "hyper_parallel_args"}},
};

const std::vector<RefusedGroup> kFactoryRefused = {
    {"Only AdamW and 8-bit AdamW are built. Remove it.",
     {{"use_galore"}, {"use_apollo"}, {"use_badam"}, {"use_adam_mini"}, {"use_muon"}}},
    {"Only cross entropy and DFT are built. Remove it, or set use_dft_loss.", {{"use_asft_loss"}, {"use_eaft_loss"}}},
    {"This kind of training is not built. Use finetuning_type: lora or full.",
     {{"use_llama_pro"}, {"freeze_language_model"}, {"mixture_of_depths"}, {"train_from_scratch"}, {"use_kt"}}},
    {"An adapter starts as PEFT's (A Kaiming-uniform, B zero). Save yours as a PEFT folder and use init_adapter.",
     {{"pissa_init"}}},
    {"Merge the old adapter first: lora-train merge.", {{"create_new_adapter"}}},
    {"Whole modules cannot be trained beside an adapter. Remove it, or use finetuning_type: full.",
     {{"additional_target"}}},
    {"The model's positions stay as config.json has them. Put rope_scaling there.", {{"rope_scaling"}}},
    {"Attention is always complete. Remove it.", {{"shift_attn"}}},
    {"Products are not computed in FP8. Remove it; base_precision: fp8 stores the weights so.", {{"fp8"}}},
    {"Datasets are concatenated. Use `weight` in `datasets` for other shares.",
     {{"mix_strategy", {"concat"}}, {"interleave_probs"}}},
    {"Only chatml, qwen, qwen3_nothink, default, alpaca and mistral are written with it. Put the system prompt into "
     "the rows.",
     {{"default_system"}}},
    {"The chat template decides this. Use a .jinja file as chat_template.",
     {{"enable_thinking", {"true"}}, {"preserve_thinking"}, {"tool_format"}}},
    {"Special tokens are always read as such. Remove it.", {{"split_special_tokens"}}},
    {"The embedding grows with add_tokens. Name the tokens there.", {{"resize_vocab"}}},
    {"Give the tokens and their texts as add_tokens: [{token: ..., init_text: ...}].", {{"new_special_tokens_config"}}},
};

const std::vector<OptionGroup> kFactoryOptions = {
    {"stage: dpo, kto, rm or ppo",
     {"pref_beta",
      "pref_ftx",
      "pref_bco_weight",
      "pref_loss",
      "dpo_label_smoothing",
      "kto_chosen_weight",
      "kto_rejected_weight",
      "simpo_gamma",
      "ld_alpha",
      "ppo_buffer_size",
      "ppo_epochs",
      "ppo_score_norm",
      "ppo_target",
      "ppo_whiten_rewards",
      "ref_model",
      "ref_model_adapters",
      "ref_model_quantization_bit",
      "reward_model",
      "reward_model_adapters",
      "reward_model_quantization_bit",
      "reward_model_type"}},
    {"finetuning_type: freeze", {"freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"}},
    {"finetuning_type: oft", {"oft_rank", "oft_block_size", "oft_target", "module_dropout"}},
    {"use_galore",
     {"galore_target", "galore_rank", "galore_update_interval", "galore_scale", "galore_proj_type",
      "galore_layerwise"}},
    {"use_apollo",
     {"apollo_target", "apollo_rank", "apollo_update_interval", "apollo_scale", "apollo_proj", "apollo_proj_type",
      "apollo_scale_type", "apollo_layerwise", "apollo_scale_front"}},
    {"use_badam",
     {"badam_mode", "badam_start_block", "badam_switch_mode", "badam_switch_interval", "badam_update_ratio",
      "badam_mask_mode", "badam_verbose"}},
    {"use_asft_loss", {"asft_alpha"}},
    {"use_eaft_loss", {"eaft_alpha"}},
    {"pissa_init", {"pissa_iter", "pissa_convert"}},
    {"fp8", {"fp8_backend", "fp8_enable_fsdp_float8_all_gather"}},
    {"use_kt",
     {"kt_weight_path", "kt_expert_checkpoint_path", "kt_use_lora_experts", "kt_lora_expert_num",
      "kt_lora_expert_intermediate_size"}},
    {"eval_dataset: evaluation files each have a name and a loss", {"eval_on_each_dataset"}},
};

ToolKeys own_factory_keys() {
  ToolKeys keys;
  keys.same = {{"lora_rank", "lora_r"},
               {"lora_alpha", "lora_alpha"},
               {"lora_dropout", "lora_dropout"},
               {"use_rslora", "use_rslora"},
               {"loraplus_lr_ratio", "loraplus_lr_ratio"},
               {"double_quantization", "double_quant"},
               {"cutoff_len", "max_seq_len"}};
  keys.converted = {"stage",
                    "finetuning_type",
                    "model_name_or_path",
                    "model_revision",
                    "adapter_name_or_path",
                    "adapter_folder",
                    "lora_target",
                    "use_dora",
                    "quantization_bit",
                    "quantization_method",
                    "quantization_type",
                    "template",
                    "dataset",
                    "dataset_dir",
                    "eval_dataset",
                    "val_size",
                    "max_samples",
                    "packing",
                    "neat_packing",
                    "train_on_prompt",
                    "mask_history",
                    "use_dft_loss",
                    "disable_shuffling",
                    "disable_gradient_checkpointing",
                    "pure_bf16",
                    "add_tokens",
                    "add_special_tokens",
                    "init_special_tokens",
                    "early_stopping_steps"};
  keys.idle = kFactoryIdle;
  keys.refused = kFactoryRefused;
  keys.options = kFactoryOptions;
  return keys;
}

}  // namespace

const ToolKeys& llamafactory_keys() {
  static const ToolKeys keys = joined(trainer_keys(), own_factory_keys());
  return keys;
}

}  // namespace lora_train
