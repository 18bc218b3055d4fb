// lora-train check: a profile and the headers of its model, without a GPU, data or weights being touched.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command_line.h"
#include "engine/engine_loader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/config/check.h"
#include "lora_train/model/model_config.h"
#include "lora_train/model/stored_linear.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/resolve_model.h"
#include "output/standard_output.h"
#include "profile_flags.h"
#include "registry.h"

namespace lora_train::app {
namespace {

void print_shipped_profiles(bool json) {
  for (const auto& profile : shipped_profiles(program_folder() / "configs")) {
    if (json) {
      print_line(nlohmann::ordered_json(
                     {{"name", profile.name}, {"file", profile.file.string()}, {"summary", profile.summary}})
                     .dump());
      continue;
    }
    std::string line = profile.name + "  ";
    if (line.size() < 16) line.resize(16, ' ');
    print_line(line + profile.summary);
  }
}

/// Refuses the model folder as the run would: config.json, the index, the headers of the weights and the scales of quantised
/// ones are read, no other tensor is. A name of the Hugging Face cache may be meant for another machine.
void check_model_folder(const std::string& model) {
  if (!std::filesystem::exists(model)) return;
  const std::filesystem::path folder = storage::resolve_model(model).folder;
  const model::ModelConfig config = model::read_model_config(folder);
  const storage::WeightFiles weights = storage::open_model_weights(folder);
  model::check_weights(config, weights);
  log_info(folder.string() + ": " + model::linear_formats(config, weights));
}

/// Says whether what the profile pins fits the GPU that it is meant for. Only then is the engine loaded.
void check_target_gpu(const Profile& profile) {
  const auto gpu = target_gpu(profile);
  const bool is_pinned =
      profile.schedule.micro_batch_size || profile.run.gradient_checkpointing != GradientCheckpointing::kAuto;
  if (!gpu || !is_pinned) return;
  try {
    storage::resolve_model(profile.model.path);
  } catch (const Error&) {  // meant for another machine
    return;
  }
  const EngineApi* engine = nullptr;
  try {
    engine = &load_engine();
  } catch (const Error& error) {
    log_info("target_gpu: whether the run fits " + gpu->name + " is not known without LibTorch: " + error.what());
    return;
  }
  const std::string misfit = engine->check_fit({profile, *gpu});
  if (!misfit.empty()) log_warning("target_gpu: " + gpu->name + ": " + misfit);
}

}  // namespace

int run_check(const std::vector<std::string>& arguments) {
  CommandParser parser("check",
                       "Validates a profile without touching a GPU, and prints every value and where it came "
                       "from.");
  const ProfileFlags flags(parser, {});
  bool ignores_files = false, lists_profiles = false;
  std::string key_filter;
  parser.app().add_flag("--no-files", ignores_files, "do not check that the files named in the profile exist");
  parser.app().add_flag("--list", lists_profiles, "list the shipped profiles");
  const CLI::Option* const keys = parser.app()
                                      .add_option("--keys", key_filter, "explain every key, or those that contain TEXT")
                                      ->expected(0, 1)
                                      ->type_name("TEXT");
  if (!parser.parse(arguments)) return 0;
  if (lists_profiles) {
    print_shipped_profiles(parser.common().json);
    return 0;
  }
  if (keys->count() > 0) {
    print_text(parser.common().json ? keys_json(key_filter) : keys_table(key_filter));
    return 0;
  }
  if (flags.is_empty()) parser.refuse("--profile", "no profile; expected --profile FILE, or key=value.");

  ProfileSources sources = flags.sources();
  sources.needs_datasets = !flags.are_shipped();
  const LoadedProfile loaded = load_and_log(sources);
  if (loaded.profile.data.datasets.empty()) log_info("datasets: none set; pass yours to train with --train-data FILE");
  for (const auto& line : unbuilt_features(loaded.profile)) log_warning(line);
  if (!ignores_files) {
    refuse_missing_files(loaded);
    check_model_folder(loaded.profile.model.path);
    check_target_gpu(loaded.profile);
  }
  if (parser.common().json) {
    print_line(to_json(loaded.profile));
  } else {
    print_text(to_yaml(loaded));
  }
  return 0;
}

}  // namespace lora_train::app
