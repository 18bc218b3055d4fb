// tokenizer/model_folder.h under the names of this module.
#pragma once

#include "lora_train/tokenizer/model_folder.h"

namespace lora_train::app {

using tokenizer::load_chat_template;
using tokenizer::load_tokenizer_if_present;

}  // namespace lora_train::app
