#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "lora_train/base/error.h"
#include "lora_train/storage/hub_cache.h"
#include "lora_train/storage/model_file.h"
#include "support/expect_refused.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

class ResolveModel : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) ::unsetenv(name);
    ::setenv("HF_HUB_CACHE", folder_.path().c_str(), 1);
    const auto repository = folder_ / "models--Qwen--Qwen3-0.6B";
    fs::create_directories(repository / "refs" / "refs" / "pr");
    write_bytes(repository / "refs" / "main", "abc123");
    write_bytes(repository / "refs" / "refs" / "pr" / "1", "def456\n");
    write_bytes(repository / "refs" / "evil", "../../..");
    for (const char* commit : {"abc123", "def456"}) fs::create_directories(repository / "snapshots" / commit);
  }
  void TearDown() override { ::unsetenv("HF_HUB_CACHE"); }

  fs::path snapshot(const char* commit) const { return folder_ / "models--Qwen--Qwen3-0.6B" / "snapshots" / commit; }
  static std::string refusal(const std::string& model) {
    try {
      return "accepted: " + resolve_model(model).folder.string();
    } catch (const FormatError& error) {
      EXPECT_EQ(error.where(), model);
      return error.message();
    }
  }

  TemporaryFolder folder_;
};

TEST_F(ResolveModel, TakesAFolderAsItIs) {
  const auto model = resolve_model(folder_.path().string());
  EXPECT_EQ(model.folder, folder_.path());
  EXPECT_EQ(model.hub_name, "");
}

TEST_F(ResolveModel, RefusesPipesUnderNamesThatAreRead) {
  for (const char* name :
       {"config.json", "tokenizer.model", "chat_template.jinja", "model-00001-of-00002.safetensors"}) {
    const auto pipe = folder_ / name;
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    testing_support::expect_refused([&] { resolve_model(folder_.path().string()); }, pipe.string(), {});
    fs::remove(pipe);
  }
  const auto unread = folder_ / "server.sock";
  ASSERT_EQ(::mkfifo(unread.c_str(), 0600), 0);
  EXPECT_EQ(resolve_model(folder_.path().string()).folder, folder_.path());
}

TEST_F(ResolveModel, FindsBranchesAndCommitsInTheCache) {
  EXPECT_EQ(resolve_model("Qwen/Qwen3-0.6B").folder, snapshot("abc123"));
  EXPECT_EQ(resolve_model("Qwen/Qwen3-0.6B").hub_name, "Qwen/Qwen3-0.6B");
  EXPECT_EQ(resolve_model("Qwen/Qwen3-0.6B@main").folder, snapshot("abc123"));
  EXPECT_EQ(resolve_model("Qwen/Qwen3-0.6B@def456").folder, snapshot("def456"));
  EXPECT_EQ(resolve_model("Qwen/Qwen3-0.6B@refs/pr/1").folder, snapshot("def456"));
  EXPECT_EQ(resolve_model("Qwen/Qwen3-0.6B@refs/pr/1").hub_name, "Qwen/Qwen3-0.6B");
}

TEST_F(ResolveModel, RefusesWhatIsNeitherFolderNorId) {
  for (const char* model :
       {"/no/such/folder", "./none", "none", "a/b/c", "../a", "a/..", "a/b@", "a/b@../../x", "-a/b", "a/b c"}) {
    EXPECT_NE(refusal(model).find("no such folder"), std::string::npos) << model;
    EXPECT_EQ(refusal(model).find("lora-train download"), std::string::npos) << model;
  }
  const auto file = write_bytes(folder_ / "file", "x").string();
  EXPECT_NE(refusal(file).find("is a file"), std::string::npos);
}

TEST_F(ResolveModel, PrintsTheLineThatDownloads) {
  const auto expect_line_for = [](const std::string& model) {
    EXPECT_NE(refusal(model).find("not in the local"), std::string::npos) << refusal(model);
    EXPECT_NE(refusal(model).find("lora-train download " + model), std::string::npos) << refusal(model);
  };
  const std::string model = "Qwen/Qwen3-0.6B";
  for (const std::string missing : {"Qwen/Qwen3-4B", "Qwen/Qwen3-0.6B@v9", "Qwen/Qwen3-0.6B@evil"})
    expect_line_for(missing);
  const auto reference = folder_ / "models--Qwen--Qwen3-0.6B" / "refs" / "main";
  for (const std::string_view bytes : {std::string_view(""), std::string_view("\0\1\2", 3), std::string_view("../x")}) {
    write_bytes(reference, bytes);
    expect_line_for(model);
  }
  fs::remove(reference);
  expect_line_for(model);
  write_bytes(reference, "abc123");
  fs::remove(snapshot("abc123"));
  write_bytes(snapshot("abc123"), "");
  expect_line_for(model);
}

TEST_F(ResolveModel, LooksForTheCacheWhereHuggingFaceDoes) {
  EXPECT_EQ(hub_cache_folder(), folder_.path());
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", "/h", 1);
  EXPECT_EQ(hub_cache_folder(), "/h/hub");
  ::unsetenv("HF_HOME");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(hub_cache_folder(), "/x/huggingface/hub");
  ::unsetenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  ASSERT_NE(home, nullptr);
  EXPECT_EQ(hub_cache_folder(), fs::path(home) / ".cache/huggingface/hub");
}

}  // namespace
}  // namespace lora_train::storage
