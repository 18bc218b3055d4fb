// Which datasets of Axolotl go through a chat template, and through which.
#include <functional>

#include "axolotl_data.h"
#include "chat_templates.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"

namespace lora_train {
namespace {

bool is_chat_type(const Value* type) {
  return type && type->is_scalar() && (type->text.starts_with("chat_template") || type->text.starts_with("sharegpt"));
}

/// "datasets[0]": the first dataset for which `is_it` is true; empty if there is none.
std::string first_dataset(const Converter& converter, const std::function<bool(const Value&)>& is_it) {
  for (const char* key : {"datasets", "test_datasets"}) {
    const Value* list = converter.find(key);
    for (std::size_t i = 0; list && i < list->items.size(); ++i) {
      if (is_it(list->items[i])) return std::string(key) + "[" + std::to_string(i) + "]";
    }
  }
  return {};
}

bool is_template_file(const std::string& jinja) { return jinja.find('\n') == jinja.npos && jinja.ends_with(".jinja"); }

/// Axolotl finds the content of an answer in what the template writes, and the end token behind it.
void note_own_template(Converter& converter, const std::string& key, const std::string& jinja) {
  const bool has_marks = template_text(jinja).find("endgeneration") != std::string::npos;
  const std::string theirs =
      "Axolotl trains the content and the end token (eos_token, or those of eot_tokens) close behind it";
  converter.note(key, has_marks ? "what stands in {% generation %} is trained here; " + theirs
                                : "words that the template writes inside an answer's turn, around the content, are "
                                  "trained here. " +
                                      theirs + ". {% generation %} around these two does the same here");
}

}  // namespace

std::string template_text(const std::string& jinja) {
  if (!is_template_file(jinja)) return jinja;
  try {
    return read_file(jinja);
  } catch (const Error&) {  // the run will say that it is not there
    return "";
  }
}

std::string first_chat_dataset(const Converter& converter) {
  return first_dataset(converter, [](const Value& entry) { return is_chat_type(entry.find("type")); });
}

std::string first_other_dataset(const Converter& converter) {
  return first_dataset(converter, [](const Value& entry) { return !is_chat_type(entry.find("type")); });
}

std::string chat_without_template(const Converter& converter) {
  if (converter.find("chat_template")) return {};
  return first_dataset(converter, [](const Value& entry) {
    const Value* name = entry.find("chat_template");
    return is_chat_type(entry.find("type")) && (!name || name->is_null());
  });
}

void convert_axolotl_template(Converter& converter, const std::string& key, const std::string& name,
                              const std::string& jinja, const std::string& prefix) {
  if (name == "tokenizer_default") {
    converter.set(key, "chat_template", "tokenizer");
  } else if (name.starts_with("tokenizer_default_fallback_")) {
    converter.set(key, "chat_template", "tokenizer");
    converter.note("chat_template", "without a template of the model's own the run fails: then set " +
                                        builtin_template(name.substr(27)));
  } else if (name == "jinja") {
    note_own_template(converter, prefix + "chat_template_jinja", jinja);
    if (is_template_file(jinja)) {
      converter.set("chat_template_jinja", "chat_template", jinja);
      if (converter.find("chat_template")) converter.share("chat_template", "chat_template");
    } else {
      converter.set_template(prefix + "chat_template_jinja", jinja);
      if (!converter.find("chat_template")) return;
      if (converter.is_refused("chat_template_jinja"))
        converter.drop("chat_template", "jinja: chat_template_jinja decides");
      else
        converter.share("chat_template", "chat_template");
    }
  } else if (const std::string ours = builtin_template(name); !ours.empty()) {
    converter.set(key, "chat_template", ours);
  } else {
    converter.refuse(prefix + "chat_template",
                     name + " is not built. Use the model's own (tokenizer), or save it to a .jinja file.");
  }
}

}  // namespace lora_train
