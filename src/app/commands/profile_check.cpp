#include "profile_check.h"

#include <filesystem>
#include <optional>

#include "lora_train/base/error_report.h"
#include "lora_train/base/log.h"
#include "lora_train/data/dataset_files.h"
#include "lora_train/lora/choose_adapters.h"
#include "lora_train/model/stored_linear.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/resolve_model.h"
#include "lora_train/tokenizer/model_folder.h"

namespace lora_train::app {
namespace {

namespace fs = std::filesystem;

class InputChecker {
 public:
  InputChecker(const LoadedProfile& loaded, const InputCheck& what, Mistakes& mistakes)
      : loaded_(loaded), profile_(loaded.profile), what_(what), mistakes_(mistakes) {}

  void check() {
    check_model();
    check_datasets("datasets", profile_.data.datasets);
    check_datasets("eval_datasets", profile_.data.eval_datasets);
    check_resume();
  }

 private:
  void check_model() {
    const ModelSection& section = profile_.model;
    const fs::path folder = find_model();
    std::optional<model::ModelConfig> config;
    if (!folder.empty()) attempt("model", "model", [&] { config = model::read_model_config(folder); });
    if (!folder.empty() || section.chat_template != "tokenizer") {
      const std::string key = section.chat_template == "tokenizer" ? "model" : "chat_template";
      attempt(key, key, [&] { tokenizer::load_chat_template(section.chat_template, folder); });
    }
    if (what_.reads_all && !folder.empty())
      attempt("model", "model", [&] { tokenizer::load_tokenizer_if_present(folder); });
    const bool has_adapter = !profile_.adapter.init_adapter.empty() && profile_.adapter.kind != AdapterKind::kNone;
    if (config) {
      check_against(*config, folder);
    } else if (has_adapter) {
      attempt("init_adapter", "init_adapter", [&] { lora::read_adapter_config(profile_.adapter.init_adapter); });
    }
  }

  /// Empty if it is not there.
  fs::path find_model() {
    fs::path folder;
    if (profile_.model.path.empty()) return folder;
    if (what_.is_model_optional) {
      try {
        folder = storage::resolve_model(profile_.model.path).folder;
      } catch (const FormatError& error) {
        log_warning("model: " + std::string(error.what()));
      }
    } else {
      attempt("model", "model", [&] { folder = storage::resolve_model(profile_.model.path).folder; });
    }
    return folder;
  }

  /// What depends on the shape of the model and on how its weights are stored.
  void check_against(const model::ModelConfig& config, const fs::path& folder) {
    const bool is_wrong = mistakes_.concern("adapter") || mistakes_.concern("lora_target_modules") ||
                          mistakes_.concern("rank_pattern") || mistakes_.concern("alpha_pattern");
    const std::string key = profile_.adapter.init_adapter.empty() ? "adapter" : "init_adapter";
    if (!is_wrong) attempt(key, key, [&] { lora::choose_adapters(profile_, config); });
    if (const auto length = profile_.data.max_seq_len)
      attempt("max_seq_len", "max_seq_len", [&] { model::check_rope_supported(config, *length); });
    if (!what_.reads_all) return;
    attempt("model", "model", [&] {
      const storage::WeightFiles weights = storage::open_model_weights(folder);
      model::base_storage(profile_.model, config, weights);
      log_info(folder.string() + ": " + model::linear_formats(config, weights));
    });
  }

  void check_datasets(const std::string& key, const std::vector<DatasetSpec>& specs) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::string entry = key + "[" + std::to_string(i) + "]";
      if (mistakes_.concern(entry)) continue;
      attempt(key, entry + ".path", [&] { data::dataset_files(specs[i].path); });
    }
  }

  void check_resume() {
    const std::string& resume = profile_.run.resume_from_checkpoint;
    // One of the run itself may be gone when the same command comes again: train knows what to do.
    const bool is_of_the_run = fs::path(resume).parent_path() == fs::path(profile_.run.output_dir);
    std::error_code code;
    if (resume == "auto" || resume == "none" || is_of_the_run || fs::exists(resume, code)) return;
    attempt("resume_from_checkpoint", "resume_from_checkpoint",
            [&] { throw FormatError(resume, "no such folder; expected auto, none or a checkpoint folder"); });
  }

  /// Calls `action`, which does what the run would do; what it throws is a mistake about `label`, which is at `key` or inside it.
  template <class Action>
  void attempt(const std::string& key, const std::string& label, const Action& action) {
    if (mistakes_.concern(label)) return;
    try {
      action();
    } catch (...) {
      const ErrorReport report = describe_current_exception();
      const bool is_input = report.code == ExitCode::kUsage || report.code == ExitCode::kData ||
                            report.code == ExitCode::kFormat || report.code == ExitCode::kIo;
      if (!is_input) throw;
      add(key, label, report);
    }
  }

  void add(const std::string& key, const std::string& label, const ErrorReport& report) {
    const bool names_key = loaded_.origin.contains(report.where);
    const ExitCode code = what_.is_usage && label != "model" ? ExitCode::kUsage : report.code;
    mistakes_.add(place_of(names_key ? report.where : key), names_key ? report.where : label,
                  names_key ? report.message : report.text(), code);
    std::error_code error;
    if (!report.where.empty() && fs::path(report.where).is_relative() && !names_key && !fs::exists(report.where, error))
      mistakes_.add_hint("Relative paths start in " + fs::current_path(error).string() + ".");
  }

  Place place_of(const std::string& key) const {
    const auto origin = loaded_.origin.find(key);
    const bool is_none =
        origin == loaded_.origin.end() || origin->second == "default" || origin->second.starts_with("follows ");
    return is_none ? Place{} : parse_place(origin->second);
  }

  const LoadedProfile& loaded_;
  const Profile& profile_;
  const InputCheck& what_;
  Mistakes& mistakes_;
};

}  // namespace

void check_inputs(const LoadedProfile& loaded, const InputCheck& what, Mistakes& mistakes) {
  InputChecker(loaded, what, mistakes).check();
}

}  // namespace lora_train::app
