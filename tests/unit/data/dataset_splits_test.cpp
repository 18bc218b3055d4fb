#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/data/read/dataset_files.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// A cache with the one dataset org/set, of which `main` is the commit "abc" and `old` another one.
class DatasetSplits : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("HF_HUB_CACHE", cache_.path().c_str(), 1);
    write("refs/main", "abc\n");
    write("refs/old", "def");
  }
  void TearDown() override { ::unsetenv("HF_HUB_CACHE"); }

  fs::path repository() const { return cache_ / "datasets--org--set"; }
  fs::path snapshot() const { return repository() / "snapshots/abc"; }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((repository() / name).parent_path());
    write_file_atomic(repository() / name, text);
  }
  /// As the Hub's client leaves them: links to blobs.
  void add(const Names& files) const {
    for (const auto& file : files) {
      write("blobs/" + std::to_string(std::hash<std::string>()(file)), "{}");
      fs::create_directories((snapshot() / file).parent_path());
      fs::create_symlink(repository() / "blobs" / std::to_string(std::hash<std::string>()(file)), snapshot() / file);
    }
  }
  void add_card(const std::string& configs) const {
    write("snapshots/abc/README.md", "---\nlanguage:\n- en\n" + configs + "tags: [a: {b]\n---\n# Set\nconfigs: none\n");
  }
  Names files(const std::string& split = "", const std::string& subset = "", DatasetUse use = DatasetUse::kTraining,
              const std::string& path = "org/set") const {
    DatasetSpec spec;
    spec.path = path;
    spec.split = split;
    spec.subset = subset;
    Names names;
    const fs::path folder = path.starts_with("org/") ? snapshot() : fs::path(path);
    for (const auto& file : dataset_files(spec, use))
      names.push_back(fs::path(file).lexically_relative(folder).string());
    return names;
  }
  std::string refusal(const std::string& split = "", const std::string& subset = "",
                      DatasetUse use = DatasetUse::kTraining, const std::string& path = "org/set") const {
    try {
      files(split, subset, use, path);
    } catch (const DataError& error) {
      return error.message();
    }
    return "accepted";
  }

  testing_support::TemporaryFolder cache_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// openai/gsm8k
constexpr const char* kTwoSubsets =
    "configs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  - split: test\n"
    "    path: main/test-*\n- config_name: socratic\n  data_files:\n  - split: train\n    path: socratic/train-*\n"
    "  - split: test\n    path: socratic/test-*\n";

TEST_F(DatasetSplits, SubsetsOfTheCardHaveTheirOwnFiles) {
  add({"main/train-00000-of-00001.jsonl", "main/test-00000-of-00001.jsonl", "socratic/train-00000-of-00001.jsonl",
       "socratic/test-00000-of-00001.jsonl", "dataset_infos.json"});
  add_card(kTwoSubsets);
  EXPECT_EQ(files("", "main"), (Names{"main/train-00000-of-00001.jsonl"}));
  EXPECT_EQ(files("test", "socratic", DatasetUse::kEvaluation), (Names{"socratic/test-00000-of-00001.jsonl"}));
  EXPECT_TRUE(has(refusal(), "several subsets; name one with `subset`. Available: main, socratic")) << refusal();
  EXPECT_TRUE(has(refusal("", "nine"), "no subset \"nine\". Available: main, socratic"));
  EXPECT_TRUE(has(refusal("", "main", DatasetUse::kEvaluation),
                  "several splits; name one with `split`. Available: test, train"));
  for (const char* expression : {"train[:10]", "train[:90%]", "train+test"}) {
    EXPECT_TRUE(has(refusal(expression, "main"), "for several, add one entry for each")) << expression;
  }
}

TEST_F(DatasetSplits, ADefaultSubsetNeedsNoName) {
  add({"a/x.jsonl", "b/x.jsonl"});
  add_card(
      "configs:\n- {config_name: a, data_files: a/*.jsonl}\n- {config_name: b, data_files: [b/*.jsonl], default: "
      "true}\n");
  EXPECT_EQ(files(), (Names{"b/x.jsonl"}));
  EXPECT_EQ(files("", "a"), (Names{"a/x.jsonl"}));
}

TEST_F(DatasetSplits, CardsMayNameAFolderOrDeepPatterns) {
  add({"x/en/1.jsonl", "x/en/deep/2.jsonl", "x/de/train.jsonl", "x/de/test.jsonl"});
  add_card(
      "configs:\n- config_name: en\n  data_files:\n    validation: x/en/**/*.jsonl\n- config_name: de\n  data_dir: "
      "x/de\n");
  EXPECT_EQ(files("", "en"), (Names{"x/en/1.jsonl", "x/en/deep/2.jsonl"}));
  EXPECT_EQ(files("", "de"), (Names{"x/de/train.jsonl"}));
}

TEST_F(DatasetSplits, WithoutACardNamesTellTheSplit) {
  add({"data/train-00000-of-00002-a1.jsonl", "data/train-00001-of-00002-b2.jsonl"});  // tatsu-lab/alpaca
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(files("train", "", DatasetUse::kEvaluation).size(), 2U);
  add({"data/test_sft-00000-of-00001.jsonl"});
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(files("test_sft"), (Names{"data/test_sft-00000-of-00001.jsonl"}));
  EXPECT_TRUE(has(refusal("test"), "no split \"test\". Available: test_sft, train")) << refusal("test");
}

TEST_F(DatasetSplits, TheFirstNumberEndsTheNameOfAShardsSplit) {
  add({"data/train-00000-of-00001-of-mine.jsonl", "data/test-00000-of-00001.jsonl"});
  EXPECT_EQ(files("train"), (Names{"data/train-00000-of-00001-of-mine.jsonl"}));
}

TEST_F(DatasetSplits, FilesWithoutASplitAreTrainWhereNoneHasOne) {
  add({"rows.jsonl", "more/rows.csv", "LICENSE.txt", ".gitattributes"});
  EXPECT_EQ(files("train"), (Names{"more/rows.csv", "rows.jsonl"}));
  add({"dev.jsonl"});
  EXPECT_EQ(files(), (Names{"dev.jsonl"}));
}

TEST_F(DatasetSplits, AFolderIsASubsetWithoutACard) {
  add({"en/train.jsonl", "en/test.jsonl", "de/train.jsonl"});
  EXPECT_EQ(files("", "de"), (Names{"de/train.jsonl"}));
  EXPECT_EQ(files("test", "en"), (Names{"en/test.jsonl"}));
  EXPECT_TRUE(has(refusal("", "fr"), "no subset \"fr\""));
}

TEST_F(DatasetSplits, ALocalFolderHasThemToo) {
  add({"train.jsonl", "test.jsonl"});
  const std::string folder = snapshot().string();
  EXPECT_EQ(files("test", "", DatasetUse::kTraining, folder), (Names{"test.jsonl"}));
  EXPECT_TRUE(has(refusal("", "", DatasetUse::kTraining, folder), "several splits: test.jsonl"));
  EXPECT_TRUE(has(refusal("", "", DatasetUse::kTraining, folder), "[{path: " + folder + ", split: train}]"));
  EXPECT_TRUE(has(refusal("train", "", DatasetUse::kTraining, folder + "/train.jsonl"), "cannot have `split`"));
}

TEST_F(DatasetSplits, WhatIsNotThereHasItsCommand) {
  EXPECT_TRUE(has(refusal(), "lora-train download org/set --dataset")) << refusal();
  const std::string old = refusal("", "", DatasetUse::kTraining, "org/set@v2");
  EXPECT_TRUE(has(old, "lora-train download org/set@v2 --dataset")) << old;
  add({"rows.py"});
  EXPECT_TRUE(has(refusal(), "no .jsonl"));
  add({"rows.jsonl"});
  add_card("configs:\n- config_name: default\n  data_files: train-*\n");
  EXPECT_TRUE(has(refusal(), "Download the whole dataset")) << refusal();
  add_card("configs:\n- config_name: [a]\n");
  EXPECT_TRUE(has(refusal(), "expected text as config_name"));
  add_card("configs: [\n");
  EXPECT_NE(refusal(), "accepted");
}

}  // namespace
}  // namespace lora_train::data
