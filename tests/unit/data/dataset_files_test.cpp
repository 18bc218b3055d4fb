#include "lora_train/data/read/dataset_files.h"

#include <gtest/gtest.h>

#include "lora_train/base/file.h"
#include "lora_train/storage/run_marker.h"
#include "support/environment.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

DatasetSpec spec_of(const std::string& path) {
  DatasetSpec spec;
  spec.path = path;
  return spec;
}

void write_files(const fs::path& folder, const Names& names) {
  for (const std::string& name : names) {
    fs::create_directories((folder / name).parent_path());
    write_file_atomic(folder / name, "{}");
  }
}

class DatasetFiles : public testing::Test {
 protected:
  DatasetFiles() {
    write_files(folder_.path(),
                {"b.jsonl", "a.json", "part/c.ndjson", "note.md", ".hidden.jsonl", "part/.cache/x.jsonl"});
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::vector<std::string> names(const std::string& path) const {
    std::vector<std::string> out;
    for (const auto& file : dataset_files(spec_of(path), DatasetUse::kTraining))
      out.push_back(fs::path(file).lexically_relative(folder_.path()).string());
    return out;
  }
  static std::string refusal(const std::string& path) {
    const std::string said =
        testing_support::refusal<DataError>([&] { dataset_files(spec_of(path), DatasetUse::kTraining); });
    EXPECT_TRUE(said == "accepted" || said.starts_with(path + ": ")) << said;
    return said.substr(said.rfind(path + ": ", 0) == 0 ? path.size() + 2 : 0);
  }

  testing_support::TemporaryFolder folder_;
};

TEST_F(DatasetFiles, FolderGivesItsDataFilesSortedWithoutWhatRunsWroteThere) {
  EXPECT_EQ(names(folder_.path().string()), (Names{"a.json", "b.jsonl", "part/c.ndjson"}));
  fs::create_directories(folder_ / "runs/first/tensorboard");
  write_files(folder_.path(), {"runs/first/metrics.jsonl"});
  EXPECT_EQ(names(folder_.path().string()).size(), 4U) << "a folder of that name is not enough";
  storage::write_new_marker(folder_ / "runs/first", false);
  EXPECT_EQ(names(folder_.path().string()), (Names{"a.json", "b.jsonl", "part/c.ndjson"}));
}

TEST_F(DatasetFiles, DataBesideTheOutputOfARunIsReadWithoutIt) {
  storage::write_new_marker(folder_.path(), false);
  write_files(folder_.path(),
              {"metrics.jsonl", "summary.json", "checkpoint-3/trainer_state.json", "checkpoint-best.jsonl"});
  EXPECT_EQ(names(folder_.path().string()), (Names{"a.json", "b.jsonl", "part/c.ndjson"}));
  EXPECT_EQ(names((folder_ / "*.json*").string()), (Names{"a.json", "b.jsonl"}));
}

TEST_F(DatasetFiles, FolderWithSeveralSplitsIsRefusedByName) {
  const auto refused = [](const Names& files) {
    const testing_support::TemporaryFolder folder;
    write_files(folder.path(), files);
    return refusal(folder.path().string());
  };
  EXPECT_SAYS(refused({"train-00000-of-00002.jsonl", "TEST.jsonl", "extra.jsonl"}),
              "TEST.jsonl (test), train-00000-of-00002.jsonl (train)");
  EXPECT_NE(refused({"train/a.jsonl", "dev/a.jsonl"}), "accepted");
  EXPECT_EQ(refused({"train/a.jsonl", "train/b.jsonl"}), "accepted");
  EXPECT_EQ(refused({"training_part1.jsonl", "train_part2.jsonl"}), "accepted");
  EXPECT_EQ(refused({"latest.jsonl", "devices.jsonl", "trained.jsonl"}), "accepted");
}

TEST_F(DatasetFiles, GlobGivesMatchesSortedUnlessAFileHasThatName) {
  EXPECT_EQ(names(path("*.js*")), (Names{"a.json", "b.jsonl"}));
  write_files(folder_.path(), {"x[1].jsonl"});
  EXPECT_EQ(names(path("x[1].jsonl")), (Names{"x[1].jsonl"}));
}

TEST_F(DatasetFiles, RefusesWhatIsNotThereOrNotRead) {
  EXPECT_SAYS(refusal(path("none.jsonl")), "no such file");
  EXPECT_SAYS(refusal(path("none*.jsonl")), "no file matches");
  EXPECT_SAYS(refusal(path("**/x.jsonl")), "give the folder");
  EXPECT_SAYS(refusal("nobody/nothing"), "lora-train download nobody/nothing --dataset");
  EXPECT_SAYS(refusal("/dev/null"), "not a regular file");
  fs::create_directory(folder_ / "empty");
  EXPECT_SAYS(refusal(path("empty")), "no .jsonl");
  write_file_atomic(folder_ / "t.jsonl.xz", "");
  EXPECT_SAYS(refusal(path("t.jsonl.xz")), ".xz is not supported");
}

TEST_F(DatasetFiles, TextInAFolderIsDataOnlyWhenItIsAlone) {
  write_files(folder_.path(), {"LICENSE.txt", "part/d.csv.zst", "texts/a.txt", "texts/b.txt.gz"});
  EXPECT_EQ(names(folder_.path().string()), (Names{"a.json", "b.jsonl", "part/c.ndjson", "part/d.csv.zst"}));
  EXPECT_EQ(names(path("texts")), (Names{"texts/a.txt", "texts/b.txt.gz"}));
}

TEST_F(DatasetFiles, NamesADatasetAfterItsFile) {
  EXPECT_EQ(dataset_name("data/val.jsonl"), "val");
  EXPECT_EQ(dataset_name("data/val.csv.gz"), "val");
  EXPECT_EQ(dataset_name("data/v1.5/"), "v1.5");
  EXPECT_EQ(dataset_name("parts/*"), "*");
}

// A cache with the one dataset org/set, of which `main` is the commit "abc" and `old` another one.
class DatasetSplits : public testing::Test {
 protected:
  void SetUp() override {
    environment_.set("HF_HUB_CACHE", cache_.path().string());
    write("refs/main", "abc\n");
    write("refs/old", "def");
  }

  fs::path repository() const { return cache_ / "datasets--org--set"; }
  fs::path snapshot() const { return repository() / "snapshots/abc"; }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((repository() / name).parent_path());
    write_file_atomic(repository() / name, text);
  }
  /// As the Hub's client leaves them: links to blobs.
  void add(const Names& files) const {
    for (const auto& file : files) {
      const std::string blob = "blobs/" + std::to_string(std::hash<std::string>()(file));
      write(blob, "{}");
      fs::create_directories((snapshot() / file).parent_path());
      fs::create_symlink(repository() / blob, snapshot() / file);
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
    return testing_support::refusal<DataError>([&] { files(split, subset, use, path); });
  }

  testing_support::ScopedEnvironment environment_;
  testing_support::TemporaryFolder cache_;
};

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
  EXPECT_SAYS(refusal(), "several subsets; name one with `subset`. Available: main, socratic");
  EXPECT_SAYS(refusal("", "nine"), "no subset \"nine\". Available: main, socratic");
  EXPECT_SAYS(refusal("", "main", DatasetUse::kEvaluation),
              "several splits; name one with `split`. Available: test, train");
  for (const char* expression : {"train[:10]", "train[:90%]", "train+test"})
    EXPECT_SAYS(refusal(expression, "main"), "for several, add one entry for each") << expression;
}

TEST_F(DatasetSplits, CardsMayNameADefaultSubsetAFolderOrDeepPatterns) {
  add({"a/x.jsonl", "b/x.jsonl", "x/en/1.jsonl", "x/en/deep/2.jsonl", "x/de/train.jsonl", "x/de/test.jsonl"});
  add_card(
      "configs:\n- {config_name: a, data_files: a/*.jsonl}\n- {config_name: b, data_files: [b/*.jsonl], default: "
      "true}\n");
  EXPECT_EQ(files(), (Names{"b/x.jsonl"}));
  EXPECT_EQ(files("", "a"), (Names{"a/x.jsonl"}));
  add_card(
      "configs:\n- config_name: en\n  data_files:\n    validation: x/en/**/*.jsonl\n- config_name: de\n  data_dir: "
      "x/de\n");
  EXPECT_EQ(files("", "en"), (Names{"x/en/1.jsonl", "x/en/deep/2.jsonl"}));
  EXPECT_EQ(files("", "de"), (Names{"x/de/train.jsonl"}));
}

TEST_F(DatasetSplits, WithoutACardNamesTellTheSplit) {
  add({"data/train-00000-of-00002-a1.jsonl", "data/train-00001-of-00002-of-mine.jsonl"});  // tatsu-lab/alpaca
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(files("train", "", DatasetUse::kEvaluation).size(), 2U);
  add({"data/test_sft-00000-of-00001.jsonl"});
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(files("test_sft"), (Names{"data/test_sft-00000-of-00001.jsonl"}));
  EXPECT_SAYS(refusal("test"), "no split \"test\". Available: test_sft, train");
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
  EXPECT_SAYS(refusal("", "fr"), "no subset \"fr\"");
}

TEST_F(DatasetSplits, ALocalFolderHasThemToo) {
  add({"train.jsonl", "test.jsonl"});
  const std::string folder = snapshot().string();
  EXPECT_EQ(files("test", "", DatasetUse::kTraining, folder), (Names{"test.jsonl"}));
  EXPECT_SAYS(refusal("", "", DatasetUse::kTraining, folder), "several splits: test.jsonl");
  EXPECT_SAYS(refusal("", "", DatasetUse::kTraining, folder), "[{path: " + folder + ", split: train}]");
  EXPECT_SAYS(refusal("train", "", DatasetUse::kTraining, folder + "/train.jsonl"), "cannot have `split`");
}

TEST_F(DatasetSplits, WhatIsNotThereHasItsCommand) {
  EXPECT_SAYS(refusal(), "lora-train download org/set --dataset");
  EXPECT_SAYS(refusal("", "", DatasetUse::kTraining, "org/set@v2"), "lora-train download org/set@v2 --dataset");
  add({"rows.py"});
  EXPECT_SAYS(refusal(), "no .jsonl");
  add({"rows.jsonl"});
  add_card("configs:\n- config_name: default\n  data_files: train-*\n");
  EXPECT_SAYS(refusal(), "Download the whole dataset");
  add_card("configs:\n- config_name: [a]\n");
  EXPECT_SAYS(refusal(), "expected text as config_name");
  add_card("configs: [\n");
  EXPECT_NE(refusal(), "accepted");
}

}  // namespace
}  // namespace lora_train::data
