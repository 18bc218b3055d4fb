// lora-train train: the run.
#include <algorithm>

#include "command_line.h"
#include "engine/engine_loader.h"
#include "engine/launcher.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "output/standard_output.h"
#include "profile_flags.h"
#include "registry.h"

namespace lora_train::app {
namespace {

void refuse_unknown_key(const CommandParser& parser, const std::string& key) {
  const std::vector<std::string> keys = profile_keys();
  if (std::find(keys.begin(), keys.end(), key) != keys.end()) return;
  const std::string nearest = nearest_name(key, keys);
  parser.refuse("--allow-changed",
                "\"" + key + "\" is not a key." + (nearest.empty() ? "" : " Did you mean \"" + nearest + "\"?"));
}

}  // namespace

int run_train(const std::vector<std::string>& arguments) {
  // To the end of the process: a signal that comes after the run must not turn its exit code into another.
  [[maybe_unused]] static const auto* const stop_requests = new StopRequests;
  CommandParser parser(
      "train", "Fine-tunes a model as a profile describes. To resume a stopped run, run the same command again.");
  const ProfileFlags flags(parser,
                           {{"--model", "model", "model folder, or org/name in the local Hugging Face cache"},
                            {"--train-data", "datasets", "training data: file, folder or glob"},
                            {"--eval-data", "eval_datasets", "evaluation data: file, folder or glob"},
                            {"--output-dir", "output_dir", "output folder of the run"},
                            {"--resume", "resume_from_checkpoint", "auto, none or a checkpoint folder"},
                            {"--max-time", "max_time", "save a checkpoint and stop after this time, such as 2h30m"}});
  train::TrainRequest request;
  int num_processes = 1;
  parser.add_list("--allow-changed", request.allow_changed, "let this key differ from the resumed run; repeatable")
      ->type_name("KEY");
  parser.app().add_flag("--overwrite", request.overwrite, "delete the run in output_dir and start over");
  parser.app().add_flag("--dry-run", request.dry_run,
                        "do everything up to step 1, including a pass over the largest batch");
  parser.app().add_option("--nproc", num_processes, "number of local processes to start (only 1 so far)");
  if (!parser.parse(arguments)) return 0;
  for (const auto& key : request.allow_changed) refuse_unknown_key(parser, key);
  if (num_processes != 1) parser.refuse("--nproc", "more than one process is not supported yet; expected 1.");
  if (const std::string launched = several_processes(process_environment); !launched.empty()) {
    throw ConfigError(launched, "more than one process is not supported yet; start one, without a launcher.");
  }

  const LoadedProfile loaded = load_and_log(flags.sources());
  refuse_unbuilt_features(loaded);
  request.profile = loaded.profile;
  request.profile_hash = profile_hash(loaded.profile);
  request.quiet = parser.common().quiet;

  const train::TrainResult result = load_engine().train(request);
  if (parser.common().json) print_line(result.summary_json);
  return result.exit_code;
}

}  // namespace lora_train::app
