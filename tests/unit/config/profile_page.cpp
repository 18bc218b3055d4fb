#include "unit/config/profile_page.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/keys/reference.h"

namespace lora_train {
namespace {

std::string table_cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string code(const std::string& text) { return fmt::format("`{}`", table_cell(text)); }

std::string key_sections() {
  std::string out, group;
  std::istringstream lines(keys_json());
  for (std::string line; std::getline(lines, line);) {
    const auto key = nlohmann::json::parse(line);
    if (key["group"] != group) {
      group = key["group"];
      out +=
          "\n## " + group + "\n\n| Key | Default | Values | Meaning | May differ on resume |\n|---|---|---|---|---|\n";
    }
    out += "| " + code(key["key"]);
    for (const char* name : {"default", "values", "help"}) out += " | " + table_cell(key[name]);
    out += " | " + key["on_resume"].get<std::string>() + " |\n";
  }
  return out;
}

std::string alias_section() {
  std::string out =
      "\n## Names from other trainers\n\nEach is accepted, with a note in the log. Two names for one key in one file "
      "are an error.\n\n| Name | Key | Values |\n|---|---|---|\n";
  for (const Alias* alias : aliases()) {
    out += fmt::format("| {} | {} | {} |\n", code(alias->name), code(alias->key),
                       table_cell(alias->meaning.empty() ? "the same" : alias->meaning));
  }
  out +=
      "\nSome values have other names too: `adapter: qlora` is lora with an nf4 base; `optim` takes paged_adamw_8bit "
      "and adamw_bnb_8bit (adamw_8bit), paged_adamw_32bit and adamw (adamw_torch); `attn_implementation` takes sdpa, "
      "flash_attention_2, flash_attention_3 (auto) and eager (reference); `gradient_checkpointing` true and unsloth "
      "(full); `cuda_graphs` true (auto); `resume_from_checkpoint` false (none) and true (auto); `warmup_steps` below "
      "1 is warmup_ratio; `max_steps: -1` is no limit; `metric_for_best_model` takes eval_mean_token_accuracy and "
      "eval_accuracy (token_accuracy) and eval_perplexity (perplexity).\n";
  return out;
}

std::string refused_section() {
  std::string out = "\n## Names that are refused\n\n| Name | Why, and what to use |\n|---|---|\n";
  for (const RefusedName& key : refused_names())
    out += fmt::format("| {} | {} |\n", code(key.name), table_cell(key.reason));
  return out +
         "\nSo are all other keys of Axolotl, LLaMA-Factory and TRL: `lora-train convert` ([convert.md](convert.md)) "
         "makes a profile from their files.\n";
}

const char* const kIntroduction =
    "# Profile keys\n\n"
    "<!-- Generated from src/config by scripts/make_profile_docs.sh; a test compares. Do not edit. -->\n\n"
    "A profile is YAML or JSON with flat keys. Required: `model`, `datasets`.\n\n"
    "- `--profile FILE` may be repeated; later files win. A NAME that is not a file is looked up among the shipped "
    "profiles (`lora-train check --list`). `extends: other.yaml` builds on another file. `--set key=value` wins over "
    "files; `a.b[0].c=v` sets a nested value, `datasets[+].path=x` appends. A list replaces the earlier list as a "
    "whole. Any key is a flag too: `--lora-r 8`.\n"
    "- Some keys are alternatives; a later file may replace one by the other, but one file may not set both: "
    "`global_batch_size` and `gradient_accumulation_steps`; `warmup_ratio` and `warmup_steps`; `eval_datasets` and "
    "`val_set_size`; `base_precision`, `load_in_4bit` and `load_in_8bit`.\n"
    "- `${VAR}` is an environment variable (an error if it is not set), `${VAR:-default}` gives a default, `$${` is a "
    "literal `${`.\n"
    "- YAML's merge keys work: `<<: *base` and `<<: [*first, *second]` add what the map does not set itself. A key "
    "that starts with `x-` may hold the anchors and has no effect itself.\n"
    "- `null` means the default, or no value where the table says so. `2e-4`, `2.0e-4` and `0.0002` are the same "
    "number. true, on and yes are the same, and so are false, off and no.\n"
    "- Relative paths start at the working directory; those in `extends` start at the file's folder. A leading `~/` is "
    "the home folder.\n"
    "- `lora-train check FILE` prints every value and where it came from; `check --schema` prints a JSON Schema for "
    "editors.\n";

}  // namespace

std::string profile_page() { return kIntroduction + key_sections() + alias_section() + refused_section(); }

}  // namespace lora_train
