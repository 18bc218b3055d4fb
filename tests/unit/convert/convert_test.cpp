#include "lora_train/convert/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/load.h"
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
  for (const auto& [key, tool] : {std::pair("lora_target_linear", "Axolotl"),
                                  {"wandb_project", "Axolotl"},
                                  {"neftune_noise_alpha", "Axolotl"},
                                  {"cutoff_len", "LLaMA-Factory"},
                                  {"assistant_only_loss", "TRL"},
                                  {"surprising", ""}}) {
    EXPECT_EQ(tool_of_key(key), tool) << key;
  }
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

/// Why a file is not converted; empty: it is.
std::string refusal(const Converted& files, const std::string& text, std::optional<ForeignTool> tool = std::nullopt,
                    const std::string& name = "source.yaml") {
  try {
    convert_profile(files.write(name, text), tool);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.where(), (files.folder() / name).string());
    return error.message();
  }
  return {};
}

TEST(Convert, AsksWhichToolWhereTheKeysDoNotTell) {
  const Converted files;
  const std::string question = " Which tool is it from? Pass --from axolotl, --from llamafactory or --from trl.";
  EXPECT_EQ(refusal(files, "learning_rate: 1e-4\n"), "no key of this file belongs to only one tool." + question);
  EXPECT_EQ(refusal(files, "use_peft: true\nlora_rank: 8\n"),
            "has keys of LLaMA-Factory 0.9.5 (lora_rank) and of TRL 1.16.0 (use_peft)." + question);
}

TEST(Convert, DoesNotConvertAProfileAgain) {
  const Converted files;
  const std::string converted = files.of(kBase.at(ForeignTool::kAxolotl)).yaml;
  for (const std::string text : {"model: m\ndatasets: [{path: d}]\n", "model: m\nlora_r: 8\nwandb_project: p\n",
                                 "extends: base.yaml\nlora_r: 8\n", converted.c_str()}) {
    for (const auto tool : {std::optional<ForeignTool>(), std::optional(ForeignTool::kAxolotl)}) {
      EXPECT_EQ(refusal(files, text, tool), "is already a lora-train profile. To look at it: lora-train check " +
                                                (files.folder() / "source.yaml").string() + ".");
    }
  }
}

TEST(Convert, PointsScriptsToTheTable) {
  const Converted files;
  EXPECT_EQ(refusal(files, "- 1\n"), "is not a configuration file: expected keys and values.");
  EXPECT_EQ(refusal(files, "from trl import SFTTrainer\n", std::nullopt, "train.py"),
            "is a Python script, and only configuration files can be converted. Write a profile with the table \"From "
            "a Python script\" in docs/convert.md.");
  EXPECT_EQ(refusal(files, "model: m\nr: 8\ntarget_modules: [q_proj]\ntrain_dataset: d.jsonl\nnum_train_epochs: 1\n"),
            "is a script's own configuration (r, target_modules, train_dataset), and each script names its keys as it "
            "likes. Write a profile with the table \"From a Python script\" in docs/convert.md.");
}

TEST(Convert, NamesTheCommandsForAFileThatTrainsNothing) {
  const Converted files;
  const std::string model = "model_name_or_path: m\ntemplate: qwen\n", adapter = "adapter_name_or_path: saves/x\n";
  const std::string merge = "lora-train merge --model ";
  const std::map<std::string, std::string> cases = {
      {model + adapter + "infer_backend: huggingface\n", merge + "m --adapter saves/x --output-dir MERGED"},
      {model + "infer_backend: huggingface\n", merge + "m --adapter ADAPTER --output-dir MERGED"},
      {model + adapter + "stage: sft\ndo_predict: true\neval_dataset: d\noutput_dir: out\n",
       merge + "m --adapter saves/x --output-dir out-merged"},
      {model + adapter + "finetuning_type: lora\nexport_dir: out\n", merge + "m --adapter saves/x --output-dir out"},
      {model + "export_dir: out\nadapter_name_or_path: a, b\n",
       merge + "m --adapter a --output-dir out-1 && " + merge + "out-1 --adapter b --output-dir out"},
      {model + "export_dir: out\nadapter_name_or_path: [a, b]\n",
       merge + "m --adapter a --output-dir out-1 && " + merge + "out-1 --adapter b --output-dir out"}};
  for (const auto& [text, line] : cases) {
    EXPECT_EQ(
        refusal(files, text, ForeignTool::kLlamaFactory),
        "trains nothing. To answer, use lora-train chat, generate or eval with --model and --adapter; to merge: " +
            line + ".");
    EXPECT_EQ(merge_line(files.folder() / "source.yaml"), line);
  }
  EXPECT_EQ(merge_line(files.write("profile.yaml", "model: m\noutput_dir: run\n")),
            merge + "m --adapter run --output-dir run-merged");
  EXPECT_EQ(merge_line("missing.yaml"), merge + "MODEL --adapter ADAPTER --output-dir MERGED");
}

TEST(Convert, SetsKeysOfTheSourceBeforeAndOfTheProfileAfterwards) {
  const Converted files;
  const std::string source =
      files.write("source.yaml", kBase.at(ForeignTool::kAxolotl) + "gradient_accumulation_steps: 4\nlora_r: 8\n");
  const auto convert = [&](const ConvertOptions& options) { return convert_profile(source, std::nullopt, options); };
  const Conversion before = convert({.overrides = {parse_override("learning_rate=0.5"), parse_override("surprising=1"),
                                                   parse_override("datasets[0].path=e.jsonl")}});
  EXPECT_EQ(by_key(before.kept).at("learning_rate"), "0.5");
  EXPECT_TRUE(by_key(before.refused).contains("surprising"));
  EXPECT_NE(before.yaml.find("path: e.jsonl"), std::string::npos) << before.yaml;
  const Conversion after = convert({.settings = {parse_override("lora_r=4", "--lora-r"),
                                                 parse_override("global_batch_size=8", "--global-batch-size"),
                                                 parse_override("sequence_len=64", "--sequence-len")}});
  const Profile profile = files.load(after.yaml).profile;
  EXPECT_EQ(profile.data.max_seq_len, 64);
  EXPECT_NE(after.yaml.find("global_batch_size: 8"), std::string::npos) << after.yaml;
  EXPECT_EQ(after.yaml.find("gradient_accumulation_steps"), std::string::npos) << after.yaml;
  EXPECT_EQ(by_key(after.renamed).at("lora_r"), "lora_r: 4   (--lora-r)");
  const std::string error = files.error_of([&] { convert({.settings = {parse_override("lora_r=x", "--lora-r")}}); });
  testing_support::expect_mistake(error, "", "--lora-r: got \"x\"");
}

TEST(Convert, KnowsAConvertedFileAndWhatItWasMadeFrom) {
  const Converted files;
  const std::string name = "other (1).yml";
  const std::string written = convert_profile(files.write(name, kBase.at(ForeignTool::kTrl)), std::nullopt).yaml;
  EXPECT_EQ(kind_of_converted(written), ConvertedFile::kUnedited);
  std::string other_hash = written;
  other_hash.replace(other_hash.find("# Hash"), 6, "# hash");
  for (const auto& edited : {written + "seed: 7\n", other_hash, written.substr(0, written.find('\n'))}) {
    EXPECT_EQ(kind_of_converted(edited), ConvertedFile::kEdited) << edited;
    EXPECT_EQ(source_of_converted(edited), name);
  }
  EXPECT_EQ(kind_of_converted("model: mine\n"), ConvertedFile::kForeign);
  EXPECT_EQ(source_of_converted("model: mine\n"), "");
}

}  // namespace
}  // namespace lora_train
