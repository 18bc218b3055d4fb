// Finds which Axolotl datasets use a chat template, and which one.

#include <algorithm>
#include <functional>

#include "axolotl_data.h"
#include "converter.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

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
      if (is_it(list->items[i])) return fmt::format("{}[{}]", key, i);
    }
  }
  return {};
}

bool is_template_file(const std::string& jinja) { return jinja.find('\n') == jinja.npos && jinja.ends_with(".jinja"); }

/// Axolotl finds the content of an answer in what the template writes, and the end token behind it.
void note_own_template(Converter& converter, const std::string& key, const std::string& jinja) {
  const bool has_marks = template_text(jinja).find("endgeneration") != std::string::npos;
  const std::string theirs =
      "Axolotl trains the content and the end token (eos_token, or those in eot_tokens) right after it";
  converter.note(key, has_marks ? "the text in {% generation %} is trained here; " + theirs
                                : "words that the template writes inside an answer's turn, around the content, are "
                                  "trained here. " +
                                      theirs + ". {% generation %} around these two does the same here");
}

constexpr const char* kEos = "eos_token";  // the variable of templates

/// The text of a template in the file itself; empty if there is none.
std::string own_template(const Converter& converter) {
  if (const std::string text = converter.text("chat_template_jinja"); !text.empty()) return template_text(text);
  const Value* datasets = converter.find("datasets");
  for (const Value& entry : datasets ? datasets->items : std::vector<Value>{}) {
    if (const Value* text = entry.find("chat_template_jinja")) return template_text(text->text);
  }
  return {};
}

struct AnswerEnd {
  std::string token;         ///< the template's; kEos: the tokenizer's; empty: not known
  std::string eos;           ///< the tokenizer's, as special_tokens has it; empty: not known
  std::string own_template;  ///< text in the file, which may write any token
  std::optional<ModelTokens> tokens = {};

  bool may_be(const std::string& text) const {
    return text == token ||
           (own_template.find(text) != own_template.npos && own_template.find(kEos) == own_template.npos);
  }
};

AnswerEnd find_answer_end(const Converter& converter) {
  const std::string name = converter.profile_text("chat_template");
  const auto& tokens = converter.model_tokens();
  AnswerEnd end{end_of_builtin(name), tokens ? tokens->eos : "", own_template(converter), tokens};
  const bool is_models = name.empty() || name == "tokenizer";
  if (is_models && end.own_template.empty() && tokens) end.token = tokens->end_of_turn;
  if (end.own_template.find(kEos) != end.own_template.npos) end.token = kEos;
  return end;
}

/// The first dataset that has no chats; empty if there is none.
std::string first_other_dataset(const Converter& converter) {
  return first_dataset(converter, [](const Value& entry) { return !is_chat_type(entry.find("type")); });
}

void convert_special_tokens(Converter& converter, const AnswerEnd& end) {
  const Value* tokens = converter.find("special_tokens");
  if (!tokens) return;
  const std::string model = lower_case(converter.text("base_model"));
  const bool has_llama_names =
      (model.find("llama") != std::string::npos && model.find("llama-3") == std::string::npos) ||
      model.find("mistral") != std::string::npos;
  const auto ends_chats = [&](const std::string& text) {
    return !first_chat_dataset(converter).empty() && first_other_dataset(converter).empty() && end.may_be(text);
  };
  const Value* added = converter.find("tokens");
  const auto is_missing = [&](const std::string& text) {
    const auto is_it = [&](const Value& token) { return token.text == text; };
    return end.tokens && end.tokens->lacks_token(text) && !(added && std::ranges::any_of(added->items, is_it));
  };
  const auto is_usual = [&](const Value::Member& member) {
    const std::string& text = member.value.text;
    if (member.name == "pad_token" || member.value.is_null()) return true;
    if (!text.empty() && text == token_of_model(converter.text("base_model"), member.name)) return true;
    if (member.name == kEos && !text.empty() && (text == end.eos || ends_chats(text))) return !is_missing(text);
    return has_llama_names &&
           ((member.name == "bos_token" && text == "<s>") || (member.name == kEos && text == "</s>") ||
            (member.name == "unk_token" && text == "<unk>"));
  };
  std::vector<std::string> others;
  for (const auto& member : tokens->members) {
    if (is_usual(member)) continue;
    const std::string own = token_of_model(converter.text("base_model"), member.name);
    others.push_back(member.name + ": " +
                     (member.value.is_scalar() ? "\"" + member.value.text + "\"" : to_flow_yaml(member.value)) +
                     (own.empty() ? "" : fmt::format(" (the tokenizer has \"{}\")", own)) +
                     (is_missing(member.value.text) ? " (not a token of the model yet: name it in tokens, too)" : ""));
  }
  if (others.empty()) {
    converter.drop("special_tokens",
                   "padding is never computed; the other tokens are the tokenizer's own, or end a turn, which is "
                   "trained anyway");
  } else {
    converter.refuse("special_tokens",
                     "lora-train uses the tokenizer's own special tokens, but these differ: " + join(others) +
                         ". Remove one if the tokenizer or the chat template has it; else set it in the model's "
                         "tokenizer_config.json.");
  }
}

void convert_eot_tokens(Converter& converter, const AnswerEnd& end) {
  const Value* value = converter.find("eot_tokens");
  if (!value) return;
  const auto items = items_of(*value);
  const bool is_named = std::ranges::any_of(items, [&](const Value& item) { return end.may_be(item.text); });
  const bool is_eos = end.token == kEos || end.token == end.eos;
  if (end.token.empty() && end.own_template.empty()) {
    converter.drop("eot_tokens", "the end of a trained turn is trained anyway, whatever it is in the template");
  } else if (is_named || is_eos) {
    converter.drop("eot_tokens", "the end of a trained turn is trained anyway");
  } else {
    converter.refuse("eot_tokens",
                     (end.token.empty() ? "The template's end of a trained turn"
                                        : end.token + ", which ends a turn in this template,") +
                         " is always trained, but eot_tokens leaves it out. Add it there, or remove eot_tokens.");
  }
}

/// For chats whose template is known by name.
void note_untrained_end(Converter& converter, const AnswerEnd& end) {
  if (converter.find("eot_tokens") || end.token.empty() || end.token == kEos || end.token == end.eos) return;
  if (first_chat_dataset(converter).empty()) return;
  const std::string why = end.eos.empty() ? "in base models it often is not" : "it is " + end.eos;
  converter.note("chat_template",
                 fmt::format("answers end with {}, which is trained here. Axolotl trains it only if it is the "
                             "tokenizer's eos_token ({}) or one of eot_tokens",
                             end.token, why));
}

const std::string kTask = "Below is an instruction that describes a task";
const std::string kContext = ", paired with an input that provides further context";
const std::string kRequest = ". Write a response that appropriately completes the request.";

/// A piece of a format: text, or the name of a column.
struct FormatPiece {
  std::string text;
  bool is_column = false;
};

/// nullopt: a brace without its partner.
std::optional<std::vector<FormatPiece>> pieces_of(const std::string& format) {
  std::vector<FormatPiece> pieces = {{}};
  for (std::size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      pieces.back().text += c;
    } else if (i + 1 < format.size() && format[i + 1] == c) {
      pieces.back().text += c;
      ++i;
    } else {
      const std::size_t end = format.find('}', i);
      if (c == '}' || end == std::string::npos) return std::nullopt;
      pieces.push_back({format.substr(i + 1, end - i - 1), true});
      pieces.push_back({});
      i = end;
    }
  }
  std::erase_if(pieces, [](const FormatPiece& piece) { return piece.text.empty() && !piece.is_column; });
  return pieces;
}

/// Which Jinja expression stands for a column.
using ColumnNames = std::vector<std::pair<std::string, std::string>>;

std::string expression_of(const std::string& format, const ColumnNames& columns) {
  std::string sum;
  const std::vector<FormatPiece> pieces = pieces_of(format).value();
  for (const FormatPiece& piece : pieces) {
    const auto column = std::ranges::find_if(columns, [&](const auto& entry) { return entry.first == piece.text; });
    sum += (sum.empty() ? "" : " + ") + (piece.is_column ? column->second : jinja_text(piece.text));
  }
  return sum.empty() ? "''" : sum;
}

std::string before_first(const std::string& text) {
  return text.empty() ? "" : fmt::format("({} if loop.first else '') + ", jinja_text(text));
}

std::string wrong_format(const std::string& name, const std::string& format, const std::vector<std::string>& known) {
  const auto pieces = pieces_of(format);
  const bool is_right = pieces && std::ranges::all_of(*pieces, [&](const FormatPiece& piece) {
                          return !piece.is_column || std::ranges::count(known, piece.text) > 0;
                        });
  if (is_right) return {};
  std::string columns;
  for (const std::string& column : known) columns += fmt::format("{}{}}}", columns.empty() ? "{" : " and {", column);
  return fmt::format("{} is \"{}\"; only {}{} there.", name, format, columns,
                     known.size() > 1 ? " are placeholders" : " is a placeholder");
}

PromptWords alpaca_words() {
  return {"### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
          "### Instruction:\n{instruction}\n\n### Response:\n", "{system}\n\n",
          fmt::format("{}{}{}\n\n", kTask, kContext, kRequest), fmt::format("{}{}\n\n", kTask, kRequest)};
}

PromptWords chatml_words() {
  const std::string user = "<|im_start|>user\n", answer = "<|im_end|>\n<|im_start|>assistant\n",
                    system = "<|im_start|>system\n", end = "<|im_end|>\n";
  return {user + "{instruction}\n{input}" + answer, fmt::format("{}{{instruction}}{}", user, answer),
          system + "{system}" + end, system + kTask + kContext + kRequest + end, system + kTask + kRequest + end};
}

PromptWords user_assistant_words() {
  return {"USER: {instruction}\n{input}\nASSISTANT:", "USER: {instruction}\nASSISTANT:", "SYSTEM: {system}\n",
          fmt::format("SYSTEM: {}{}{}\n", kTask, kContext, kRequest), fmt::format("SYSTEM: {}{}\n", kTask, kRequest)};
}

PromptWords with_system_of_example(PromptWords words) {
  words.default_with_input.clear();
  words.default_without_input.clear();
  words.reads_system = true;
  return words;
}

}  // namespace

std::string template_text(const std::string& jinja) {
  if (!is_template_file(jinja)) return jinja;
  try {
    return read_file(jinja);
  } catch (const Error&) {  // the run will say that it is missing
    return "";
  }
}

std::string first_chat_dataset(const Converter& converter) {
  return first_dataset(converter, [](const Value& entry) { return is_chat_type(entry.find("type")); });
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
    converter.note("chat_template", "if the model has no template of its own, the run fails: then set " +
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
                     name + " is not supported. Use the model's own (tokenizer), or save it to a .jinja file.");
  }
}

void convert_axolotl_end_tokens(Converter& converter) {
  AnswerEnd end = find_answer_end(converter);
  convert_special_tokens(converter, end);
  const Value* special = converter.find("special_tokens");
  const Value* eos = special ? special->find(kEos) : nullptr;
  if (eos && !eos->text.empty()) end.eos = eos->text;
  convert_eot_tokens(converter, end);
  note_untrained_end(converter, end);
}

std::optional<PromptWords> prompt_words(const std::string& type) {
  if (type == "alpaca" || type == "alpaca:instruct" || type == "alpaca_instruct") return alpaca_words();
  if (type == "alpaca:chatml") return chatml_words();
  if (type == "alpaca:chat") return user_assistant_words();
  if (type == "alpaca_w_system") return with_system_of_example(user_assistant_words());
  if (type == "alpaca_w_system.load_instruct") return with_system_of_example(alpaca_words());
  if (type != "gpteacher" && type != "gpteacher:instruct") return std::nullopt;
  PromptWords words = alpaca_words();
  words.columns = {{"output", "response"}};
  return words;
}

PromptWords prompt_words(const Value& type) {
  const auto said = [&](const char* name, const char* otherwise) {
    const Value* value = type.find(name);
    return value && !value->is_null() ? value->text : std::string(otherwise);
  };
  PromptWords words{said("format", "{instruction} {input} "), said("no_input_format", "{instruction} "),
                    said("system_format", "{system}"), "", ""};
  for (const char* column : {"instruction", "input", "output", "system"}) {
    words.columns.emplace_back(column, said(("field_" + std::string(column)).c_str(), column));
  }
  words.reads_system = true;
  const std::string prompt = said("system_prompt", "");
  if (prompt.empty() || !wrong_format("", words.system, {"system"}).empty()) return words;
  const std::vector<FormatPiece> pieces = pieces_of(words.system).value();
  for (const FormatPiece& piece : pieces) {
    words.default_without_input += piece.is_column ? prompt : piece.text;
  }
  words.default_with_input = words.default_without_input;
  words.reads_system = false;
  words.has_system_prompt = true;
  return words;
}

std::string problem_of(const PromptWords& words) {
  for (const std::string& problem : {wrong_format("format", words.with_input, {"instruction", "input"}),
                                     wrong_format("no_input_format", words.without_input, {"instruction"}),
                                     wrong_format("system_format", words.system, {"system"})}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string border_problem(const PromptWords& words) {
  for (const std::string& format : {words.with_input, words.without_input}) {
    if (format.ends_with('\n')) continue;
    const std::size_t line = format.rfind('\n') + 1;  // of npos: 0
    return "ends its prompt with \"" + format.substr(line) +
           "\". Axolotl tokenises prompt and answer separately, which is the same here only after a line feed.";
  }
  return {};
}

std::string sample_prompt(const PromptWords& words) {
  std::string prompt = words.default_without_input;
  const std::vector<FormatPiece> pieces = pieces_of(words.without_input).value();
  for (const FormatPiece& piece : pieces) prompt += piece.is_column ? "x" : piece.text;
  return prompt;
}

std::string template_of(const PromptWords& words, bool adds_bos) {
  // The template gets instruction, line feed and input as content; that shows what reached the text.
  const ColumnNames both = {{"instruction", "message.content[:end - 1]"}, {"input", "message.content[end:]"}};
  const std::string user = "{{ " + before_first(words.default_with_input) + expression_of(words.with_input, both) +
                           " }}\n",
                    alone = "{{ " + before_first(words.default_without_input) +
                            expression_of(words.without_input, {{"instruction", "message.content"}}) + " }}\n";
  return std::string(adds_bos ? "{{- bos_token -}}\n" : "") + "{%- for message in messages -%}\n" +
         "{%- if message.role == 'system' -%}{{ " + expression_of(words.system, {{"system", "message.content"}}) +
         " }}\n" + "{%- elif message.role == 'assistant' -%}{{ message.content + eos_token }}\n" +
         "{%- elif message.input -%}\n" + "{%- set end = message.content | length - message.input | length -%}\n" +
         user + "{%- else -%}" + alone + "{%- endif -%}\n{%- endfor -%}\n";
}

}  // namespace lora_train
