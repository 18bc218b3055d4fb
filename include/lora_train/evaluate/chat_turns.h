// `chat`: answers turn by turn, of the adapter or of the base, from one copy of the weights.
#pragma once

#include "lora_train/evaluate/generate_request.h"

namespace lora_train::evaluate {

/// Loads the model once and answers until conversation.next_turn() has nothing more to ask. Keys and values of the tokens that a
/// prompt shares with the last one and its answer are kept, unless the other of adapter and base answers. request.prompts and
/// request.compare are not read. Throws Error; StopError only before on_start().
GenerateTotals converse(const GenerateRequest& request, Conversation& conversation);

}  // namespace lora_train::evaluate
