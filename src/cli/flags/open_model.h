// Opens a command's inputs: a model folder, an adapter, the tokenizer and the folder of a run.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flags/command_line.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/config/load.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/open_model.h"
#include "lora_train/storage/safetensors.h"
#include "profile_flags.h"

namespace lora_train::cli {

/// The PEFT folder that `given` means: itself, or adapter/ of a run. Refuses nothing.
std::string adapter_folder(const std::string& given);

/// Warns, once per folder, if adapter/ of a run is older than the run: it was resumed or extended, and has not ended
/// since.
void warn_of_older_result(const std::string& adapter);

/// Like adapter_folder(), with that warning. Throws FormatError if there is no such folder, and ConfigError(`name`) for
/// a run that has no adapter yet, naming its newest checkpoint. `name`: "--adapter" or "init_adapter".
std::string find_adapter(const std::string& given, const std::string& name = "--adapter");

/// The run's name: "first" for runs/first/adapter and for runs/first.
std::string name_of_run(const std::filesystem::path& folder);

inline constexpr const char* kAllowOtherBase = "--allow-other-base";

inline void add_allow_other_base(CommandParser& parser, bool& is_allowed) {
  parser.add_flag(kAllowOtherBase, is_allowed,
                  "use an adapter even if the base weights are not the ones it was trained on");
}

template <class Type>
void add_weight_dtype(CommandParser& parser, Type& dtype, const std::string& otherwise) {
  using enum storage::DType;
  parser.add_choice("--dtype", dtype, {{"bf16", kBF16}, {"fp16", kF16}, {"fp32", kF32}},
                    fmt::format("type of the weights (default: {})", otherwise));
}

inline void check_adapter_base(const std::string& adapter, const storage::ResolvedModel& model, bool is_allowed) {
  lora::check_base(adapter, model, {is_allowed, kAllowOtherBase});
}

/// The base model that the adapter names; empty if there is no adapter, or if it names none. Throws like
/// read_adapter_config, and FormatError if that model is not on this machine.
std::string find_base(const std::string& adapter);

/// The weights that an adapter is merged into.
struct OntoFlags {
  std::optional<bool> decoded = {};  ///< --onto decoded | original
  std::optional<BasePrecision> base_precision = {};
};
void add_onto(CommandParser& parser, OntoFlags& flags);

/// How the base is read; only base_precision and double_quant are set.
struct MergeBase {
  ModelSection trained_on = {};  ///< is_quantised(): the training quantised the linears of this folder on loading
  ModelSection onto = {};        ///< is_quantised(): merge into those weights, decoded, and not into the folder's own
};

/// What the adapter was trained on says its lora_train.json, else --base-precision; onto it, unless --onto says
/// otherwise. Refuses flags that contradict it or the folder. Throws FormatError.
MergeBase choose_merge_base(const CommandParser& parser, const OntoFlags& flags, const std::string& adapter,
                            const std::filesystem::path& model);

/// The profile of a command that uses the model without training it: it needs no datasets. --adapter becomes the PEFT
/// folder that it means, and names the model unless a file or a flag does; without it, init_adapter is the adapter.
/// Throws what loading throws.
LoadedProfile load_with_adapter(const ProfileFlags& flags, std::string& adapter);

/// Opens what answering prompts needs: the tokenizer must exist. Refuses an adapter trained on another base, unless
/// that is allowed. Throws what reading the files throws.
lora::ModelFiles open_to_answer(const ModelSection& section, const std::string& adapter, bool allow_other_base);

/// The flag --raw, which also has the form --raw=false.
void add_raw(CommandParser& parser, bool& raw);

/// True if prompts go to the model unchanged: `raw` if the flag was given, else if the adapter was trained on such
/// prompts, which is logged. Refuses a system message then.
bool takes_raw_prompts(const CommandParser& parser, bool raw, const std::string& system, const lora::ModelFiles& files);

/// Each name is the output_dir of a run, or a folder of such folders; returns every run once, in this order. Warns
/// about a folder without runs. Throws ConfigError if none has any.
std::vector<std::filesystem::path> find_all_runs(const std::vector<std::string>& names);

}  // namespace lora_train::cli
