// How a key stands in a profile that the program writes.
#pragma once

#include <string>

#include "lora_train/config/value/value.h"

namespace lora_train {

/// "key: value", with a comment behind it if there is one; a list of maps has one to a line. Ends with a line feed.
std::string yaml_entry(const std::string& key, const Value& value, const std::string& comment);

}  // namespace lora_train
