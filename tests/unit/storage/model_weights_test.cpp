#include "lora_train/storage/model_weights.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lora_train/base/error.h"
#include "support/expect_refused.h"
#include "support/safetensors_bytes.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"

namespace lora_train::storage {
namespace {

using testing_support::safetensors_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

class ModelWeights : public ::testing::Test {
 protected:
  void write_shard(const std::string& file, const std::vector<std::string>& tensors) {
    std::vector<TensorToWrite> to_write;
    for (const auto& name : tensors) to_write.push_back({name, DType::kU8, {4}, "0123", nullptr});
    write_safetensors(folder_ / file, to_write);
  }
  void write_index(const std::string& map) {
    write_bytes(folder_ / "model.safetensors.index.json",
                R"({"metadata":{"total_size":99,"x":[{}]},"weight_map":)" + map + "}");
  }
  void expect_refused(const std::string& expected, const std::string& where_end = "") {
    testing_support::expect_refused([this] { open_model_weights(folder_.path()); }, where_end, {expected});
  }

  TemporaryFolder folder_;
};

TEST_F(ModelWeights, OpensASingleFile) {
  write_shard("model.safetensors", {"b", "a"});
  const auto weights = open_model_weights(folder_.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(weights.bytes(*weights.find("b")), "0123");
  EXPECT_EQ(weights.find("c"), nullptr);
  EXPECT_EQ(weights.where(*weights.find("a")), (folder_ / "model.safetensors").string() + ": a");
}

TEST_F(ModelWeights, OpensShardsUnderAnIndex) {
  write_shard("one.safetensors", {"a", "c"});
  write_shard("two.safetensors", {"b"});
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors"})");
  const auto weights = open_model_weights(folder_.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(weights.where(*weights.find("b")), (folder_ / "two.safetensors").string() + ": b");
  EXPECT_EQ(weights.bytes(*weights.find("b")), "0123");
  weights.release(*weights.find("b"));
}

TEST_F(ModelWeights, FollowsLinksOutOfTheFolderAsTheHubCacheHasThem) {
  const TemporaryFolder blobs;
  write_shard("x.safetensors", {"a"});
  std::filesystem::rename(folder_ / "x.safetensors", blobs / "blob");
  std::filesystem::create_symlink(blobs / "blob", folder_ / "model.safetensors");
  EXPECT_NE(open_model_weights(folder_.path()).find("a"), nullptr);
  std::filesystem::remove(blobs / "blob");
  expect_refused("the download is incomplete", "model.safetensors");
}

TEST_F(ModelWeights, RefusesIndexEntriesThatAreNotPlainFileNames) {
  for (const auto& [name, reason] :
       std::vector<std::pair<std::string, std::string>>{{"../one.safetensors", "holds a path separator"},
                                                        {"/etc/one.safetensors", "holds a path separator"},
                                                        {"sub/one.safetensors", "holds a path separator"},
                                                        {"a\\\\b.safetensors", "holds a path separator"},
                                                        {"one\\u0000.safetensors", "holds a control character"},
                                                        {"one\\n.safetensors", "holds a control character"},
                                                        {"-one.safetensors", "starts with a dash"},
                                                        {"..%2fone.safetensors", "holds \"..\""},
                                                        {"one..safetensors", "holds \"..\""},
                                                        {"..", ""},
                                                        {"", "is empty"},
                                                        {"one.bin", "a .safetensors file was expected"}}) {
    write_index(R"({"t":")" + name + "\"}");
    testing_support::expect_refused([this] { open_model_weights(folder_.path()); }, "index.json: t",
                                    {"weight_map names", reason});
  }
}

TEST_F(ModelWeights, RefusesAnIndexThatIsNotOne) {
  struct Case {
    std::string text;
    const char *place, *message;
  };
  const std::string good = R"({"weight_map":{"a":"x.safetensors"}})";
  const Case cases[] = {
      {"", "", "the file is empty"},
      {good.substr(0, 20), "", "not valid JSON at byte"},
      {"<html>Access denied</html>", "", "not valid JSON at byte 1"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "", "git lfs pull"},
      {"\xFF\xFE{", "", "not valid JSON at byte"},
      {R"({"weight_map":{"a":"x\xFF.safetensors"}})", "", "not valid JSON at byte"},
      {good + good, "", "not valid JSON at byte"},
      {R"({"metadata":)" + std::string(100'000, '['), "", "not valid JSON at byte"},
      {"[" + good + "]", "", "the index is an array"},
      {"1", "", "an object"},
      {"{}", "", "no weight_map"},
      {R"({"weight_map":{}})", "", "at least one tensor"},
      {R"({"weight_map":["x.safetensors"]})", "", "weight_map is an array"},
      {R"({"weight_map":null})", "", "weight_map is null"},
      {R"({"metadata":{"weight_map":{"a":"x.safetensors"}}})", "", "no weight_map"},
      {R"({"weight_map":{"a":"x.safetensors"},"weight_map":{}})", "", "weight_map appears twice"},
      {R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", ": a", "the tensor appears twice"},
      {R"({"weight_map":{"a":2}})", ": a", "gives a number; a file name was expected"},
      {R"({"weight_map":{"a":{"b":"c"}}})", ": a", "gives an object; a file name was expected"}};
  const auto index = folder_ / "model.safetensors.index.json";
  for (const Case& bad : cases) {
    SCOPED_TRACE(bad.text.substr(0, 60));
    write_bytes(index, bad.text);
    testing_support::expect_refused([&] { read_shard_index(index); }, index.string() + bad.place, {bad.message});
  }
  EXPECT_THROW(read_shard_index(folder_ / "none.json"), IoError);
}

TEST_F(ModelWeights, ReadsNothingOfAnIndexButItsMap) {
  write_shard("one.safetensors", {"a"});
  for (const std::string more :
       {R"("metadata":{"total_size":-1e30},)", "", R"("metadata":[{"a":[null,1.5]}],"x":{"weight_map":1},)"}) {
    write_bytes(folder_ / "model.safetensors.index.json", "{" + more + R"("weight_map":{"a":"one.safetensors"}})");
    EXPECT_NE(open_model_weights(folder_.path()).find("a"), nullptr) << more;
  }
}

TEST_F(ModelWeights, RefusesShardsAndIndexesThatAreNoFiles) {
  const auto index = folder_ / "model.safetensors.index.json", shard = folder_ / "one.safetensors";
  write_index(R"({"a":"one.safetensors"})");
  ::alarm(20);  // opening a pipe would never end
  for (const auto& path : {shard, index}) {
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    expect_refused("is a folder", path.filename());
    std::filesystem::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_refused("is a pipe", path.filename());
  }
  ::alarm(0);
  std::filesystem::remove(index);
  write_index(R"({"a":"one.safetensors"})");
  for (const auto& [target, message] : {std::pair("../../blobs/ab", "the download is incomplete"),
                                        {"one.safetensors", "the download is incomplete"},
                                        {"/etc/passwd", "not a safetensors file"}}) {
    std::filesystem::remove(shard);
    std::filesystem::create_symlink(target, shard);
    expect_refused(message, "one.safetensors");
  }
}

TEST_F(ModelWeights, NamesMissingShards) {
  write_shard("one.safetensors", {"a"});
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"three.safetensors"})");
  expect_refused("2 of the 3 files named are not in the folder (three.safetensors, two.safetensors)", "index.json");
  for (const std::string& name : {std::string("a\xE2\x88\x95secret"), std::string(5000, 'x')}) {  // a slash of its own
    write_index(R"({"a":"one.safetensors","b":")" + name + ".safetensors\"}");
    expect_refused("1 of the 2 files", "index.json");
  }
  std::string many;
  for (int i = 0; i < 2'000; ++i) many += fmt::format(R"(,"t{}":"m-{:05}.safetensors")", i, i);
  write_index(R"({"a":"one.safetensors")" + many + "}");
  testing_support::expect_refused([&] { open_model_weights(folder_.path()); }, "index.json",
                                  {"2000 of the 2001", "m-00000", "m-00009.safetensors, ...)"});
}

TEST_F(ModelWeights, RefusesAnIndexThatDisagreesWithTheShards) {
  write_shard("one.safetensors", {"a", "stray"});
  write_shard("two.safetensors", {"b"});
  write_index(R"({"a":"one.safetensors"})");
  EXPECT_EQ(open_model_weights(folder_.path()).names(), (std::vector<std::string>{"a"})) << "the others are left out";
  write_index(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})");
  expect_refused("only two.safetensors holds that tensor", "index.json: b");
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})");
  expect_refused("no file of the folder holds that tensor", "index.json: c");
  write_shard("one.safetensors", {"a", "b"});
  write_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  expect_refused("is also in one.safetensors", "two.safetensors: b");
}

TEST_F(ModelWeights, RefusesPickleWithTheWayToConvertIt) {
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth", "model.pt"}) {
    const auto path = write_bytes(folder_ / name, "PK\3\4");
    expect_refused("save_pretrained", name);
    std::filesystem::remove(path);
  }
}

TEST_F(ModelWeights, SaysWhatAFolderWithoutWeightsHoldsInstead) {
  expect_refused("no model.safetensors");
  write_bytes(folder_ / "model.gguf", "GGUF");
  expect_refused("GGUF", "model.gguf");
  write_bytes(folder_ / "model-00001-of-00002.safetensors", safetensors_bytes("{}"));
  expect_refused("index");
  write_bytes(folder_ / "adapter_model.safetensors", safetensors_bytes("{}"));
  expect_refused("base model");
  EXPECT_THROW(open_model_weights(folder_ / "none"), FormatError);
}

TEST(ReadAhead, AsksForAllWeightFilesOfAFolder) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.safetensors", std::string((16 << 20) + 5, 'x'));
  write_bytes(folder / "b.safetensors", "seven b");
  write_bytes(folder / "config.json", "{}");
  std::filesystem::create_directory(folder / "c.safetensors");
  std::filesystem::create_symlink("gone", folder / "d.safetensors");
  ReadAhead ahead(folder.path(), 1 << 30);
  EXPECT_EQ(ahead.wait(), (16 << 20) + 12);
}

TEST(ReadAhead, LeavesAloneWhatDoesNotFit) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.safetensors", std::string(600, 'x'));
  write_bytes(folder / "b.safetensors", std::string(600, 'x'));
  EXPECT_EQ(ReadAhead(folder.path(), 1199).wait(), 0);
  EXPECT_EQ(ReadAhead(folder.path(), 1200).wait(), 1200);
}

TEST(ReadAhead, AFolderThatIsNotThereIsNoError) { EXPECT_EQ(ReadAhead("/nowhere/at/all", 1 << 30).wait(), 0); }

}  // namespace
}  // namespace lora_train::storage
