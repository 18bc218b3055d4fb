// --allow-other-base, of the commands that take --adapter.
#pragma once

#include <string>

#include "command_line.h"
#include "lora_train/lora/adapter_base.h"

namespace lora_train::app {

inline constexpr const char* kAllowOtherBase = "--allow-other-base";

inline void add_allow_other_base(CommandParser& parser, bool& is_allowed) {
  parser.app().add_flag(kAllowOtherBase, is_allowed, "use an adapter with other weights than those it was trained on");
}

inline void check_adapter_base(const std::string& adapter, const storage::ResolvedModel& model, bool is_allowed) {
  lora::check_base(adapter, model, {is_allowed, kAllowOtherBase});
}

}  // namespace lora_train::app
