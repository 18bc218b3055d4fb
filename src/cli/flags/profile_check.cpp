#include "profile_check.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "flags/open_model.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/config/load.h"
#include "lora_train/data/encode/task_examples.h"
#include "lora_train/data/first_examples.h"
#include "lora_train/data/prepare.h"
#include "lora_train/data/read/dataset_files.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/report/eval_figures.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/split/text_pattern.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

class InputChecker {
 public:
  InputChecker(const LoadedProfile& loaded, const InputCheck& what, Findings& findings)
      : loaded_(loaded), profile_(loaded.profile), what_(what), findings_(findings) {}

  /// The checks that need no file.
  void check_evaluation() {
    const std::vector<EvalTask>& tasks = profile_.tasks.eval_tasks;
    const std::vector<std::string> sets = data::evaluation_names(profile_.data);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (std::ranges::count(sets, tasks[i].name) == 0) continue;
      findings_.mistake(place_of("eval_tasks"), fmt::format("eval_tasks[{}].name", i),
                        fmt::format("another task or dataset is named \"{}\". Give each its own name.", tasks[i].name));
    }
    if (findings_.is_wrong("eval_tasks") || findings_.is_wrong("eval_datasets")) return;
    attempt({"metric_for_best_model", ""}, [&] { report::find_best_metric(profile_.run, sets, tasks); });
  }

  void check() {
    check_evaluation();
    constexpr double kHighRate = 1e-2;
    if (what_.reads_all && profile_.optimizer.learning_rate > kHighRate) {
      log_warning("learning_rate: {:g} is far above the usual 1e-5 to 5e-4, and may end in a loss that is not finite",
                  profile_.optimizer.learning_rate);
    }
    check_model();
    check_datasets("datasets", profile_.data.datasets);
    check_datasets("eval_datasets", profile_.data.eval_datasets);
    check_tasks();
    check_resume();
  }

 private:
  /// A named file or folder: at `key`, or at a place inside it, which is the label.
  struct Named {
    std::string key, path, label;
    Named(const std::string& of_key, const std::string& named_path, const std::string& shown = "")
        : key(of_key), path(named_path), label(shown.empty() ? of_key : shown) {}
  };

  void check_model() {
    const std::string &chat_template = profile_.model.chat_template, &adapter = profile_.adapter.init_adapter;
    const fs::path folder = find_model();
    const Named model("model", folder.string());
    std::optional<model::ModelConfig> config;
    if (!folder.empty()) attempt(model, [&] { config = model::read_model_config(folder); });
    const bool is_own = chat_template == "tokenizer";
    if (!is_own || !folder.empty()) {
      attempt(is_own ? model : Named("chat_template", chat_template), [&] {
        chat_template_ = tokenizer::load_chat_template(chat_template, folder, /*is_quiet=*/!what_.reads_all);
        if (chat_template_) chat_template_->set_day(profile_.model.template_date);
      });
    }
    const bool has_adapter = !adapter.empty() && profile_.adapter.kind != AdapterKind::kNone;
    if (has_adapter) {
      attempt({"init_adapter", adapter}, [&] { lora::read_adapter_config(find_adapter(adapter, "init_adapter")); });
    }
    const fs::path starts_from = has_adapter && !failed_.contains("init_adapter") ? adapter : "";
    ModelSection section = profile_.model;
    if (findings_.is_wrong("add_tokens") || findings_.is_wrong("token_init")) section.add_tokens.clear();
    if ((what_.reads_all || !section.add_tokens.empty()) && !folder.empty()) {
      attempt(model, [&] { tokenizer_ = lora::open_tokenizer(section, folder, starts_from).tokenizer; });
      const bool has_all = section.add_tokens.size() == profile_.model.add_tokens.size();
      if (tokenizer_ && has_all)
        attempt({"confidence_tokens", ""}, [&] { data::confidence_tokens(profile_.tasks, *tokenizer_); });
      is_model_read_ = what_.reads_all && has_all && !failed_.contains("model") && !failed_.contains("chat_template");
    }
    if (config) check_against(*config, folder);
  }

  /// Empty if it does not exist.
  fs::path find_model() {
    fs::path folder;
    const std::string& path = profile_.model.path;
    if (!path.empty()) attempt_here({"model", path}, [&] { folder = storage::resolve_model(path).folder; });
    return folder;
  }

  /// Checks that depend on the model's shape and on how its weights are stored.
  void check_against(const model::ModelConfig& config, const fs::path& folder) {
    const std::string& adapter = profile_.adapter.init_adapter;
    const bool is_wrong = findings_.is_wrong("adapter") || findings_.is_wrong("lora_target_modules") ||
                          findings_.is_wrong("rank_pattern") || findings_.is_wrong("alpha_pattern");
    if (!is_wrong) {
      attempt(adapter.empty() ? Named("adapter", folder.string()) : Named("init_adapter", adapter),
              [&] { lora::choose_adapters(profile_, config); });
    }
    if (const auto length = profile_.data.max_seq_len)
      attempt({"max_seq_len", folder.string()}, [&] { model::check_rope_supported(config, *length); });
    if (!what_.reads_all) return;
    if (profile_.data.max_seq_len.value_or(0) > config.context_length()) {
      log_warning(
          "max_seq_len: {} is more than the {} positions of the model ({}); longer examples train on positions "
          "that it has never seen",
          format_count(*profile_.data.max_seq_len), format_count(config.context_length()), folder.string());
    }
    attempt({"model", folder.string()}, [&] {
      const storage::WeightFiles weights = storage::open_model_weights(folder);
      model::base_storage(profile_.model, config, weights);
      log_info("{}: {}", folder.string(), model::linear_formats(config, weights));
    });
  }

  void check_datasets(const std::string& key, const std::vector<DatasetSpec>& specs) {
    const auto use = key == "datasets" ? data::DatasetUse::kTraining : data::DatasetUse::kEvaluation;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::string entry = fmt::format("{}[{}]", key, i), &path = specs[i].path;
      std::error_code code;
      if (findings_.is_wrong(entry) || fs::is_other(path, code)) continue;  // an unread pipe is not a mistake
      attempt({key, path, entry + ".path"}, [&] { data::dataset_files(specs[i], use); });
      const bool has_rows = use == data::DatasetUse::kTraining || key == "eval_datasets";  // tasks have other examples
      if (!what_.reads_all || !has_rows || failed_.contains(entry + ".path")) continue;
      attempt({key, path, entry}, [&] {
        const data::FirstExamples examples = data::look_at_first_examples(
            specs[i], {use, profile_.data.on_bad_row, tokenizer_.get(), chat_template_.get(), profile_.data.loss_on,
                       profile_.data.thinking, is_model_read_});
        log_info("{} {}: {} ({}), {} checked", entry, path, to_string(examples.type), examples.reason,
                 count_of(examples.num_examples, "example"));
        for (const std::string& warning : examples.warnings) {
          if (said_.insert(warning).second) log_warning(warning);
        }
      });
    }
  }

  void check_tasks() {
    std::vector<DatasetSpec> specs;
    for (const EvalTask& task : profile_.tasks.eval_tasks) specs.push_back(task.data);
    if (!what_.is_shipped) {
      check_datasets("eval_tasks", specs);
    } else {
      for (const DatasetSpec& spec : specs)
        attempt_here({"eval_tasks", ""}, [&] { data::dataset_files(spec, data::DatasetUse::kEvaluation); });
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::string key = fmt::format("eval_tasks[{}].regex", i);
      const std::string& regex = profile_.tasks.eval_tasks[i].regex;
      if (!regex.empty()) attempt({"eval_tasks", "", key}, [&] { tokenizer::TextPattern(regex, ""); });
    }
  }

  void check_resume() {
    const std::string& resume = profile_.run.resume_from_checkpoint;
    std::error_code code;
    if (resume == "auto" || resume == "none" || fs::exists(resume, code) || began_with(resume)) return;
    attempt({"resume_from_checkpoint", resume},
            [&] { throw FormatError(resume, "no such folder; expected auto, none or a checkpoint folder"); });
  }

  /// True if the run in output_dir began with this checkpoint, which may be gone when the command is repeated.
  bool began_with(const std::string& checkpoint) const {
    const fs::path written = fs::path(profile_.run.output_dir) / storage::kProfileFile;
    std::error_code code;
    try {
      return fs::exists(written, code) && load_written_profile(written).run.resume_from_checkpoint == checkpoint;
    } catch (const Error&) {  // train reports what is wrong with it
      return false;
    }
  }

  /// Calls `action`, which uses `named` as the run would. What it throws is a mistake.
  template <class Action>
  void attempt(const Named& named, const Action& action) {
    if (failed_.contains(named.label) || findings_.is_wrong(named.label)) return;
    try {
      action();
    } catch (...) {
      const ErrorReport report = describe_current_exception();
      const bool is_input = report.code == ExitCode::kUsage || report.code == ExitCode::kData ||
                            report.code == ExitCode::kFormat || report.code == ExitCode::kIo;
      if (!is_input) throw;
      failed_.insert(named.label);
      add(named, report);
    }
  }

  /// The same for a file that this machine needs only if the profile is not one of ours, made for others.
  template <class Action>
  void attempt_here(const Named& named, const Action& action) {
    if (!what_.is_shipped) return attempt(named, action);
    try {
      action();
    } catch (const Error& error) {
      log_warning("{}: {}", named.key, error.what());
    }
  }

  /// A mistake inside a file or folder is placed there; a missing one, at the key that names it.
  void add(const Named& named, const ErrorReport& report) {
    const Place place = place_of(named.key);
    std::error_code code;
    if (loaded_.origin.contains(report.where)) {  // a key of the profile
      findings_.mistake(place_of(report.where), report.where, report.message, report.code);
    } else if (fs::exists(named.path, code)) {
      const std::string origin = place.text();
      findings_.mistake(parse_place(report.where), "",
                        fmt::format("{} ({}{})", report.message, named.label, origin.empty() ? "" : " at " + origin),
                        report.code);
    } else {
      findings_.mistake(place, named.label, report.text(),
                        what_.is_usage && named.key != "model" ? ExitCode::kUsage : report.code);
      if (fs::path(named.path).is_relative() && named.key != "model")
        findings_.hint(fmt::format("Relative paths start in {}.", fs::current_path(code).string()));
    }
  }

  Place place_of(const std::string& key) const {
    const auto origin = loaded_.origin.find(key);
    const bool is_none =
        origin == loaded_.origin.end() || origin->second == "default" || origin->second.starts_with("follows ");
    return is_none ? Place{} : parse_place(origin->second);
  }

  const LoadedProfile& loaded_;
  const Profile& profile_;
  const InputCheck what_;
  Findings& findings_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<tokenizer::ChatTemplate> chat_template_;
  bool is_model_read_ = false;    ///< examples can be encoded as the run will
  std::set<std::string> failed_;  ///< labels of attempts that threw
  std::set<std::string> said_;    ///< warnings already logged
};

}  // namespace

void check_inputs(const LoadedProfile& loaded, const InputCheck& what, Findings& findings) {
  InputChecker(loaded, what, findings).check();
}

void check_without_files(const LoadedProfile& loaded, Findings& findings) {
  InputChecker(loaded, {}, findings).check_evaluation();
}

}  // namespace lora_train::cli
