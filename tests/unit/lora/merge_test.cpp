#include "lora_train/lora/merge.h"

#include <gtest/gtest.h>

#include <fstream>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/file_ops.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/model_weights.h"
#include "merge_folder.h"
#include "support/faulty_file_ops.h"
#include "support/temporary_folder.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;
using storage::DType;
using testing_support::TemporaryFolder;

AdapterConfig options() {
  AdapterConfig made;
  made.lora_target_modules = {LoraTargets::Kind::kList, {"q_proj", "down_proj"}, {}};
  made.lora_r = 3;
  made.lora_alpha = 5;
  made.rank_pattern = {{"layers.1.*q_proj", 2}};
  return made;
}

/// model/, adapter/ and room for out/.
struct Folders {
  explicit Folders(const testing_support::MergeModelSize& size = {}) {
    testing_support::write_merge_model(folder / "model", size);
    testing_support::write_merge_adapter(folder / "adapter", folder / "model", options());
    request.model = folder / "model";
    request.adapter = folder / "adapter";
    request.output_dir = folder / "out";
    request.model_name = "org/base";
  }
  std::vector<std::string> names() const { return list_folder(folder.path()); }

  TemporaryFolder folder;
  MergeRequest request;
};

const std::vector<std::string> kInputsAlone = {"adapter", "model"};

template <typename Failure>
std::string message_of(const MergeRequest& request, const MergeHooks& hooks = {}) {
  try {
    merge_adapter(request, hooks);
  } catch (const Failure& error) {
    return error.what();
  }
  return "merged";
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Merge, CardQuotesTheNamesOfModelAndAdapter) {
  Folders folders;
  folders.request.model_name = "org/base\nlicense: mit";
  auto config = nlohmann::json::parse(read_file(folders.request.adapter / "adapter_config.json"));
  config["base_model_name_or_path"] = "org/other\n\n# Heading\x1b[2J";
  write_file_atomic(folders.request.adapter / "adapter_config.json", config.dump());
  const std::string card = read_file(merge_adapter(folders.request).folder / "README.md");
  EXPECT_TRUE(card.starts_with("---\nbase_model: \"org/base\\nlicense: mit\"\nlibrary_name: transformers\n")) << card;
  EXPECT_EQ(card.find("\n# Heading"), std::string::npos) << card;
  EXPECT_EQ(card.find('\x1b'), std::string::npos) << card;
}

TEST(Merge, KeepsFilesAndOrderAndWhatIsNotAdapted) {
  const Folders test;
  const MergeResult result = merge_adapter(test.request);
  EXPECT_EQ(result.num_merged, 4);
  const auto before = storage::open_model_weights(test.request.model),
             after = storage::open_model_weights(result.folder);
  ASSERT_GT(before.files().size(), 3u);
  ASSERT_EQ(before.files().size(), after.files().size());
  std::int64_t num_changed = 0;
  for (std::size_t i = 0; i < before.files().size(); ++i) {
    ASSERT_EQ(before.files()[i].path().filename(), after.files()[i].path().filename());
    ASSERT_EQ(before.files()[i].tensors().size(), after.files()[i].tensors().size());
    for (std::size_t k = 0; k < before.files()[i].tensors().size(); ++k) {
      const auto& old = before.files()[i].tensors()[k];
      const auto& merged = after.files()[i].tensors()[k];
      EXPECT_EQ(old.name, merged.name);
      const bool is_adapted =
          old.name.find("q_proj") != std::string::npos || old.name.find("down_proj") != std::string::npos;
      EXPECT_EQ(before.files()[i].bytes(old) != after.files()[i].bytes(merged), is_adapted) << old.name;
      num_changed += is_adapted ? 1 : 0;
    }
  }
  EXPECT_EQ(num_changed, 4);
  EXPECT_EQ(read_file(test.request.model / "config.json"), read_file(result.folder / "config.json"));
  const auto index = nlohmann::json::parse(read_file(result.folder / "model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"],
            nlohmann::json::parse(read_file(test.request.model / "model.safetensors.index.json"))["weight_map"]);
}

TEST(Merge, ConvertsEveryWeightAndSaysSoInTheConfig) {
  Folders test;
  test.request.dtype = DType::kBF16;
  const MergeResult result = merge_adapter(test.request);
  const auto weights = storage::open_model_weights(result.folder);
  for (const auto& name : weights.names()) EXPECT_EQ(weights.find(name)->dtype, DType::kBF16) << name;
  const auto config = nlohmann::json::parse(read_file(result.folder / "config.json"));
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  const auto index = nlohmann::json::parse(read_file(result.folder / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], result.weight_bytes);
}

TEST(Merge, TakesTheTokenizerThatTheAdapterWasTrainedWith) {
  const Folders test;
  const auto write = [&](const char* folder, const char* name) {
    write_file_atomic(test.folder / folder / name, std::string("of ") + folder);
  };
  for (const char* name : {"tokenizer.json", "chat_template.jinja", "vocab.json", "generation_config.json", "LICENSE"})
    write("model", name);
  EXPECT_EQ(merged_tokenizer_folder(test.request.model, test.request.adapter), test.request.model);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) write("adapter", name);
  const fs::path out = merge_adapter(test.request).folder;
  EXPECT_EQ(read_file(out / "tokenizer.json"), "of adapter");
  EXPECT_EQ(read_file(out / "tokenizer_config.json"), "of adapter");
  EXPECT_EQ(read_file(out / "generation_config.json"), "of adapter");
  EXPECT_EQ(read_file(out / "LICENSE"), "of model");
  EXPECT_FALSE(fs::exists(out / "chat_template.jinja")) << "the adapter was trained without it";
  EXPECT_FALSE(fs::exists(out / "vocab.json"));
  EXPECT_FALSE(fs::exists(out / "adapter_config.json"));
}

TEST(Merge, NeverWritesIntoWhatItReadsOrWhatIsNotItsOwn) {
  Folders test;
  const auto refusal = [&](const fs::path& output, bool overwrite) {
    test.request.output_dir = output;
    test.request.overwrite = overwrite;
    return message_of<ConfigError>(test.request);
  };
  expect_part(refusal(test.folder / "model", true), "is what this command reads");
  expect_part(refusal(test.folder / "model" / ".." / "adapter" / "", true), "is what this command reads");
  expect_part(refusal(test.folder.path(), true), "holds what this command reads");
  fs::create_directory_symlink(test.folder / "model", test.folder / "link");
  expect_part(refusal(test.folder / "link", true), "is what this command reads");
  fs::create_directory(test.folder / "mine");
  write_file_atomic(test.folder / "mine" / "thesis.tex", "x");
  expect_part(refusal(test.folder / "mine", false), "is not empty");
  expect_part(refusal(test.folder / "mine", true), "was not written by lora-train");
  EXPECT_EQ(read_file(test.folder / "mine" / "thesis.tex"), "x");
  expect_part(refusal(test.folder / "mine" / "thesis.tex", true), "is a file");
}

TEST(Merge, ReplacesAnEarlierOneWhenAsked) {
  Folders test;
  merge_adapter(test.request);
  expect_part(message_of<ConfigError>(test.request), "is not empty");
  test.request.overwrite = true;
  test.request.dtype = DType::kF16;
  test.request.output_dir = test.folder / "out" / "";
  EXPECT_EQ(merge_adapter(test.request).folder, test.folder / "out");
  EXPECT_EQ(test.names(), (std::vector<std::string>{"adapter", "model", "out"}));
  EXPECT_EQ(storage::open_model_weights(test.folder / "out").find("model.norm.weight")->dtype, DType::kF16);
}

TEST(Merge, IsTakenBackWhenTheCheckFails) {
  Folders test;
  bool was_there = false;
  MergeHooks hooks;
  hooks.check = [&](const fs::path& folder) {
    was_there = fs::exists(folder / "config.json");
    throw NumericError("row 1", "not finite");
  };
  expect_part(message_of<NumericError>(test.request, hooks), "not finite");
  EXPECT_TRUE(was_there);
  EXPECT_EQ(test.names(), kInputsAlone);
  merge_adapter(test.request);
  const std::string old = read_file(test.folder / "out" / "config.json");
  test.request.overwrite = true;
  test.request.dtype = DType::kBF16;
  expect_part(message_of<NumericError>(test.request, hooks), "not finite");
  EXPECT_EQ(read_file(test.folder / "out" / "config.json"), old);
}

TEST(Merge, LeavesNothingOnADiskThatFills) {
  const Folders test;
  testing_support::FaultyFileOps faulty(file_ops());
  std::size_t num_operations = 0, num_failed = 0;
  {
    const testing_support::ScopedFileOps use(faulty);
    faulty.arm(testing_support::Fault::kNone);
    const fs::path out = merge_adapter(test.request).folder;
    num_operations = faulty.num_operations();
    remove_tree(out);
  }
  for (std::size_t at = 0; at < num_operations; at += 3) {
    {
      const testing_support::ScopedFileOps use(faulty);
      faulty.arm(testing_support::Fault::kNoSpace, at);
      try {
        merge_adapter(test.request);
      } catch (const IoError&) {
        ++num_failed;
        EXPECT_FALSE(fs::exists(test.folder / "out") && !fs::exists(test.folder / "out" / "config.json")) << at;
      }
    }
    remove_tree(test.folder / "out");
  }
  EXPECT_GT(num_failed, num_operations / 4);
}

TEST(Merge, SweepsWhatAKilledOneLeft) {
  const Folders test;
  fs::create_directory(test.folder / ".tmp-out-12345");
  write_file_atomic(test.folder / ".tmp-out-12345" / storage::kOutputMarker,
                    R"({"made_by": "lora-train", "version": 1, "holds": "model"})");
  fs::create_directory(test.folder / ".tmp-other-12345");
  merge_adapter(test.request);
  EXPECT_EQ(test.names(), (std::vector<std::string>{".tmp-other-12345", "adapter", "model", "out"}));
}

TEST(Merge, SaysWhichAdapterIsOfAnotherModel) {
  const Folders test;
  testing_support::MergeModelSize wide;
  wide.hidden_size = 32;
  testing_support::write_merge_model(test.folder / "wide", wide);
  MergeRequest request = test.request;
  request.model = test.folder / "wide";
  const std::string text = message_of<FormatError>(request);
  for (const char* part : {"model.layers.0.mlp.down_proj.lora_B", "is F32 [16, 3], expected shape [32, 3]",
                           "names the base model \"org/base\""}) {
    expect_part(text, part);
  }
  EXPECT_FALSE(fs::exists(test.folder / "out"));
}

std::size_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoul(line.substr(6)) * 1024;
  }
  return 0;
}

TEST(Merge, TakesMemoryOfATensorNotOfTheModel) {
  testing_support::MergeModelSize large;
  large.hidden_size = 256;
  large.intermediate_size = 1024;
  large.num_layers = 16;
  large.max_shard_bytes = 3 << 20;
  const Folders test(large);
  std::uint64_t model_bytes = 0;
  for (const auto& entry : fs::directory_iterator(test.request.model)) model_bytes += entry.file_size();
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew
  const std::size_t before = peak_resident_bytes();
  const MergeResult result = merge_adapter(test.request);
  const std::size_t growth = peak_resident_bytes() - before;
  EXPECT_GT(model_bytes, 60u << 20);
  EXPECT_GT(result.num_files, 20);
  EXPECT_LT(growth, 12u << 20) << "of a model of " << model_bytes;
}

}  // namespace
}  // namespace lora_train::lora
