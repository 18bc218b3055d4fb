#include <algorithm>

#include "converter.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "tool_keys.h"
#include "training_keys.h"

namespace lora_train {
namespace {

constexpr const char* kFactoryAdapterKeys[] = {
    "lora_rank", "lora_alpha",           "lora_dropout",      "lora_target",        "use_rslora", "loraplus_lr_ratio",
    "use_dora",  "adapter_name_or_path", "additional_target", "create_new_adapter", "pissa_init"};

// The adapter that the run starts from. Returns whether there is one.
bool convert_factory_first_adapter(Converter& converter) {
  const std::string adapter = converter.text("adapter_name_or_path");
  if (adapter.empty()) return false;
  if (adapter.find(',') != std::string::npos) {
    converter.refuse("adapter_name_or_path",
                     "A run starts from one adapter. Merge the others first: lora-train merge.");
    return true;
  }
  const std::string folder = converter.text("adapter_folder");
  converter.set("adapter_name_or_path", "init_adapter", folder.empty() ? adapter : folder + "/" + adapter);
  if (!folder.empty()) converter.share("adapter_folder", "init_adapter");
  return true;
}

void convert_factory_adapter(Converter& converter) {
  const std::string kind = converter.text_or("finetuning_type", "lora");
  if (kind == "full") {
    converter.set("finetuning_type", "adapter", "none");
    for (const char* key : kFactoryAdapterKeys) {
      if (converter.find(key)) converter.drop(key, "finetuning_type: full ignores it");
    }
    return;
  }
  if (kind == "lora") {
    converter.find("finetuning_type") ? converter.set("finetuning_type", "adapter", "lora")
                                      : converter.set_default("adapter", "lora");
  } else {
    converter.refuse("finetuning_type", kind + " is not supported. Use lora or full.");
  }
  refuse_dora(converter, "use_dora", "use_rslora");
  if (converter.find("create_new_adapter") && converter.text("adapter_name_or_path").empty()) {
    converter.drop("create_new_adapter", "applies only with adapter_name_or_path");
  }
  if (convert_factory_first_adapter(converter)) {
    drop_shape_of_adapter(converter, {"lora_rank", "lora_alpha", "lora_target", "use_rslora"});
    return;
  }
  const auto rank = converter.number("lora_rank");
  if (!rank) converter.set_default("lora_r", "8");
  converter.set_default("lora_alpha", number_value(2 * rank.value_or(8)), "LLaMA-Factory's default is twice the rank");
  if (const Value* target = converter.find("lora_target")) {
    if (target->text == "all") {
      converter.set("lora_target", "lora_target_modules", "all-linear");
    } else {
      convert_targets(converter, "lora_target");
    }
  }
}

void convert_factory_stage(Converter& converter) {
  const std::string stage = converter.text("stage");
  if (stage == "sft") converter.drop("stage", "sft matches what happens anyway");
  if (stage.empty() || stage == "sft") return;
  if (stage == "pt") {
    converter.set("stage", "loss_on", "all");
    converter.note("stage",
                   "each text is a document of its own; LLaMA-Factory joins texts and cuts them at cutoff_len");
  } else {
    converter.refuse("stage",
                     "Preference training, rewards and reinforcement learning are not supported. Train on the chosen "
                     "answers: stage: sft.");
  }
}

void convert_factory_base_precision(Converter& converter) {
  const std::string bits = converter.text("quantization_bit");
  if (!bits.empty() && converter.is_set_to("adapter", "none")) {
    converter.refuse("quantization_bit", "Quantised weights are not trained. Use finetuning_type: lora, or remove it.");
  } else if (bits == "4" || bits == "8") {
    converter.set("quantization_bit", "base_precision", bits == "4" ? "nf4" : "int8");
    if (bits == "8")
      converter.note("quantization_bit",
                     "only weights are int8 here; bitsandbytes also rounds the activations of its products");
  } else if (!bits.empty()) {
    converter.refuse("quantization_bit", "Weights are stored in 4 or 8 bits: base_precision: nf4, int8 or fp8.");
  }
  for (const auto& [key, words] :
       {std::pair{"quantization_method", "bnb bitsandbytes"}, {"quantization_type", "nf4"}}) {
    const std::string word = lower_case(converter.text(key));
    if (word.empty()) continue;
    if ((fmt::format(" {} ", words)).find(fmt::format(" {} ", word)) != std::string::npos) {
      converter.drop(key, word + " matches what happens anyway");
    } else if (bits.empty()) {
      converter.drop(key, "applies only with quantization_bit");
    } else {
      converter.refuse(key, "Quantised weights are bitsandbytes' nf4 or int8, or fp8. Remove it.");
    }
  }
  convert_precision(converter, "bf16");
  if (converter.is_true("pure_bf16")) {
    converter.set("pure_bf16", "precision", "bf16");
    converter.note("pure_bf16", "trained weights stay in fp32, as with bf16: true");
  }
}

void convert_factory_loss(Converter& converter) {
  const auto when_true = [&](const std::string& key, const std::string& ours, const std::string& value) {
    if (converter.is_true(key)) {
      converter.set(key, ours, value);
    }
  };
  when_true("train_on_prompt", "loss_on", "all");
  if (converter.is_true("train_on_prompt") && converter.is_true("mask_history")) {
    converter.refuse("mask_history", "train_on_prompt is also true, which LLaMA-Factory refuses. Keep one.");
  } else {
    when_true("mask_history", "loss_on", "last");
  }
  when_true("use_dft_loss", "loss_type", "dft");
  when_true("disable_shuffling", "shuffle", "false");
  when_true("disable_gradient_checkpointing", "gradient_checkpointing", "off");
}

void note_skipped_examples(Converter& converter, const std::vector<DataEntry>& train) {
  const auto is_chat = [](const DataEntry& entry) { return entry.type == "messages" || entry.type == "sharegpt"; };
  if (!std::ranges::any_of(train, is_chat)) return;
  converter.note(
      "dataset",
      "LLaMA-Factory skips chats that begin with the assistant, end with the user, or in which the two do not take "
      "turns; here their answers are trained, unless the chat template refuses such an example, which is then a bad "
      "example (on_bad_row: drop leaves it out)");
}

// Returns whether there is evaluation data.
bool convert_factory_data(Converter& converter, const std::vector<DataEntry>& train) {
  if (!train.empty()) converter.set("dataset", "datasets", to_value(train));
  const auto test = convert_llamafactory_datasets(converter, "eval_dataset");
  if (!test.empty()) converter.set("eval_dataset", "eval_datasets", to_value(test));
  const bool has_data = converter.find("dataset") || converter.find("eval_dataset");
  if (converter.find("dataset_dir")) {
    if (!train.empty()) converter.share("dataset_dir", "datasets");
    if (train.empty() && !test.empty()) converter.share("dataset_dir", "eval_datasets");
    if (train.empty() && test.empty())
      converter.drop("dataset_dir", has_data ? "dataset decides" : "no dataset is named");
  }
  if (converter.find("max_samples") && !converter.is_refused("max_samples")) {
    if (converter.is_refused("dataset") || converter.is_refused("eval_dataset")) {
      converter.drop("max_samples", "belongs to the dataset, which is refused");
    } else if (!converter.number("max_samples") || *converter.number("max_samples") < 1) {
      converter.refuse("max_samples", "expected a number of examples.");
    } else {
      const auto is_cut = [](const DataEntry& entry) { return entry.max_samples.has_value(); };
      if (std::ranges::any_of(train, is_cut)) converter.share("max_samples", "datasets");
      if (std::ranges::any_of(test, is_cut)) converter.share("max_samples", "eval_datasets");
      converter.drop("max_samples", has_data ? "no file has more examples" : "no dataset is named");
    }
  }
  const double held_out = converter.number("val_size").value_or(0);
  if (held_out > 0 && converter.find("eval_dataset")) {
    converter.refuse("val_size", "eval_dataset is set too, which LLaMA-Factory refuses. Keep one.");
  } else if (held_out > 0) {
    convert_held_out(converter, "val_size");
  }
  if (converter.find("val_size") && held_out <= 0) converter.drop("val_size", "nothing is held out");
  return held_out > 0 || converter.find("eval_dataset");
}

void convert_factory_packing(Converter& converter) {
  const bool is_neat = converter.is_true("neat_packing");
  if (is_neat) converter.set("neat_packing", "packing", "true");
  if (converter.find("neat_packing") && !is_neat)
    converter.drop("neat_packing", "documents in a row never see each other");
  if (converter.find("packing")) {
    is_neat ? converter.share("packing", "packing") : converter.keep("packing", "packing");
    if (!is_neat && converter.is_true("packing")) {
      converter.note("packing", "documents in a row never see each other here, as with neat_packing: true");
    }
  } else if (!is_neat) {
    converter.set_default("packing", converter.text("stage") == "pt" ? "true" : "false");
  }
  converter.set_default(
      "overlength", "truncate",
      "LLaMA-Factory cuts each prompt and answer in proportion; here the end of an example is cut, and one whose "
      "prompt leaves no room is dropped: raise max_seq_len if there are any");
  if (!converter.find("cutoff_len")) converter.set_default("max_seq_len", "2048");
}

void convert_factory_tokens(Converter& converter) {
  for (const char* key : {"add_tokens", "add_special_tokens"}) {
    const Value* value = converter.find(key);
    if (!value) continue;
    std::vector<Value> tokens;
    std::string token;
    for (const char c : value->text + ",") {
      if (c != ',') {
        token += c;
      } else if (!token.empty()) {
        tokens.push_back(text_value(std::exchange(token, "")));
      }
    }
    const Value names = value->is_list() ? *value : list_value(tokens);
    converter.set(key, "add_tokens", std::string(key) == "add_tokens" ? names : verbatim_tokens(names));
  }
  const std::string start = converter.text("init_special_tokens");
  if (start.empty()) return;
  if (start == "noise_init" || start == "desc_init") {
    converter.set("init_special_tokens", "token_init", start == "desc_init" ? "description" : "mean");
  } else {
    converter.refuse("init_special_tokens",
                     "New rows start as the mean of all rows, or of the rows of a text's tokens: use token_init.");
  }
}

const std::vector<IdleGroup> kFactoryIdle = {
    {"the token cache is lora-train's own",
     {"overwrite_cache", "preprocessing_num_workers", "preprocessing_batch_size", "tokenized_path", "streaming",
      "buffer_size", "data_shared_file_system"}},
    {"padding is never computed", {"ignore_pad_token_for_loss"}},
    {"attention is chosen for the device; the numbers agree", {"flash_attn"}},
    {"the kernels are lora-train's own; the numbers agree",
     {"use_unsloth", "use_unsloth_gc", "enable_liger_kernel", "use_v1_kernels", "use_reentrant_gc"}},
    {"applies only to adapters on embeddings, and embeddings get none", {"loraplus_lr_embedding"}},
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
    {"images, video and audio are not supported, and text examples need none of it",
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
    {"runs work offline; TensorBoard files are in output_dir/tensorboard",
     {"use_swanlab", "swanlab_project", "swanlab_workspace", "swanlab_run_name", "swanlab_mode", "swanlab_api_key",
      "swanlab_logdir", "swanlab_lark_webhook_url", "swanlab_lark_secret"}},
    {"ranks come from torchrun, mpirun, srun or --nproc",
     {"ray_num_workers", "ray_init_kwargs", "master_addr", "master_port", "use_mca", "use_hyper_parallel",
      "hyper_parallel_args"}},
};

const std::vector<RefusedGroup> kFactoryRefused = {
    {"Only AdamW and 8-bit AdamW are supported. Remove it.",
     {{"use_galore"}, {"use_apollo"}, {"use_badam"}, {"use_adam_mini"}, {"use_muon"}}},
    {"Only cross entropy and DFT are supported. Remove it, or set use_dft_loss.",
     {{"use_asft_loss"}, {"use_eaft_loss"}}},
    {"This kind of training is not supported. Use finetuning_type: lora or full.",
     {{"use_llama_pro"}, {"freeze_language_model"}, {"mixture_of_depths"}, {"train_from_scratch"}, {"use_kt"}}},
    {"An adapter starts as PEFT's (A Kaiming-uniform, B zero). Save yours as a PEFT folder and use init_adapter.",
     {{"pissa_init"}}},
    {"Merge the old adapter first: lora-train merge.", {{"create_new_adapter"}}},
    {"Whole modules cannot be trained alongside an adapter. Remove it, or use finetuning_type: full.",
     {{"additional_target"}}},
    {"The model's positions stay as config.json has them. Put rope_scaling there.", {{"rope_scaling"}}},
    {"Attention is always full. Remove it.", {{"shift_attn"}}},
    {"Products are not computed in FP8. Remove it; base_precision: fp8 stores the weights in FP8.", {{"fp8"}}},
    {"Datasets are concatenated. Use `weight` in `datasets` for other shares.",
     {{"mix_strategy", {"concat"}}, {"interleave_probs"}}},
    {"Only chatml, qwen, qwen3_nothink, default, alpaca and mistral can include it. Put the system prompt into the "
     "examples.",
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

void convert_llamafactory(Converter& converter) {
  convert_model(converter, "model_name_or_path", "model_revision");
  convert_factory_stage(converter);
  convert_factory_adapter(converter);
  convert_factory_base_precision(converter);
  auto train = convert_llamafactory_datasets(converter, "dataset");
  weigh_interleaved_datasets(converter, train);
  convert_llamafactory_template(converter, train);
  convert_factory_loss(converter);
  note_skipped_examples(converter, train);
  const bool has_eval_data = convert_factory_data(converter, train);
  convert_factory_packing(converter);
  convert_factory_tokens(converter);
  convert_trainer(converter, 5e-5, 500, has_eval_data);
  convert_best_model(converter, "early_stopping_steps", has_eval_data);
}

const ToolKeys& llamafactory_keys() {
  static const ToolKeys keys = joined(trainer_keys(), own_factory_keys());
  return keys;
}

}  // namespace lora_train
