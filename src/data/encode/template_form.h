// A chat in the form that a template takes.
#pragma once

#include "read/example_format.h"

namespace lora_train::data {

struct TemplateForm {
  ChatSample chat;
  bool has_dropped_nulls = false;      ///< members that were null, in messages, tools and chat_template_kwargs
  bool has_decoded_arguments = false;  ///< arguments of tool calls that were JSON text
};

/// The chat without null members of objects, which Arrow adds for what other rows have (unless `null_fields` is kKeep);
/// with arguments of tool calls that are JSON text as objects, and contents of text parts as one text, as far as
/// `chat_template` does not take them. Arguments that were JSON text keep their nulls. Throws DataError (where empty) for
/// arguments that are other text.
TemplateForm template_form(ChatSample chat, const tokenizer::ChatTemplate& chat_template, NullFields null_fields);

}  // namespace lora_train::data
