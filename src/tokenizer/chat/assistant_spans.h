// Which part of a rendered chat an assistant message makes up.
#pragma once

#include <string_view>

#include "jinja/evaluator.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::tokenizer {

/// The trained range of what a template wrote for an assistant message: without the header and without the white space
/// after the end token. An empty range when nothing is left.
///
/// The header is the template's own text up to and including the message's role (or the word "assistant"), what closes
/// the role's tag ("<|end_header_id|>", "|>") and line feeds, and the colon or blanks after it that the generation
/// prompt has too. Without a role ("<|Assistant|>", "<start_of_turn>model") the header is what the turn shares with the
/// generation prompt; where that is nothing (Mistral), the turn begins after the template's own white space. Bytes that
/// come from the chat never belong to a header.
/// generation_prompt: what the template appends for add_generation_prompt, "" when it has none.
ByteRange assistant_span(const jinja::Text& text, const jinja::Region& turn, std::string_view generation_prompt);

}  // namespace lora_train::tokenizer
