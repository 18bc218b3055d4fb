// docs/profile.md, from the declarations of the keys.
#pragma once

#include <string>

namespace lora_train {

std::string profile_page();

}  // namespace lora_train
