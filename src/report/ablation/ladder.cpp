#include "lora_train/report/ablation/ladder.h"

#include <algorithm>

namespace lora_train::report {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

class Ladder {
 public:
  explicit Ladder(Values plain) : values_(std::move(plain)) { settings_.push_back({"plain", Rung::kStep, values_}); }

  /// One thing more.
  void step(const std::string& name, const std::string& key, const std::string& value) {
    set(values_, key, value);
    settings_.push_back({"+ " + name, Rung::kStep, values_});
  }

  /// The top with one thing changed.
  void variant(const std::string& name, const std::string& key, const std::string& value) {
    Values changed = values_;
    set(changed, key, value);
    settings_.push_back({name, Rung::kVariant, changed});
  }

  std::vector<Setting> take() { return std::move(settings_); }

 private:
  static void set(Values& values, const std::string& key, const std::string& value) {
    const auto found = std::ranges::find(values, key, &Values::value_type::first);
    if (found != values.end()) {
      found->second = value;
    } else {
      values.emplace_back(key, value);
    }
  }

  Values values_;
  std::vector<Setting> settings_;
};

}  // namespace

std::vector<Setting> make_ladder(const Profile& profile, const LadderOptions& options) {
  const bool trains_all = profile.adapter.kind == AdapterKind::kNone;
  Values plain = {{"precision", "fp32"},
                  {"gradient_checkpointing", "full"},
                  {"packing", "false"},
                  {"dataset_prepared_path", options.no_token_cache},
                  {"dataloader_num_workers", "0"},
                  {"save_steps", std::to_string(std::max(1LL, options.num_steps / 4))},
                  {"optim", "adamw_torch"}};
  if (!options.stores_quantised) plain.emplace_back("base_precision", "auto");
  if (options.is_gpu) {
    plain.insert(plain.end(), {{"tf32", "false"}, {"dataloader_pin_memory", "false"}, {"cuda_graphs", "off"}});
  }
  Ladder ladder(plain);
  if (options.is_gpu) ladder.step("tf32", "tf32", "true");
  ladder.step("bf16", "precision", "bf16");
  ladder.step("recomputation where needed", "gradient_checkpointing", "auto");
  ladder.step("packing", "packing", "true");
  const std::string& token_cache = profile.data.dataset_prepared_path;
  ladder.step("token cache", "dataset_prepared_path", token_cache.empty() ? "null" : token_cache);
  ladder.step("data workers", "dataloader_num_workers", "2");
  if (options.is_gpu) {
    ladder.step("page-locked memory", "dataloader_pin_memory", "true");
    ladder.step("CUDA graphs", "cuda_graphs", "auto");
  }
  ladder.step("no saves before the end", "save_steps", "off");
  ladder.variant("8-bit AdamW", "optim", "adamw_8bit");
  if (!trains_all && !options.stores_quantised) {
    ladder.variant("int8 base", "base_precision", "int8");
    ladder.variant("nf4 base", "base_precision", "nf4");
  }
  std::vector<Setting> settings = {{"your profile", Rung::kProfile, {}}};
  for (Setting& setting : ladder.take()) settings.push_back(std::move(setting));
  return settings;
}

std::string left_out(const LadderOptions& options) {
  return options.is_gpu ? "" : "no effect on a CPU, so left out: tf32, page-locked memory, CUDA graphs";
}

Values shared_values(long long num_steps, long long documents_per_step) {
  return {{"max_steps", std::to_string(num_steps)},
          {"num_epochs", "null"},
          {"batch_unit", "documents"},
          {"global_batch_size", std::to_string(documents_per_step)},
          {"lr_scaling", "none"},
          {"logging_steps", "1"},
          {"report_to", "none"},
          {"eval_steps", "off"},
          {"eval_on_start", "false"},
          {"eval_tasks", "[]"},
          {"metric_for_best_model", "null"},
          {"load_best_model_at_end", "false"},
          {"early_stopping_patience", "null"},
          {"save_interval", "off"},
          {"max_time", "off"},
          {"resume_from_checkpoint", "none"}};
}

}  // namespace lora_train::report
