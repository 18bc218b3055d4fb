#include "adapter_folder.h"

#include <filesystem>
#include <optional>
#include <regex>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/run_folder/checkpoint.h"
#include "lora_train/run_folder/output_folder.h"
#include "lora_train/storage/run_marker.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

bool is_adapter(const fs::path& folder) {
  std::error_code code;
  return fs::exists(folder / "adapter_config.json", code);
}

/// Empty without one.
fs::path newest_checkpoint(const fs::path& run) {
  std::error_code code;
  if (!fs::is_directory(run, code)) return {};
  for (const fs::path& checkpoint : run_folder::list(run)) {
    if (is_adapter(checkpoint)) return checkpoint;
  }
  return {};
}

/// The step that the model card of a run's result names; nothing where there is no such card.
std::optional<std::int64_t> step_of_result(const fs::path& adapter) {
  const fs::path card = adapter / "README.md";
  std::error_code code;
  if (!fs::is_regular_file(card, code)) return std::nullopt;
  static const std::regex steps(R"(Trained with lora-train [^\n]*: ([0-9,]{1,18}) steps?, r )");
  const std::string text = read_file(card);
  std::smatch found;
  if (!std::regex_search(text, found, steps)) return std::nullopt;
  std::string digits = found[1];
  std::erase(digits, ',');
  return std::stoll(digits);
}

}  // namespace

void warn_of_older_result(const std::string& adapter) {
  const fs::path folder = adapter, run = folder.parent_path();
  if (folder.filename() != "adapter" || !is_adapter(folder)) return;
  if (!storage::read_marker(run) || run_folder::holds_done_summary(run)) return;
  const fs::path newest = newest_checkpoint(run);
  const std::optional<std::int64_t> step = step_of_result(folder);
  if (step && !newest.empty() && run_folder::step_of(newest) == step) return;
  static std::set<std::string> warned;
  if (!warned.insert(adapter).second) return;
  log_warning(adapter + ": is an earlier result of the run" + (step ? ", of step " + std::to_string(*step) : "") +
              ", which has gone on and has not ended since" +
              (newest.empty() ? "." : ". Its newest checkpoint: " + newest.string() + "."));
}

std::string adapter_folder(const std::string& given) {
  const fs::path of_run = fs::path(given) / "adapter";
  if (given.empty() || !is_adapter(of_run)) return given;
  // Beside the result of a run there may be an adapter of another tool that wrote into the same folder.
  return is_adapter(given) && !storage::read_marker(given) ? given : of_run.string();
}

std::string find_adapter(const std::string& given, const std::string& name) {
  const std::string folder = adapter_folder(given);
  std::error_code code;
  if (folder.empty() || is_adapter(folder)) {
    warn_of_older_result(folder);
    return folder;
  }
  if (!fs::exists(given, code))
    throw FormatError(given, "no such folder; expected a PEFT folder, or the output_dir of a run");
  if (fs::exists(fs::path(given) / "model" / "config.json", code))
    throw ConfigError(name, given + " is a run that trained all weights: there is no adapter. Its model: --model " +
                                given + "/model.");
  const fs::path checkpoint = newest_checkpoint(given);
  if (checkpoint.empty()) return given;  // whoever reads the folder says what is wrong with it
  throw ConfigError(name, given + " is a run that has not ended: there is no adapter/ in it. Its newest checkpoint: " +
                              name + (name.starts_with("--") ? " " : ": ") + checkpoint.string() + ".");
}

}  // namespace lora_train::cli
