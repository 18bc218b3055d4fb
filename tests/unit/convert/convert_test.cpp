#include "lora_train/convert/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"
#include "tool_keys.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

constexpr ForeignTool kTools[] = {ForeignTool::kAxolotl, ForeignTool::kLlamaFactory, ForeignTool::kTrl};

/// A file of each tool that converts whole.
const std::map<ForeignTool, std::string> kBase = {
    {ForeignTool::kAxolotl, "base_model: m\ndatasets: [{path: d.jsonl, type: chat_template}]\nadapter: lora\n"},
    {ForeignTool::kLlamaFactory, "model_name_or_path: m\nfinetuning_type: lora\n"},
    {ForeignTool::kTrl, "model_name_or_path: m\ndataset_name: d\nuse_peft: true\n"}};

struct Converted : ProfileText {
  Conversion of(const std::string& text, std::optional<ForeignTool> tool = std::nullopt) const {
    return convert_profile(write("source.yaml", text), tool);
  }
  /// What the converted profile says, resolved.
  std::string profile(const Conversion& conversion) const { return to_json(load(conversion.yaml).profile); }
};

std::map<std::string, std::string> by_key(const std::vector<ConvertedKey>& keys) {
  std::map<std::string, std::string> map;
  for (const auto& [key, outcome, place] : keys) map[key] = outcome;
  return map;
}

bool has_note(const Conversion& conversion, const std::string& start) {
  return std::ranges::any_of(conversion.notes, [&](const std::string& note) { return note.starts_with(start); });
}

/// From the root of the repository, where tests run: the keys of a tool with their defaults (empty = none), as
/// scripts/foreign_keys.py wrote them.
std::vector<std::pair<std::string, std::string>> schema(ForeignTool tool) {
  const std::string file =
      "tests/unit/convert/foreign_keys/" + names_of(tool).at(static_cast<std::size_t>(tool)) + ".yaml";
  std::vector<std::pair<std::string, std::string>> keys;
  for (const auto& [key, value] : parse_yaml(read_file(file), {file, 0}).members)
    keys.emplace_back(key, value.quoted ? "\"" + value.text + "\"" : value.text);
  return keys;
}

TEST(Convert, KnowsEveryKeyOfEachSchema) {
  for (const ForeignTool tool : kTools) {
    const auto keys = schema(tool);
    ASSERT_GT(keys.size(), 180u) << title_of(tool);
    for (const auto& [key, fallback] : keys) {
      EXPECT_NE(tool_of(tool).find(key), nullptr) << title_of(tool) << " has " << key;
      EXPECT_NE(tool_of_key(key), "") << key;
    }
  }
}

TEST(Convert, NamesTheToolOfAKey) {
  EXPECT_EQ(tool_of_key("lora_target_linear"), "Axolotl");
  EXPECT_EQ(tool_of_key("cutoff_len"), "LLaMA-Factory");
  EXPECT_EQ(tool_of_key("assistant_only_loss"), "TRL");
  EXPECT_EQ(tool_of_key("surprising"), "");
}

// A default that is spelled out says what silence says.
TEST(Convert, ADefaultThatIsSpelledOutChangesNothing) {
  const Converted files;
  const std::set<std::string> said = {"use_peft", "finetuning_type"};  // by the base
  // Threads, recomputation, and names for the same update.
  const std::set<std::string> same_numbers = {"dataloader_num_workers", "gradient_checkpointing",
                                              "per_device_eval_batch_size", "optim", "optimizer"};
  for (const ForeignTool tool : kTools) {
    const std::string silent = files.profile(files.of(kBase.at(tool), tool));
    std::size_t num_tried = 0;
    for (const auto& [key, fallback] : schema(tool)) {
      if (fallback.empty() || said.contains(key)) continue;
      const Conversion spelled = files.of(kBase.at(tool) + key + ": " + fallback + "\n", tool);
      EXPECT_TRUE(spelled.refused.empty()) << title_of(tool) << ", " << key << ": " << fallback << ": "
                                           << (spelled.refused.empty() ? "" : spelled.refused[0].outcome);
      const std::string now = same_numbers.contains(key) ? silent : files.profile(spelled);
      EXPECT_EQ(now, silent) << title_of(tool) << ", " << key << ": " << fallback;
      ++num_tried;
    }
    EXPECT_GT(num_tried, 40u);
  }
}

TEST(Convert, PutsEveryKeyIntoExactlyOnePart) {
  const Converted files;
  for (const ForeignTool tool : kTools) {
    std::string text;
    std::set<std::string> given;
    for (const auto& [key, fallback] : schema(tool)) {
      text += key + ": " + (fallback.empty() ? "7" : fallback) + "\n";
      given.insert(key);
    }
    text += "surprising: 1\nempty:\n";
    given.insert({"surprising", "empty"});
    const Conversion conversion = files.of(text, tool);
    std::multiset<std::string> stands;
    for (const auto* part : {&conversion.kept, &conversion.renamed, &conversion.dropped, &conversion.refused}) {
      for (const auto& entry : *part) {
        EXPECT_FALSE(entry.outcome.empty()) << entry.key;
        stands.insert(entry.key);
      }
    }
    for (const auto& key : given) EXPECT_EQ(stands.count(key), 1u) << title_of(tool) << ": " << key;
    EXPECT_TRUE(by_key(conversion.refused).contains("surprising"));
    EXPECT_TRUE(by_key(conversion.dropped).contains("empty"));
  }
}

TEST(Convert, RecognisesTheToolByItsOwnKeys) {
  const Converted files;
  for (const ForeignTool tool : kTools) {
    const Conversion conversion = files.of(kBase.at(tool));
    EXPECT_EQ(title_of(conversion.tool), title_of(tool));
    EXPECT_FALSE(conversion.recognised_by.empty());
  }
}

TEST(Convert, AsksWhichToolWhereTheKeysDoNotTell) {
  const Converted files;
  const auto error = [&](const std::string& text) {
    try {
      files.of(text);
    } catch (const ConfigError& problem) {
      return std::string(problem.what());
    }
    return std::string();
  };
  EXPECT_NE(error("learning_rate: 1e-4\n").find("--from axolotl, --from llamafactory or --from trl"),
            std::string::npos);
  EXPECT_NE(error("use_peft: true\nlora_rank: 8\n")
                .find("has keys of LLaMA-Factory 0.9.5 (lora_rank) and of TRL 1.16.0 (use_peft)"),
            std::string::npos);
  EXPECT_NE(error("model: m\ndatasets: [{path: d}]\n").find("is already a lora-train profile"), std::string::npos);
  EXPECT_NE(error("- 1\n").find("is not a configuration file"), std::string::npos);
}

TEST(Convert, SaysWhereTheAdapterWouldBeAnother) {
  const Converted files;
  const auto refused = [&](const std::string& more) {
    return by_key(files.of(kBase.at(ForeignTool::kAxolotl) + more, ForeignTool::kAxolotl).refused);
  };
  EXPECT_TRUE(refused("neftune_noise_alpha: 5\n").contains("neftune_noise_alpha"));
  EXPECT_TRUE(refused("rl: dpo\n").contains("rl"));
  EXPECT_TRUE(refused("optimizer: lion_8bit\n").contains("optimizer"));
  EXPECT_TRUE(refused("lora_r: many\n").at("lora_r").find("expected an integer") != std::string::npos);
  EXPECT_TRUE(refused("neftune_noise_alpha: 0\nrl:\npeft_use_dora: false\n").empty());
}

TEST(Convert, WritesDefaultsThatAreNotOurs) {
  const Converted files;
  const auto value = [&](ForeignTool tool, const std::string& more, const std::string& key) {
    const Conversion conversion = files.of(kBase.at(tool) + more, tool);
    for (const auto& entry : conversion.defaults) {
      if (entry.key == key) return entry.value;
    }
    return std::string();
  };
  EXPECT_EQ(value(ForeignTool::kLlamaFactory, "lora_rank: 24\n", "lora_alpha"), "48");
  EXPECT_EQ(value(ForeignTool::kLlamaFactory, "lora_rank: 24\nlora_alpha: 24\n", "lora_alpha"), "");
  EXPECT_EQ(value(ForeignTool::kLlamaFactory, "", "learning_rate"), "5.0e-5");
  EXPECT_EQ(value(ForeignTool::kTrl, "", "learning_rate"), "2.0e-5");
  EXPECT_EQ(value(ForeignTool::kTrl, "", "lora_target_modules"), "[q_proj, v_proj]");
  EXPECT_EQ(value(ForeignTool::kTrl, "load_in_4bit: true\n", "double_quant"), "false");
  EXPECT_EQ(value(ForeignTool::kAxolotl, "", "max_seq_len"), "512");
  EXPECT_EQ(value(ForeignTool::kAxolotl, "", "num_epochs"), "1");
  EXPECT_EQ(value(ForeignTool::kAxolotl, "", "packing"), "false");
  EXPECT_EQ(value(ForeignTool::kAxolotl, "max_steps: 5\n", "num_epochs"), "");
}

TEST(Convert, ReadsWarmUpAsStepsOrAsAShare) {
  const Converted files;
  const auto renamed = [&](const std::string& more) {
    const Conversion conversion = files.of(kBase.at(ForeignTool::kTrl) + more, ForeignTool::kTrl);
    auto all = by_key(conversion.renamed);
    all.merge(by_key(conversion.kept));
    return all;
  };
  EXPECT_EQ(renamed("warmup_steps: 0.1\n").at("warmup_steps"), "warmup_ratio: 0.1");
  EXPECT_EQ(renamed("warmup_steps: 10\n").at("warmup_steps"), "10");
  EXPECT_EQ(renamed("warmup_ratio: 0.2\nwarmup_steps: 0\n").at("warmup_ratio"), "0.2");
}

// Trainer reads null as a value: no limit.
TEST(Convert, ANullThatMeansSomethingIsNoSilence) {
  const Converted files;
  const auto profile = [&](const std::string& more) {
    return files.load(files.of(kBase.at(ForeignTool::kTrl) + more).yaml).profile;
  };
  EXPECT_EQ(profile("max_grad_norm: null\n").optimizer.max_grad_norm, 0);
  EXPECT_EQ(profile("").optimizer.max_grad_norm, 1);
  EXPECT_EQ(profile("max_length: null\n").data.max_seq_len, std::nullopt);
  EXPECT_EQ(profile("").data.max_seq_len, 1024);
}

TEST(Convert, ADeepSpeedFileIsRefusedWhereItDecidesAboutTheTraining) {
  const Converted files;
  files.write(
      "plain.json",
      "{\"zero_optimization\": {\"stage\": 3}, \"gradient_clipping\": \"auto\", \"fp16\": {\"enabled\": false}}");
  files.write("clips.json", "{\"gradient_clipping\": 0.5}");
  for (const ForeignTool tool : kTools) {
    const auto conversion = [&](const std::string& value) {
      return files.of(kBase.at(tool) + "deepspeed: " + value + "\n", tool);
    };
    EXPECT_TRUE(by_key(conversion("plain.json").dropped).contains("deepspeed"));
    EXPECT_FALSE(has_note(conversion("plain.json"), "deepspeed: was not found"));
    EXPECT_NE(by_key(conversion("clips.json").refused).at("deepspeed").find("gradient_clipping"), std::string::npos);
    EXPECT_NE(by_key(conversion("{optimizer: {type: Lion}}").refused).at("deepspeed").find("optimizer"),
              std::string::npos);
    EXPECT_TRUE(has_note(conversion("missing.json"), "deepspeed: was not found"));
  }
}

TEST(Convert, AnAdapterToStartFromBringsItsShape) {
  const Converted files;
  const Conversion conversion = files.of("finetuning_type: lora\nlora_rank: 8\nadapter_name_or_path: saves/first\n");
  EXPECT_EQ(by_key(conversion.renamed).at("adapter_name_or_path"), "init_adapter: saves/first");
  EXPECT_TRUE(by_key(conversion.dropped).contains("lora_rank"));
  EXPECT_FALSE(files.load(conversion.yaml).profile.is_given("lora_r"));
}

TEST(Convert, WhatContradictsItselfDoesNotReachTheProfile) {
  const Converted files;
  const Conversion full = files.of("base_model: m\nload_in_4bit: true\n");
  EXPECT_TRUE(by_key(full.refused).contains("load_in_4bit"));
  const Conversion bits = files.of("finetuning_type: full\nquantization_bit: 4\n");
  EXPECT_TRUE(by_key(bits.refused).contains("quantization_bit"));
  const Conversion patience =
      files.of(kBase.at(ForeignTool::kAxolotl) + "val_set_size: 0.1\nearly_stopping_patience: 2\n");
  EXPECT_TRUE(by_key(patience.dropped).contains("early_stopping_patience"));
  EXPECT_TRUE(by_key(files.of("finetuning_type: lora\nval_size: 0.1\neval_dataset: d\n").refused).contains("val_size"));
  for (const Conversion* conversion : {&full, &bits, &patience}) EXPECT_EQ(files.error(conversion->yaml), "");
}

TEST(Convert, ALimitOfRowsBecomesThatOfEachDatasetThatHasMore) {
  const Converted files;
  files.write("data/dataset_info.json", "{\"d\": {\"file_name\": \"d.jsonl\"}}");
  files.write("data/d.jsonl",
              "{\"instruction\": \"a\", \"output\": \"b\"}\n{\"instruction\": \"a\", \"output\": \"b\"}\n");
  const auto conversion = [&](const std::string& more) {
    return files.of("finetuning_type: lora\ndataset: d\ndataset_dir: data\n" + more);
  };
  EXPECT_TRUE(by_key(conversion("max_samples: 2\n").dropped).contains("max_samples"));
  const Conversion cut = conversion("max_samples: 1\n");
  EXPECT_TRUE(by_key(cut.renamed).contains("max_samples"));
  EXPECT_NE(cut.yaml.find("max_samples: 1"), std::string::npos) << cut.yaml;
  EXPECT_NE(by_key(conversion("eval_dataset: f\n").refused).at("eval_dataset").find("f is not in"), std::string::npos);
}

}  // namespace
}  // namespace lora_train
