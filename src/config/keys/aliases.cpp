#include "lora_train/config/keys/aliases.h"

#include "lora_train/base/text.h"

namespace lora_train {

Value verbatim_tokens(const Value& names) {
  Value tokens = list_value({});
  tokens.place = names.place;
  for (const Value& name : items_of(names)) {
    Value token = name;
    if (name.is_scalar()) {
      token = map_value({{"token", name}});
      token.place = name.place;
    }
    token.members.push_back({"normalized", bool_value(false)});
    tokens.items.push_back(std::move(token));
  }
  return tokens;
}

namespace {

// Keys of later versions, with the values that match what happens anyway.
constexpr std::pair<const char*, const char*> kReserved[] = {
    {"base_placement", "auto"},     {"base_shard_size", "auto"},   {"host_memory_gib", "auto"},
    {"context_parallel_size", "1"}, {"fp8_products", ""},          {"fp8_linears", "all"},
    {"lora_expert_r", ""},          {"router_aux_loss_coef", "0"}, {"neftune_noise_alpha", "0"},
    {"layers_to_transform", ""},    {"exclude_modules", ""}};
constexpr std::pair<const char*, const char*> kPreference[] = {
    {"beta", "0.1"},       {"label_smoothing", "0"},  {"simpo_gamma", "0.5"},
    {"orpo_alpha", "0.1"}, {"desirable_weight", "1"}, {"undesirable_weight", "1"},
    {"sft_weight", "0"},   {"ld_alpha", ""},          {"precompute_ref_log_probs", "auto"}};

std::vector<RefusedName> with_reserved(std::vector<RefusedName> names) {
  for (const auto& [name, harmless] : kReserved) names.push_back({name, "is not built yet. Remove it.", harmless});
  for (const auto& [name, harmless] : kPreference)
    names.push_back({name,
                     "is preference training, which is not built yet. Remove it, and train on the chosen answers.",
                     harmless});
  return names;
}

}  // namespace

const std::vector<RefusedName>& refused_names() {
  constexpr const char* kModules =
      "whole modules cannot be trained alongside an adapter. Remove it, or set adapter: none to train all weights.";
  constexpr const char* kRows =
      "rows of existing tokens are not trained alongside an adapter. Name new tokens in add_tokens, or set adapter: "
      "none to train all weights.";
  constexpr const char* kSharding =
      "the model is never sharded. Remove it; to save memory, set gradient_checkpointing: full.";
  constexpr const char* kRanks =
      "the number of ranks comes from torchrun, mpirun, srun or --nproc, never from a profile.";
  constexpr const char* kMerge =
      "merging is a separate command: lora-train merge --model M --adapter A --output-dir O.";
  static const std::vector<RefusedName> table = with_reserved({
      {"fp16",
       "is not supported: fp16 needs loss scaling and overflows in large models, and all supported GPUs (Ampere and "
       "later) have bf16. Use precision: bf16.",
       "", true},
      {"scale", "mlx's scale is alpha / r. Set lora_alpha to scale times lora_r.", ""},
      {"init_lora_weights",
       "the adapter starts with PEFT's default (A Kaiming-uniform, B zero). To start from another, save it as a PEFT "
       "folder and use init_adapter.",
       "true"},
      {"modules_to_save", kModules, ""},
      {"trainable_token_indices", kRows, ""},
      {"train_token_rows", kRows, "", true},
      {"zero_stage", kSharding, ""},
      {"zero_level", kSharding, ""},
      {"gpus", kRanks, ""},
      {"nproc", kRanks, ""},
      {"merge_lora", kMerge, "", true},
      {"merge_adapter", kMerge, "", true},
      {"loss_scale", "use loss_on: assistant | last | completion | all.", ""},
      {"max_samples",
       "it cuts the training data in some programs and the evaluation data in others. Use max_samples in an entry of "
       "datasets, or eval_max_samples.",
       ""},
      {"val_batches", "use eval_max_samples (documents).", ""},
      {"lora_dtype", "LoRA weights are always fp32 in training. save_dtype: bf16 makes a smaller adapter/.", ""},
      {"quant_type", "base_precision names the format: nf4, int8 or fp8.", "nf4"},
  });
  return table;
}

const std::vector<std::vector<std::string>>& alternative_groups() {
  static const std::vector<std::vector<std::string>> groups = {
      {"global_batch_size", "gradient_accumulation_steps"},
      {"warmup_ratio", "warmup_steps"},
      {"eval_datasets", "val_set_size"},
  };
  return groups;
}

std::string metric_from(const std::string& theirs) {
  std::string name = lower_case(theirs);
  if (name.starts_with("eval_")) name.erase(0, std::string("eval_").size());
  if (name == "loss") return "eval_loss";
  if (name == "perplexity") return name;
  return name == "accuracy" || name == "mean_token_accuracy" ? "token_accuracy" : "";
}

}  // namespace lora_train
