#include "lora_train/data/read/dataset_files.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/run_marker.h"
#include "support/temporary_folder.h"

namespace lora_train::data {
namespace {

DatasetSpec spec_of(const std::string& path) {
  DatasetSpec spec;
  spec.path = path;
  return spec;
}

class DatasetFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ / "part/.cache");
    for (const char* name : {"b.jsonl", "a.json", "part/c.ndjson", "note.md", ".hidden.jsonl", "part/.cache/x.jsonl"}) {
      write_file_atomic(folder_ / name, "{}");
    }
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::vector<std::string> names(const std::string& path) const {
    std::vector<std::string> out;
    for (const auto& file : dataset_files(spec_of(path), DatasetUse::kTraining)) {
      out.push_back(std::filesystem::path(file).lexically_relative(folder_.path()).string());
    }
    return out;
  }
  std::string refusal(const std::string& path) const {
    try {
      dataset_files(spec_of(path), DatasetUse::kTraining);
    } catch (const DataError& error) {
      EXPECT_EQ(error.where(), path);
      return error.message();
    }
    return "accepted";
  }

  testing_support::TemporaryFolder folder_;
};

using Names = std::vector<std::string>;

TEST_F(DatasetFiles, FolderGivesItsDataFilesSorted) {
  EXPECT_EQ(names(folder_.path().string()), (Names{"a.json", "b.jsonl", "part/c.ndjson"}));
}

TEST_F(DatasetFiles, FolderLeavesOutWhatRunsWroteThere) {
  std::filesystem::create_directories(folder_ / "runs/first/tensorboard");
  write_file_atomic(folder_ / "runs/first/metrics.jsonl", "{}");
  EXPECT_EQ(names(folder_.path().string()).size(), 4U) << "a folder of that name is not enough";
  storage::write_new_marker(folder_ / "runs/first", false);
  EXPECT_EQ(names(folder_.path().string()), (Names{"a.json", "b.jsonl", "part/c.ndjson"}));
}

TEST_F(DatasetFiles, DataBesideTheOutputOfARunIsReadWithoutIt) {
  storage::write_new_marker(folder_.path(), false);
  std::filesystem::create_directories(folder_ / "checkpoint-3");
  for (const char* name :
       {"metrics.jsonl", "summary.json", "checkpoint-3/trainer_state.json", "checkpoint-best.jsonl"}) {
    write_file_atomic(folder_ / name, "{}");
  }
  EXPECT_EQ(names(folder_.path().string()), (Names{"a.json", "b.jsonl", "part/c.ndjson"}));
  EXPECT_EQ(names((folder_ / "*.json*").string()), (Names{"a.json", "b.jsonl"}));
}

TEST_F(DatasetFiles, FolderWithSeveralSplitsIsRefusedByName) {
  const auto refused = [&](std::initializer_list<const char*> files) {
    const testing_support::TemporaryFolder folder;
    for (const char* name : files) {
      std::filesystem::create_directories((folder / name).parent_path());
      write_file_atomic(folder / name, "{}");
    }
    try {
      dataset_files(spec_of(folder.path().string()), DatasetUse::kTraining);
    } catch (const DataError& error) {
      return error.message();
    }
    return std::string("accepted");
  };
  const std::string message = refused({"train-00000-of-00002.jsonl", "TEST.jsonl", "extra.jsonl"});
  EXPECT_NE(message.find("TEST.jsonl (test), train-00000-of-00002.jsonl (train)"), std::string::npos) << message;
  EXPECT_NE(refused({"train/a.jsonl", "dev/a.jsonl"}), "accepted");
  EXPECT_EQ(refused({"train/a.jsonl", "train/b.jsonl"}), "accepted");
  EXPECT_EQ(refused({"training_part1.jsonl", "train_part2.jsonl"}), "accepted");
  EXPECT_EQ(refused({"latest.jsonl", "devices.jsonl", "trained.jsonl"}), "accepted");
}

TEST_F(DatasetFiles, GlobGivesMatchesSorted) { EXPECT_EQ(names(path("*.js*")), (Names{"a.json", "b.jsonl"})); }

TEST_F(DatasetFiles, ExistingNameWinsOverGlob) {
  write_file_atomic(folder_ / "x[1].jsonl", "{}");
  EXPECT_EQ(names(path("x[1].jsonl")), (Names{"x[1].jsonl"}));
}

TEST_F(DatasetFiles, RefusesWhatIsNotThereOrNotRead) {
  EXPECT_NE(refusal(path("none.jsonl")).find("no such file"), std::string::npos);
  EXPECT_NE(refusal(path("none*.jsonl")).find("no file matches"), std::string::npos);
  EXPECT_NE(refusal(path("**/x.jsonl")).find("give the folder"), std::string::npos);
  EXPECT_NE(refusal("nobody/nothing").find("lora-train download nobody/nothing --dataset"), std::string::npos);
  EXPECT_NE(refusal("/dev/null").find("not a regular file"), std::string::npos);
  std::filesystem::create_directory(folder_ / "empty");
  EXPECT_NE(refusal(path("empty")).find("no .jsonl"), std::string::npos);
  write_file_atomic(folder_ / "t.jsonl.xz", "");
  EXPECT_NE(refusal(path("t.jsonl.xz")).find(".xz is not supported"), std::string::npos);
}

TEST_F(DatasetFiles, TextInAFolderIsDataOnlyWhenItIsAlone) {
  write_file_atomic(folder_ / "LICENSE.txt", "text");
  write_file_atomic(folder_ / "part/d.csv.zst", "x");
  EXPECT_EQ(names(folder_.path().string()), (Names{"a.json", "b.jsonl", "part/c.ndjson", "part/d.csv.zst"}));
  std::filesystem::create_directory(folder_ / "texts");
  write_file_atomic(folder_ / "texts/a.txt", "text");
  write_file_atomic(folder_ / "texts/b.txt.gz", "text");
  EXPECT_EQ(names(path("texts")), (Names{"texts/a.txt", "texts/b.txt.gz"}));
}

TEST_F(DatasetFiles, NamesADatasetAfterItsFile) {
  EXPECT_EQ(dataset_name("data/val.jsonl"), "val");
  EXPECT_EQ(dataset_name("data/val.csv.gz"), "val");
  EXPECT_EQ(dataset_name("data/v1.5/"), "v1.5");
  EXPECT_EQ(dataset_name("parts/*"), "*");
}

}  // namespace
}  // namespace lora_train::data
