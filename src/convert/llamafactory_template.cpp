#include "llamafactory_template.h"

#include <algorithm>
#include <map>

#include "chat_templates.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/scalar.h"

namespace lora_train {
namespace {

/// All that LLaMA-Factory 0.9.5 has.
constexpr const char* kTheirTemplates =
    "aeva, alpaca, bailing, bailing_v2, breeze, chatglm3, chatml, chatml_de, cohere, cpm4, custom, dbrx, "
    "deepseek, deepseek3, deepseekcoder, deepseekr1, default, dots_ocr, empty, ernie, ernie_nothink, ernie_vl, "
    "exaone, falcon, falcon_h1, fewshot, gemma, gemma2, gemma3, gemma3n, gemma4, gemma4n, glm4, glm4_5v, glm4_7, "
    "glm4_moe, glm4v, glm_ocr, glmz1, gpt_oss, granite3, granite3_vision, granite4, hunyuan, hunyuan_small, hy3, "
    "index, intern2, intern_s1, intern_vl, keye_vl, kimi_vl, lfm2, lfm2_vl, llama2, llama2_zh, llama3, llama4, "
    "llava, llava_next, llava_next_llama3, llava_next_mistral, llava_next_qwen, llava_next_video, "
    "llava_next_video_mistral, llava_next_video_yi, llava_next_yi, mimo, mimo_v2, mimo_vl, minicpm_o, minicpm_v, "
    "minicpm_v_4_6, minimax1, minimax2, ministral, ministral3, mistral, mistral_small, mllama, moonlight, olmo, "
    "openchat, openchat-3.6, opencoder, paligemma, paligemma_chat, phi, phi4, phi4_mini, phi_small, pixtral, "
    "qwen, qwen2_audio, qwen2_omni, qwen2_vl, qwen3, qwen3_5, qwen3_5_nothink, qwen3_6, qwen3_nothink, "
    "qwen3_omni, qwen3_omni_nothink, qwen3_vl, qwen3_vl_nothink, sailor, seed_coder, seed_oss, smollm, smollm2, "
    "solar, starchat, telechat2, vicuna, video_llava, xuanyuan, yi, yi_vl, youtu, youtu_vl, yuan, zephyr";

constexpr const char* kLineFeed = "the line feed after the end token is not trained here";

/// Where LLaMA-Factory encodes the text before and behind apart.
struct TurnCut {
  std::string before, opening;  ///< `opening` is what it writes before an answer
};

const std::map<std::string, std::vector<TurnCut>>& turn_cuts() {
  static const std::vector<TurnCut> chatml = {{"<|im_start|>assistant\n", ""}};
  static const std::map<std::string, std::vector<TurnCut>> cuts = {
      {"default", {{"\nAssistant:", ""}, {"\n", ""}}},
      {"alpaca", {{"### Response:\n", ""}, {"\n\n", ""}}},
      {"mistral", {{"[INST] x[/INST]", " "}}},
      {"chatml", chatml},
      {"qwen", chatml},
      {"qwen3", chatml},
      {"qwen3_nothink", chatml},
      {"llama3", {{"<|start_header_id|>assistant<|end_header_id|>\n\n", ""}}},
      {"gemma", {{"<start_of_turn>model\n", ""}}},
      {"gemma2", {{"<start_of_turn>model\n", ""}}},
      {"gemma3", {{"<start_of_turn>model\n", ""}}}};
  return cuts;
}

/// What speaks against the tokens of a template here; empty = nothing that is known.
std::string token_problem(const Converter& converter, const std::string& name) {
  const auto found = turn_cuts().find(name);
  if (found == turn_cuts().end()) return {};
  const std::string model = converter.profile_text("model");
  const auto& tokens = converter.prompt_tokens();
  const bool is_seen = tokens && tokens->keeps_apart;
  const auto is_line = [](const TurnCut& cut) { return cut.before.ends_with('\n') && cut.opening.empty(); };
  if (!is_seen && !(tokens && std::ranges::all_of(found->second, is_line))) {
    if (written_template(name).empty()) return {};  // a chat format, which its models have tokens for
    return "needs the tokenizer of " + model +
           ", to see that it cuts between turns, where LLaMA-Factory does. Download the model, or name its folder.";
  }
  const auto is_kept = [&](const TurnCut& cut) { return !is_seen || tokens->keeps_apart(cut.before, cut.opening); };
  if (std::ranges::all_of(found->second, is_kept)) return {};
  return name + " is tokenised turn by turn by LLaMA-Factory; the tokenizer of " + model +
         " begins a turn with another token when a chat is one text, as here. Use a template of the model's own tokens "
         "(chat_template: tokenizer).";
}

bool has_history(const DataEntry& entry) {
  return entry.type != "alpaca" ||
         std::ranges::any_of(entry.field_map, [](const auto& names) { return names.first == "history"; });
}

void convert_thinking(Converter& converter, const std::vector<DataEntry>& train) {
  const bool is_null = converter.has("enable_thinking") && !converter.find("enable_thinking");
  if (is_null || parse_bool(converter.text("enable_thinking")) == false) {
    converter.refuse(
        "enable_thinking",
        "LLaMA-Factory puts the empty <think> block into the prompt; qwen3's template trains it as part of "
        "the answer. Use template: qwen3_nothink, or a .jinja file.");
  }
  if (std::ranges::any_of(train, has_history) && !converter.is_true("mask_history")) {
    converter.note(
        "template",
        "in a chat of several turns, only the last answer has a <think> block here, as in Qwen3's own "
        "template, and the reasoning of earlier ones is left out; LLaMA-Factory writes and trains a block in "
        "each answer, unless mask_history is true");
  }
}

void note_builtin(Converter& converter, const std::string& name) {
  const bool is_gemma = name.starts_with("gemma"), trims = is_gemma || name == "llama3";
  if (name != "llama3") converter.note("template", kLineFeed);
  if (trims)
    converter.note("template", "white space at both ends of a message is left out here; LLaMA-Factory keeps it");
  if (name == "gemma2") converter.note("template", "LLaMA-Factory also trains <eos> at the end of a row");
}

/// `with_system`: the template with default_system in it; empty: it has none.
void convert_known_template(Converter& converter, const std::string& name, const std::string& with_system) {
  const std::string written = with_system.empty() ? written_template(name) : with_system;
  if (const std::string problem = token_problem(converter, name); !problem.empty()) {
    converter.refuse("template", problem);
  } else {
    converter.set_template("template", written);
    if (name == "mistral") {
      converter.note(
          "template",
          "as in LLaMA-Factory, the system prompt stands in the first question, and answers keep their white "
          "space; mistral-v3 does neither. A blank before an answer that is a token of its own is not trained here");
    } else {
      converter.note("template", kLineFeed);
    }
  }
  if (with_system.empty()) return;
  converter.is_refused("template") ? converter.drop("default_system", "belongs to template, which is refused")
                                   : converter.share("default_system", "chat_template");
}

void convert_builtin_template(Converter& converter, const std::string& name, const std::vector<DataEntry>& train) {
  std::string ours = builtin_template(name);
  const Value* given = converter.find("default_system");
  if (const std::string problem = token_problem(converter, name); !problem.empty())
    return converter.refuse("template", problem);
  if (ours == "qwen2.5" && given && given->text.empty()) {
    ours = "chatml";  // the same without a system prompt of its own
    converter.share("default_system", "chat_template");
  }
  converter.set("template", "chat_template", ours);
  note_builtin(converter, name);
  if (ours == "qwen3") convert_thinking(converter, train);
}

}  // namespace

void convert_llamafactory_template(Converter& converter, const std::vector<DataEntry>& train) {
  const std::string name = converter.text("template"), system = converter.text("default_system");
  if (name.empty()) return;
  const bool is_builtin = !builtin_template(name).empty(), is_written = !written_template(name).empty();
  const std::string with_system = system.empty() ? "" : written_template(name, system);
  if (std::ranges::any_of(train, &DataEntry::has_tools) && (is_builtin || is_written)) {
    converter.set("template", "chat_template", "tokenizer");
    converter.note("template",
                   "rows have tools or calls of them, which built-in templates do not write: the model's own is used");
  } else if (is_written || !with_system.empty()) {
    convert_known_template(converter, name, with_system);
  } else if (is_builtin) {
    convert_builtin_template(converter, name, train);
  } else if (is_models_own_template(name)) {
    converter.set("template", "chat_template", "tokenizer");
    converter.note("template", "the model's own template is used, which may write another system prompt");
  } else if (name == "empty") {
    converter.refuse("template",
                     "empty writes neither roles nor an end token, after which a model does not stop. Rows with "
                     "`prompt` and `completion` are plain text, too, and end with the end token.");
  } else {
    const std::vector<std::string> theirs = names_in(text_value(kTheirTemplates));
    const bool is_theirs = std::ranges::count(theirs, name) > 0;
    const std::string near = is_theirs ? "" : nearest_name(name, theirs);
    converter.refuse("template", name + (is_theirs ? " is not built." : " is no template of LLaMA-Factory.") +
                                     (near.empty() ? "" : " Did you mean " + near + "?") +
                                     " Use the model's own (chat_template: tokenizer), or a .jinja file.");
  }
}

}  // namespace lora_train
