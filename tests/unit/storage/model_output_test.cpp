#include "lora_train/storage/model_output.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;
using testing_support::TemporaryFolder;

void write_output(const fs::path& target, const std::string& text, bool overwrite = false) {
  OutputFolder output(target, OutputKind::kModel, {}, overwrite);
  output.write({{"config.json", text}, {"weights", "w"}});
  output.commit();
}

std::string refusal(const fs::path& target, OutputKind kind = OutputKind::kModel) {
  return testing_support::refusal<ConfigError>([&] { OutputFolder(target, kind, {}, /*overwrite=*/true); });
}

TEST(OutputFolder, ReplacesWhatItWroteAndNothingElse) {
  const TemporaryFolder folder;
  const fs::path target = folder / "out";
  write_output(target, "1");
  EXPECT_SAYS(refusal(target, OutputKind::kAdapter), "holds a lora-train model");
  write_output(target, "2", /*overwrite=*/true);
  EXPECT_EQ(read_file(target / "config.json"), "2");
  EXPECT_EQ(list_folder(target), (Names{kOutputMarker, "config.json", "weights"}));
  EXPECT_EQ(list_folder(folder.path()), Names{"out"});

  write_file_atomic(target / "thesis.txt", "mine");
  EXPECT_SAYS(refusal(target), "holds \"thesis.txt\", which lora-train did not write");
  fs::remove(target / "thesis.txt");
  fs::rename(target / "weights", folder / "blob");
  fs::create_symlink("../blob", target / "weights");
  EXPECT_SAYS(refusal(target), "holds \"weights\"") << "a snapshot of links";
  EXPECT_EQ(read_file(folder / "blob"), "w");
}

TEST(OutputFolder, WithoutItsMarkerAModelIsSomebodyElses) {
  const TemporaryFolder folder;
  for (const char* marker : {"", "{}", R"({"made_by": "other", "holds": "model"})"}) {
    fs::create_directories(folder / "theirs");
    write_file_atomic(folder / "theirs" / "config.json", "{}");
    if (*marker != 0) write_file_atomic(folder / "theirs" / kOutputMarker, marker);
    const std::string message = refusal(folder / "theirs");
    EXPECT_SAYS(message, "was not written by lora-train");
    EXPECT_SAYS(message, "choose another one");
    EXPECT_EQ(read_file(folder / "theirs" / "config.json"), "{}");
  }
}

TEST(OutputFolder, AFileThatAppearsMeanwhileMovesToTheNewOutput) {
  const TemporaryFolder folder;
  write_output(folder / "out", "1");
  {
    OutputFolder output(folder / "out", OutputKind::kModel, {}, true);
    output.write({{"config.json", "2"}});
    write_file_atomic(folder / "out" / "notes.md", "mine");
    output.commit();
  }
  EXPECT_EQ(list_folder(folder / "out"), (Names{kOutputMarker, "config.json", "notes.md"}));
  EXPECT_EQ(list_folder(folder.path()), Names{"out"});
}

TEST(OutputFolder, ATargetThatIsFilledMeanwhileIsNotReplaced) {
  const TemporaryFolder folder;
  {
    OutputFolder output(folder / "out", OutputKind::kModel, {}, /*overwrite=*/false);
    output.write({{"config.json", "2"}});
    fs::create_directory(folder / "out");
    write_file_atomic(folder / "out" / "config.json", "mine");
    EXPECT_THROW(output.commit(), ConfigError);
  }
  EXPECT_EQ(read_file(folder / "out" / "config.json"), "mine");
  EXPECT_EQ(list_folder(folder.path()), Names{"out"});
}

TEST(OutputFolder, DeletesLeftoversOfItsOwnNameOnly) {
  const TemporaryFolder folder;
  const std::string unfinished = R"({"made_by": "lora-train", "version": 1, "holds": "model"})";
  const std::string finished = R"({"made_by": "lora-train", "version": 1, "holds": "model", "files": ["weights"]})";
  write_output(folder / "q", "1");
  for (const char* name : {".tmp-q-1", ".tmp-q-7-1", ".tmp-q-x"}) {
    fs::create_directories(folder / name / "plain");
    write_file_atomic(folder / name / kOutputMarker, unfinished);
  }
  fs::create_directory(folder / ".tmp-q-2");
  write_file_atomic(folder / ".tmp-q-2" / "photo.jpg", "mine");
  fs::create_directory(folder / ".tmp-q-3");  // replaced by a command that was killed then
  for (const char* name : {"weights", "notes.md"}) write_file_atomic(folder / ".tmp-q-3" / name, "x");
  write_file_atomic(folder / ".tmp-q-3" / kOutputMarker, finished);
  write_file_atomic(folder / ".tmp-q-4", "a file");
  write_output(folder / "q", "2", /*overwrite=*/true);
  EXPECT_EQ(list_folder(folder.path()), (Names{".tmp-q-2", ".tmp-q-4", ".tmp-q-7-1", ".tmp-q-x", "q"}));
  EXPECT_EQ(read_file(folder / "q" / "notes.md"), "x") << "it comes back";
}

TEST(OutputFolder, OneCommandAtATimeWritesToAPlace) {
  const TemporaryFolder folder;
  for (const bool replaces : {false, true}) {
    OutputFolder first(folder / "out", OutputKind::kModel, {}, replaces);
    first.write({{"config.json", "first"}});
    EXPECT_SAYS(refusal(folder / "out"), "another command is writing this folder now");
    EXPECT_THROW(first.commit([&](const fs::path& there) {
      EXPECT_SAYS(refusal(there), "another command is writing this folder now") << "it may be taken back";
      throw NumericError("logits", "not finite");
    }),
                 NumericError);
    EXPECT_EQ(fs::exists(folder / "out"), replaces);
    if (!replaces) write_output(folder / "other", "the second"), fs::rename(folder / "other", folder / "out");
  }
  EXPECT_EQ(read_file(folder / "out" / "config.json"), "the second");
  EXPECT_EQ(list_folder(folder.path()), Names{"out"});
}

TEST(OutputFolder, FollowsALinkToAFolderAndRefusesOneThatLeadsNowhere) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "real");
  fs::create_directory_symlink("real", folder / "link");
  EXPECT_EQ(OutputFolder(folder / "link", OutputKind::kModel, {}, true).path(), fs::canonical(folder / "real"));
  fs::create_symlink("gone", folder / "dangling");
  for (const bool overwrite : {false, true}) {
    EXPECT_THROW(OutputFolder(folder / "dangling", OutputKind::kModel, {}, overwrite), ConfigError);
  }
  EXPECT_TRUE(fs::is_symlink(folder / "dangling"));
}

}  // namespace
}  // namespace lora_train::storage
