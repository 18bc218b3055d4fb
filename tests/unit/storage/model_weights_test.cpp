#include "lora_train/storage/model_weights.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "support/safetensors_bytes.h"
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
    try {
      open_model_weights(folder_.path());
      ADD_FAILURE() << "accepted";
    } catch (const FormatError& error) {
      EXPECT_NE(error.message().find(expected), std::string::npos) << error.what();
      const auto& where = error.where();
      EXPECT_TRUE(where.size() >= where_end.size() &&
                  where.compare(where.size() - where_end.size(), where_end.size(), where_end) == 0)
          << where;
    }
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
  const std::string index = (folder_ / "model.safetensors.index.json").string();
  for (const std::string name :
       {"../one.safetensors", "/etc/one.safetensors", "sub/one.safetensors", "..", "", "a\\\\b.safetensors",
        "-one.safetensors", "one\\u0000.safetensors", "one\\n.safetensors", "one.bin", "one..safetensors"}) {
    write_index(R"({"t":")" + name + "\"}");
    expect_refused("weight_map names", "index.json: t");
  }
}

TEST_F(ModelWeights, RefusesAnIndexThatIsNotOne) {
  const auto index = folder_ / "model.safetensors.index.json";
  for (const std::string text :
       {"", "{", "[]", "1", "{}", R"({"weight_map":{}})", R"({"weight_map":[]})", R"({"weight_map":null})",
        R"({"metadata":{"weight_map":{"a":"one.safetensors"}}})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":{"b":"c"}}})", R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})",
        R"({"weight_map":{"a":"x.safetensors"},"weight_map":{"b":"x.safetensors"}})"}) {
    write_bytes(index, text);
    EXPECT_THROW(read_shard_index(index), FormatError) << text;
  }
  EXPECT_THROW(read_shard_index(folder_ / "none.json"), IoError);
}

TEST_F(ModelWeights, NamesMissingShards) {
  write_shard("one.safetensors", {"a"});
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"three.safetensors"})");
  expect_refused("2 of the 3 files named are not in the folder (three.safetensors, two.safetensors)", "index.json");
}

TEST_F(ModelWeights, RefusesAnIndexThatDisagreesWithTheShards) {
  write_shard("one.safetensors", {"a"});
  write_shard("two.safetensors", {"b"});
  write_index(R"({"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"})");
  expect_refused("only two.safetensors holds that tensor", "index.json: b");
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})");
  expect_refused("no file of the folder holds that tensor", "index.json: c");
}

TEST_F(ModelWeights, RefusesATensorInTwoShards) {
  write_shard("one.safetensors", {"a", "b"});
  write_shard("two.safetensors", {"b"});
  write_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  expect_refused("is also in one.safetensors", "two.safetensors: b");
}

TEST_F(ModelWeights, LeavesOutTensorsTheIndexDoesNotList) {
  write_shard("one.safetensors", {"a", "stray"});
  write_index(R"({"a":"one.safetensors"})");
  EXPECT_EQ(open_model_weights(folder_.path()).names(), (std::vector<std::string>{"a"}));
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

}  // namespace
}  // namespace lora_train::storage
