// Whether a row asks for a message to be trained.
#pragma once

#include "row_format.h"

namespace lora_train::data {

/// From the fields train (true, false) and weight (0, 1) of a message; absent or null is no mark. Throws DataError for
/// other values, for both when they disagree, and for train_detail, which is not supported.
/// `place` names the message: "messages[2]".
TurnMark turn_mark(const Json& message, const FieldMap& map, const std::string& place);

}  // namespace lora_train::data
