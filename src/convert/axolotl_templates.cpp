// Axolotl's chat templates, and the tokens that end an answer.

#include <algorithm>
#include <functional>

#include "converter.h"
#include "lora_train/base/text.h"

namespace lora_train {
namespace {

bool is_chat(const Value& entry) {
  const std::string type = entry.text_of("type");
  return type.starts_with("chat_template") || type.starts_with("sharegpt");
}

/// "datasets[0]": the first dataset for which `is_it` is true; empty if there is none.
std::string first_dataset(const Converter& converter, const std::function<bool(const Value&)>& is_it) {
  for (const char* key : {"datasets", "test_datasets"}) {
    const Value* list = converter.find(key);
    for (std::size_t i = 0; list && i < list->items.size(); ++i) {
      if (is_it(list->items[i])) return fmt::format("{}[{}]", key, i);
    }
  }
  return {};
}

/// The end of a turn in one of our built-in templates; empty for others, and for the tokenizer's end token.
std::string end_of_builtin(const std::string& ours) {
  if (ours == "chatml" || ours.starts_with("qwen")) return "<|im_end|>";
  if (ours == "llama3") return "<|eot_id|>";
  return ours == "gemma" ? "<end_of_turn>" : "";
}

void convert_special_tokens(Converter& converter) {
  const Value* tokens = converter.find("special_tokens");
  if (!tokens) return;
  const std::string model = converter.text("base_model"), name = lower_case(model);
  const bool has_llama_names =
      (name.find("llama") != name.npos && name.find("llama-3") == name.npos) || name.find("mistral") != name.npos;
  std::vector<std::string> others;
  for (const auto& [token, value] : tokens->members) {
    const std::string own = token_of_model(model, token);
    const bool is_llamas = has_llama_names && ((token == "bos_token" && value.text == "<s>") ||
                                               (token == "eos_token" && value.text == "</s>") ||
                                               (token == "unk_token" && value.text == "<unk>"));
    if (token == "pad_token" || value.is_null() || is_llamas || (!own.empty() && value.text == own)) continue;
    others.push_back(fmt::format("{}: {}{}", token, to_flow_yaml(value),
                                 own.empty() ? "" : fmt::format(" (the tokenizer has {})", own)));
  }
  if (others.empty()) {
    return converter.drop("special_tokens", "padding is never computed, and the other tokens are the tokenizer's own");
  }
  converter.refuse("special_tokens",
                   "lora-train uses the tokenizer's own special tokens, but these differ: " + join(others) +
                       ". Remove one if the tokenizer or the chat template has it; else set it in the model's "
                       "tokenizer_config.json, and name a new token in tokens.");
}

void convert_eot_tokens(Converter& converter) {
  const std::string end = end_of_builtin(converter.profile_text("chat_template"));
  const Value* named = converter.find("eot_tokens");
  if (!named) {
    if (end.empty() || first_dataset(converter, is_chat).empty()) return;
    return converter.note("chat_template", fmt::format("answers end with {}, which is trained here. Axolotl trains it "
                                                       "only if it is the tokenizer's eos_token or one of eot_tokens",
                                                       end));
  }
  const auto names = items_of(*named);
  if (end.empty() || std::ranges::any_of(names, [&](const Value& token) { return token.text == end; }))
    return converter.drop("eot_tokens", "the end of a trained turn is trained anyway, whatever it is in the template");
  converter.refuse("eot_tokens", end +
                                     ", which ends a turn in this template, is always trained, but eot_tokens leaves "
                                     "it out. Add it there, or remove eot_tokens.");
}

}  // namespace

std::string chat_without_template(const Converter& converter) {
  if (converter.find("chat_template")) return {};
  return first_dataset(converter, [](const Value& entry) {
    const Value* name = entry.find("chat_template");
    return is_chat(entry) && (!name || name->is_null());
  });
}

void convert_axolotl_template(Converter& converter, const std::string& key, const std::string& name,
                              const std::string& jinja, const std::string& prefix) {
  constexpr std::string_view kFallback = "tokenizer_default_fallback_";
  if (name == "tokenizer_default") {
    converter.set(key, "chat_template", "tokenizer");
  } else if (name.starts_with(kFallback)) {
    converter.set(key, "chat_template", "tokenizer");
    converter.note("chat_template", "if the model has no template of its own, the run fails: then set " +
                                        converter.template_for(name.substr(kFallback.size())));
  } else if (name == "jinja") {
    const std::string place = prefix + "chat_template_jinja";
    if (jinja.find('\n') != jinja.npos || !jinja.ends_with(".jinja")) {
      converter.refuse(place, "Save the text as a .jinja file, and name that here.");
      return converter.find("chat_template") ? converter.drop("chat_template", "jinja: chat_template_jinja decides")
                                             : void();
    }
    converter.note(place,
                   "all that the template writes inside an answer's turn is trained here, or the text in {% generation "
                   "%}. Axolotl trains the content and the end token (eos_token, or those in eot_tokens) right after "
                   "it: {% generation %} around these two does the same");
    converter.set("chat_template_jinja", "chat_template", jinja);
    if (converter.find("chat_template")) converter.share("chat_template", "chat_template");
  } else if (const std::string ours = converter.template_for(name); !ours.empty()) {
    converter.set(key, "chat_template", ours);
  } else {
    converter.refuse(prefix + "chat_template",
                     name + " is not supported. Use the model's own (tokenizer), or save it to a .jinja file.");
  }
}

void convert_axolotl_end_tokens(Converter& converter) {
  convert_special_tokens(converter);
  convert_eot_tokens(converter);
}

}  // namespace lora_train
