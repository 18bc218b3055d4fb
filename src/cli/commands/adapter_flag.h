// --adapter and --allow-other-base, of the commands that use an adapter.
#pragma once

#include <filesystem>
#include <string>

#include "adapter_folder.h"
#include "command_line.h"
#include "lora_train/config/load.h"
#include "lora_train/lora/adapter_base.h"
#include "profile_flags.h"

namespace lora_train::cli {

inline constexpr const char* kAllowOtherBase = "--allow-other-base";

inline void add_allow_other_base(CommandParser& parser, bool& is_allowed) {
  parser.app().add_flag(kAllowOtherBase, is_allowed, "use an adapter with other weights than those it was trained on");
}

inline void check_adapter_base(const std::string& adapter, const storage::ResolvedModel& model, bool is_allowed) {
  lora::check_base(adapter, model, {is_allowed, kAllowOtherBase});
}

/// The base model that the adapter names; empty if there is no adapter, or it names none. Throws like read_adapter_config, and
/// FormatError where that model is not on this machine.
std::string find_base(const std::string& adapter);

/// Whether the adapter folder has a chat template that is not that of the model.
bool has_own_template(const std::filesystem::path& adapter, const std::filesystem::path& model);

/// The profile of a command that uses the model without training it: it needs no datasets, and --adapter, which becomes the PEFT
/// folder that it means, names the model unless a file or a flag does; without it, init_adapter is the adapter. Throws what loading throws, and for features that are not built.
LoadedProfile load_with_adapter(const ProfileFlags& flags, std::string& adapter);

}  // namespace lora_train::cli
