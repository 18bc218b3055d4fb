// The profile's key `thinking`: what the thoughts of assistant turns become. Thoughts are the first text in
// reasoning_content, reasoning or thinking of a message, else the block that its content begins with: "<think>...
// </think>", or without "<think>" where a prompt has that.
#pragma once

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/cache/ledger.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "read/example_format.h"

namespace lora_train::data {

/// The chat as the template gets it. keep: preserve_thinking is true, and thoughts have the name that the template
/// reads. drop and empty: without thoughts; empty: enable_thinking is false. A variable is set only if the template
/// reads it, and wins over the example's chat_template_kwargs.
ChatSample with_thinking(ChatSample chat, const tokenizer::ChatTemplate& chat_template, Thinking thinking);

/// What became of the thoughts of `given`, of which with_thinking() made `passed`, which was rendered. Throws DataError
/// (where empty) under `keep` for a turn without its thoughts.
ThoughtCounts count_thoughts(const ChatSample& given, const ChatSample& passed, const tokenizer::RenderedChat& rendered,
                             Thinking thinking);

}  // namespace lora_train::data
