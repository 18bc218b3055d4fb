// lora-train eval: the base or an adapter on the evaluation data.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "command_line.h"
#include "engine_loader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "profile_flags.h"
#include "registry.h"
#include "standard_output.h"

namespace lora_train::app {
namespace {

void print_json(const std::vector<train::EvalResult>& results) {
  for (const auto& result : results) {
    const nlohmann::ordered_json line = {{"name", result.name},
                                         {"loss", result.loss},
                                         {"perplexity", result.perplexity},
                                         {"token_accuracy", result.token_accuracy},
                                         {"ece", result.ece},
                                         {"num_tokens", result.num_tokens}};
    print_line(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
}

void print_table(const std::vector<train::EvalResult>& results) {
  std::size_t name_width = 4;
  for (const auto& result : results) name_width = std::max(name_width, result.name.size());
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, "%10s %12s %15s %8s %12s", "loss", "perplexity", "token accuracy", "ece",
                "tokens");
  print_line(std::string("name").append(name_width - 4, ' ') + numbers);
  for (const auto& result : results) {
    std::snprintf(numbers, sizeof numbers, "%10.4f %12.4f %14.2f%% %8.4f %12s", result.loss, result.perplexity,
                  100 * result.token_accuracy, result.ece, format_count(result.num_tokens).c_str());
    print_line(result.name + std::string(name_width - result.name.size(), ' ') + numbers);
  }
}

}  // namespace

int run_eval(const std::vector<std::string>& arguments) {
  CommandParser parser("eval",
                       "Loss, token accuracy and calibration error of the base or an adapter on eval_datasets.");
  const ProfileFlags flags(parser, {{"--model", "model", "folder, or org/name of the local Hugging Face cache"},
                                    {"--eval-data", "eval_datasets", "evaluation data: file, folder or glob"}});
  std::string adapter;
  parser.app()
      .add_option("--adapter", adapter, "PEFT folder; without it the base model is evaluated")
      ->type_name("DIR");
  if (!parser.parse(arguments)) return 0;

  ProfileSources sources = flags.sources();
  sources.needs_datasets = false;
  const LoadedProfile loaded = load_and_log(sources);
  refuse_unbuilt_features(loaded);
  const bool has_split = loaded.profile.val_set_size > 0 && !loaded.profile.datasets.empty();
  if (loaded.profile.eval_datasets.empty() && !has_split) {
    throw ConfigError("eval_datasets",
                      "nothing to evaluate on; expected eval_datasets, --eval-data FILE, or datasets "
                      "with val_set_size.");
  }
  const auto results = load_engine().evaluate({.profile = loaded.profile, .adapter = adapter});
  if (parser.common().json) {
    print_json(results);
  } else {
    print_table(results);
  }
  return 0;
}

}  // namespace lora_train::app
