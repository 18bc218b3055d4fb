// How much a row wants a message to count.
#pragma once

#include "row_format.h"

namespace lora_train::data {

/// From the fields train (true, false: 1, 0) and weight (0 or a positive number) of a message; absent or null is nullopt.
/// Throws DataError for other values, for both when they disagree, and for train_detail, which is not supported.
/// `place` names the message: "messages[2]".
std::optional<float> turn_weight(const Json& message, const FieldMap& map, const std::string& place);

}  // namespace lora_train::data
