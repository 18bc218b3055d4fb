#include "axolotl_prompts.h"

#include <algorithm>

#include "chat_templates.h"

namespace lora_train {
namespace {

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
  return text.empty() ? "" : "(" + jinja_text(text) + " if loop.first else '') + ";
}

std::string wrong_format(const std::string& name, const std::string& format, const std::vector<std::string>& known) {
  const auto pieces = pieces_of(format);
  const bool is_right = pieces && std::ranges::all_of(*pieces, [&](const FormatPiece& piece) {
                          return !piece.is_column || std::ranges::count(known, piece.text) > 0;
                        });
  if (is_right) return {};
  std::string columns;
  for (const std::string& column : known) columns += (columns.empty() ? "{" : " and {") + column + "}";
  return name + " is \"" + format + "\", where only " + columns + (known.size() > 1 ? " stand" : " stands") +
         " for something.";
}

PromptWords alpaca_words() {
  return {"### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
          "### Instruction:\n{instruction}\n\n### Response:\n", "{system}\n\n", kTask + kContext + kRequest + "\n\n",
          kTask + kRequest + "\n\n"};
}

PromptWords chatml_words() {
  const std::string user = "<|im_start|>user\n", answer = "<|im_end|>\n<|im_start|>assistant\n",
                    system = "<|im_start|>system\n", end = "<|im_end|>\n";
  return {user + "{instruction}\n{input}" + answer, user + "{instruction}" + answer, system + "{system}" + end,
          system + kTask + kContext + kRequest + end, system + kTask + kRequest + end};
}

PromptWords user_assistant_words() {
  return {"USER: {instruction}\n{input}\nASSISTANT:", "USER: {instruction}\nASSISTANT:", "SYSTEM: {system}\n",
          "SYSTEM: " + kTask + kContext + kRequest + "\n", "SYSTEM: " + kTask + kRequest + "\n"};
}

PromptWords with_system_of_row(PromptWords words) {
  words.default_with_input.clear();
  words.default_without_input.clear();
  words.reads_system = true;
  return words;
}

}  // namespace

std::optional<PromptWords> prompt_words(const std::string& type) {
  if (type == "alpaca" || type == "alpaca:instruct" || type == "alpaca_instruct") return alpaca_words();
  if (type == "alpaca:chatml") return chatml_words();
  if (type == "alpaca:chat") return user_assistant_words();
  if (type == "alpaca_w_system") return with_system_of_row(user_assistant_words());
  if (type == "alpaca_w_system.load_instruct") return with_system_of_row(alpaca_words());
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
           "\". Axolotl tokenises prompt and answer apart, which is the same here only behind a line feed.";
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
  // The template gets instruction, line feed and input as content; what reached the text is told by that.
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
