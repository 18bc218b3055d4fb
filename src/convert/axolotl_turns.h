// Who speaks in the messages of an Axolotl dataset, and which of them are trained.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "source_data.h"

namespace lora_train {

/// Axolotl knows human and gpt in messages, too. They are left out where a file that is here has none.
void map_default_roles(DataEntry& entry, const std::filesystem::path& file);

/// `roles` of the dataset: names that are not known anyway; field_map takes one for each role. Returns a name for which there is no
/// place.
std::optional<std::string> map_roles(DataEntry& entry, const Value& roles);

/// Axolotl reads whether a message is trained from the field `theirs` (message_field_training; empty: from none), and lora-train from `train`
/// and `weight`. Returns those that messages have, or may have, and that stay unread: "train and weight".
std::string map_training(DataEntry& entry, const std::string& theirs, const std::filesystem::path& file);

}  // namespace lora_train
