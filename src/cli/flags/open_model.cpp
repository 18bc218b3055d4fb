#include "open_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/report/run_log.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/run_folder/output_folder.h"
#include "lora_train/storage/hub_cache.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/run_marker.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

/// Empty without an adapter.
fs::path newest_checkpoint(const fs::path& run) {
  std::error_code code;
  if (!fs::is_directory(run, code)) return {};
  for (const fs::path& checkpoint : run_folder::list(run)) {
    if (storage::holds_adapter(checkpoint)) return checkpoint;
  }
  return {};
}

/// The step named in a run's model card; nothing without such a card.
std::optional<std::int64_t> step_of_result(const fs::path& adapter) {
  const fs::path card = adapter / storage::kCardFile;
  std::error_code code;
  if (!fs::is_regular_file(card, code)) return std::nullopt;
  std::istringstream lines(read_file(card));
  for (std::string line; std::getline(lines, line);) {  // "Trained with lora-train 1.0 ...: 1,200 steps, r 16, ..."
    if (line.find("Trained with lora-train ") == std::string::npos) continue;
    const std::size_t end = std::min(line.find(" steps, r "), line.find(" step, r "));
    if (end == std::string::npos) continue;
    std::string digits = line.substr(0, end);
    digits.erase(0, digits.rfind(' ') + 1);
    std::erase(digits, ',');
    return whole_number<std::int64_t>(digits);
  }
  return std::nullopt;
}

std::string config_of(const std::string& adapter) { return (fs::path(adapter) / storage::kAdapterConfigFile).string(); }

/// The base model that the adapter names; empty if there is no adapter, or if it names none.
std::string base_of(const std::string& adapter) {
  return adapter.empty() ? "" : lora::read_adapter_config(adapter).base_model_name_or_path;
}

}  // namespace

void warn_of_older_result(const std::string& adapter) {
  const fs::path folder = adapter, run = folder.parent_path();
  if (folder.filename() != storage::kAdapterFolder || !storage::holds_adapter(folder)) return;
  if (!storage::read_marker(run) || run_folder::holds_done_summary(run)) return;
  const fs::path newest = newest_checkpoint(run);
  const std::optional<std::int64_t> step = step_of_result(folder);
  if (step && !newest.empty() && storage::checkpoint_step(newest) == step) return;
  static std::set<std::string> warned;
  if (!warned.insert(adapter).second) return;
  log_warning("{}: is an earlier result of the run{}, which has continued since and has not ended{}", adapter,
              step ? fmt::format(", from step {}", *step) : "",
              newest.empty() ? "." : fmt::format(". Its newest checkpoint: {}.", newest.string()));
}

std::string adapter_folder(const std::string& given) {
  const fs::path of_run = fs::path(given) / storage::kAdapterFolder;
  if (given.empty() || !storage::holds_adapter(of_run)) return given;
  // Next to a run's result there may be an adapter of another tool that wrote into the same folder.
  return storage::holds_adapter(given) && !storage::read_marker(given) ? given : of_run.string();
}

std::string name_of_run(const fs::path& folder) {
  const fs::path path = fs::weakly_canonical(folder);
  const std::string last = path.filename().string();
  const bool is_of_run = last == storage::kAdapterFolder || last.starts_with(storage::kCheckpointPrefix);
  return is_of_run ? path.parent_path().filename().string() : last;
}

std::string find_adapter(const std::string& given, const std::string& name) {
  const std::string folder = adapter_folder(given);
  std::error_code code;
  if (folder.empty() || storage::holds_adapter(folder)) {
    warn_of_older_result(folder);
    return folder;
  }
  if (!fs::exists(given, code))
    throw FormatError(given, "no such folder; expected a PEFT folder, or the output_dir of a run");
  if (fs::exists(fs::path(given) / storage::kModelFolder / storage::kConfigFile, code))
    throw ConfigError(name, "{} is a run that trained all weights: there is no adapter. Its model: --model {}/model.",
                      given, given);
  const fs::path checkpoint = newest_checkpoint(given);
  if (checkpoint.empty()) return given;  // the folder's reader reports what is wrong with it
  throw ConfigError(name, "{} is a run that has not ended: there is no adapter/ in it. Its newest checkpoint: {}{}{}.",
                    given, name, name.starts_with("--") ? " " : ": ", checkpoint.string());
}

std::string find_base(const std::string& adapter) {
  std::string base = base_of(adapter);
  if (base.empty()) return base;
  try {
    storage::resolve_model(base);
  } catch (const FormatError& error) {
    std::error_code code;
    const std::string seen_from =
        fs::path(base).is_relative() ? fmt::format(" (seen from {})", fs::current_path(code).string()) : "";
    throw FormatError(config_of(adapter), "base_model_name_or_path is \"" + base + "\": " + error.message() +
                                              seen_from + ". Pass the base model with --model DIR.");
  }
  return base;
}

void add_onto(CommandParser& parser, OntoFlags& flags) {
  parser.add_choice("--onto", flags.decoded, {{"decoded", true}, {"original", false}},
                    "merge into the decoded weights that the training computed with, or into the model's own (default: "
                    "decoded after training with a quantised base_precision)");
  using enum BasePrecision;
  parser.add_choice("--base-precision", flags.base_precision, {{"nf4", kNf4}, {"int8", kInt8}, {"fp8", kFp8}},
                    "precision to which the training quantised the base on loading (default: as lora_train.json beside "
                    "the adapter says)");
}

MergeBase choose_merge_base(const CommandParser& parser, const OntoFlags& flags, const std::string& adapter,
                            const fs::path& model) {
  const bool is_stored =
      !model::stored_base(model::read_model_config(model), storage::open_model_weights(model)).empty();
  lora::TrainedWith trained = lora::read_trained_with(adapter);
  if (flags.base_precision && trained.base_precision.value_or(*flags.base_precision) != *flags.base_precision) {
    parser.refuse("--base-precision",
                  fmt::format("the adapter was trained on {} weights, as {} says.", to_string(*trained.base_precision),
                              (fs::path(adapter) / storage::kTrainedWithFile).string()));
  }
  if (is_stored && flags.decoded == false) {
    parser.refuse("--onto", model.string() + " is stored quantised: it has no original weights.");
  }
  if (flags.base_precision) trained.base_precision = flags.base_precision;
  MergeBase base;
  if (is_stored) return base;  // decoded, whatever the flags say
  if (!trained.base_precision) {
    if (flags.decoded == true) {
      parser.refuse("--onto",
                    "nothing says that the adapter was trained on quantised weights; name their precision "
                    "with --base-precision nf4, int8 or fp8.");
    }
    return base;
  }
  base.trained_on.base_precision = *trained.base_precision;
  base.trained_on.double_quant = trained.double_quant;
  if (flags.decoded.value_or(true)) base.onto = base.trained_on;
  return base;
}

LoadedProfile load_with_adapter(const ProfileFlags& flags, std::string& adapter) {
  adapter = find_adapter(adapter);
  ProfileSources sources = flags.sources();
  sources.needs_datasets = false;
  if (const std::string base = base_of(adapter); !base.empty())
    sources.fallbacks.push_back({"model", base, config_of(adapter), /*literal=*/true});
  LoadedProfile loaded = load_and_log(sources);
  if (!adapter.empty() && loaded.origin.at("model") == config_of(adapter)) find_base(adapter);
  if (const std::string& start = loaded.profile.adapter.init_adapter; adapter.empty() && !start.empty()) {
    adapter = find_adapter(start, "init_adapter");
    log_info("adapter: {}, which training starts from (init_adapter)", adapter);
  }
  if (const std::string trained = adapter_folder(loaded.profile.run.output_dir);
      adapter.empty() && trained != loaded.profile.run.output_dir && loaded.origin.at("output_dir") != "default")
    log_info("using the base model without an adapter; to use this profile's: --adapter " +
             loaded.profile.run.output_dir);
  return loaded;
}

lora::ModelFiles open_to_answer(const ModelSection& section, const std::string& adapter, bool allow_other_base) {
  ModelSection used = section;
  if (adapter.empty()) used.add_tokens.clear();  // the base has no rows for them
  if (!adapter.empty()) check_adapter_base(adapter, storage::resolve_model(section.path), allow_other_base);
  lora::ModelFiles files = lora::open_model(used, adapter, lora::TemplateOf::kAdapter);
  if (!files.tokenizer) files.tokenizer = tokenizer::Tokenizer::load(files.resolved.folder);  // says what is missing
  return files;
}

void add_raw(CommandParser& parser, bool& raw) {
  parser.add_flag("--raw", raw,
                  "pass the text to the model unchanged, without the chat template (default: as the adapter was "
                  "trained; --raw=false: through the template)");
}

bool takes_raw_prompts(const CommandParser& parser, bool raw, const std::string& system,
                       const lora::ModelFiles& files) {
  if (!parser.is_given("--raw") && files.trained_with.is_raw()) {
    raw = true;
    log_info("{} was trained on raw prompts, so they go to it unchanged; --raw=false uses the chat template",
             files.adapter.empty() ? files.resolved.folder.string() : files.adapter.string());
  }
  if (raw && !system.empty()) parser.refuse("--system", "cannot be combined with raw prompts.");
  return raw;
}

namespace {

/// Removes runs that failed before they wrote a profile, and names them. If all failed, keeps them.
void leave_out_failed_starts(const std::string& folder, std::vector<fs::path>& runs) {
  const auto has_failed = [](const fs::path& run) {
    return fs::exists(run / storage::kSummaryFile) && !fs::exists(run / storage::kProfileFile);
  };
  if (runs == std::vector<fs::path>{folder} || std::ranges::all_of(runs, has_failed)) return;
  std::vector<std::string> left_out;
  for (const fs::path& run : runs) {
    if (has_failed(run)) left_out.push_back(run.string());
  }
  if (left_out.empty()) return;
  log_info("left out: {}, which ended before step 1; name one to see why", join(left_out));
  std::erase_if(runs, has_failed);
}

}  // namespace

std::vector<fs::path> find_all_runs(const std::vector<std::string>& names) {
  std::vector<fs::path> runs;
  std::vector<std::string> empty;
  std::set<fs::path> seen;
  for (const auto& name : names) {
    std::vector<fs::path> found = report::find_runs(name);
    leave_out_failed_starts(name, found);
    if (found.empty()) empty.push_back(name);
    for (const auto& run : found) {
      if (seen.insert(fs::weakly_canonical(run)).second) runs.push_back(run);
    }
  }
  for (const auto& name : empty) {
    const std::string what =
        fs::exists(name) ? "contains no run: no metrics.jsonl, summary.json or run.log, and no folder that has one."
                         : "does not exist.";
    if (runs.empty()) {
      throw ConfigError(name, what + " Expected the output_dir of a run, or a folder of such folders.");
    }
    log_warning("{}: {}", name, what);
  }
  return runs;
}

}  // namespace lora_train::cli
