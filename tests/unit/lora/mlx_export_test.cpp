// R rank; PEFT has A [R, in] and B [out, R], mlx-lm their transposes.
#include "lora_train/lora/mlx_export.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lora/merge_math.h"
#include "lora_train/base/error.h"
#include "merge_folder.h"
#include "support/temporary_folder.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

std::vector<float> mlx_values(const storage::SafetensorsFile& file, const std::string& name) {
  const auto* entry = file.find(name);
  return read_floats(file.bytes(*entry), entry->dtype);
}

struct MlxCase {
  explicit MlxCase(const LoraOptions& options) {
    testing_support::write_merge_model(folder / "model", {.num_layers = 3});
    testing_support::write_merge_adapter(folder / "adapter", folder / "model", options);
  }
  MlxResult write() const {
    return export_mlx({folder / "model", folder / "adapter", folder / "out", "org/base", false});
  }
  nlohmann::json config() const { return nlohmann::json::parse(read_file(folder / "out" / "adapter_config.json")); }
  void change_config(const char* key, const nlohmann::json& value) const {
    auto config = nlohmann::json::parse(read_file(folder / "adapter" / "adapter_config.json"));
    config[key] = value;
    write_file_atomic(folder / "adapter" / "adapter_config.json", config.dump());
  }

  TemporaryFolder folder;
};

LoraOptions targets_of(std::vector<std::string> names) {
  LoraOptions options;
  options.lora_target_modules = {LoraTargets::Kind::kList, std::move(names), {}};
  options.lora_r = 4;
  options.lora_alpha = 6;
  return options;
}

TEST(MlxExport, WritesTransposedMatricesAndOneScale) {
  LoraOptions options = targets_of({"q_proj", "up_proj"});
  options.use_rslora = true;
  const MlxCase test(options);
  const MlxResult result = test.write();
  EXPECT_EQ(result.num_linears, 6);
  EXPECT_EQ(result.num_layers, 3);
  EXPECT_EQ(result.num_padded, 0);
  EXPECT_EQ(result.num_rescaled, 0);
  const auto config = test.config();
  EXPECT_EQ(config["fine_tune_type"], "lora");
  EXPECT_EQ(config["model"], "org/base");
  EXPECT_EQ(config["num_layers"], 3);
  EXPECT_EQ(config["lora_parameters"]["rank"], 4);
  EXPECT_EQ(config["lora_parameters"]["scale"], 3.0);  // 6 / sqrt(4)
  EXPECT_EQ(config["lora_parameters"]["dropout"], 0.0);
  EXPECT_EQ(config["lora_parameters"]["keys"], (std::vector<std::string>{"mlp.up_proj", "self_attn.q_proj"}));

  const storage::SafetensorsFile peft(test.folder / "adapter" / "adapter_model.safetensors");
  const storage::SafetensorsFile mlx(result.folder / "adapters.safetensors");
  EXPECT_EQ(mlx.tensors().size(), 12U);
  const std::string path = "model.layers.1.mlp.up_proj";
  EXPECT_EQ(mlx.find(path + ".lora_a")->shape, (std::vector<std::int64_t>{16, 4}));
  EXPECT_EQ(mlx.find(path + ".lora_b")->shape, (std::vector<std::int64_t>{4, 24}));
  const auto a = mlx_values(peft, "base_model.model." + path + ".lora_A.weight");
  const auto b = mlx_values(peft, "base_model.model." + path + ".lora_B.weight");
  const auto lora_a = mlx_values(mlx, path + ".lora_a"), lora_b = mlx_values(mlx, path + ".lora_b");
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(lora_a[i * 4 + r], a[r * 16 + i]);
    for (std::size_t o = 0; o < 24; ++o) EXPECT_EQ(lora_b[r * 24 + o], b[o * 4 + r]);
  }
}

TEST(MlxExport, CountsLayersFromTheLastOne) {
  const MlxCase test(targets_of({"model.layers.1.self_attn.q_proj", "model.layers.2.self_attn.q_proj"}));
  EXPECT_EQ(test.write().num_layers, 2);
  EXPECT_EQ(test.config()["num_layers"], 2);
  EXPECT_EQ(test.config()["lora_parameters"]["keys"], std::vector<std::string>{"self_attn.q_proj"});
}

TEST(MlxExport, NamesLinearsByTheirPathsWhereLayersDiffer) {
  const std::vector<std::string> paths = {"model.layers.0.self_attn.q_proj", "model.layers.2.mlp.up_proj"};
  const MlxCase differ(targets_of(paths)),
      gap(targets_of({"model.layers.0.mlp.up_proj", "model.layers.2.mlp.up_proj"}));
  EXPECT_EQ(differ.write().num_layers, 3);
  EXPECT_EQ(differ.config()["lora_parameters"]["keys"], paths);
  (void)gap.write();
  EXPECT_EQ(gap.config()["lora_parameters"]["keys"].size(), 2U);
  EXPECT_EQ(gap.config()["lora_parameters"]["keys"][0], "model.layers.0.mlp.up_proj");
}

TEST(MlxExport, PadsLowerRanksWithZeros) {
  LoraOptions options = targets_of({"q_proj", "up_proj"});
  options.rank_pattern = {{"up_proj", 2}};
  options.alpha_pattern = {{"up_proj", 3}};  // the same scale
  const MlxCase test(options);
  const MlxResult result = test.write();
  EXPECT_EQ(result.num_padded, 3);
  EXPECT_EQ(result.num_rescaled, 0);
  EXPECT_EQ(test.config()["lora_parameters"]["scale"], 1.5);
  const storage::SafetensorsFile peft(test.folder / "adapter" / "adapter_model.safetensors");
  const storage::SafetensorsFile mlx(result.folder / "adapters.safetensors");
  const std::string path = "model.layers.0.mlp.up_proj";
  const auto a = mlx_values(peft, "base_model.model." + path + ".lora_A.weight");
  const auto lora_a = mlx_values(mlx, path + ".lora_a"), lora_b = mlx_values(mlx, path + ".lora_b");
  ASSERT_EQ(lora_a.size(), 64U);
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(lora_a[i * 4 + r], r < 2 ? a[r * 16 + i] : 0);
  }
  for (std::size_t i = 48; i < 96; ++i) EXPECT_EQ(lora_b[i], 0);
}

TEST(MlxExport, MultipliesScalesIntoBWhereTheyDiffer) {
  LoraOptions options = targets_of({"q_proj", "up_proj"});
  options.alpha_pattern = {{"up_proj", 8}};
  const MlxCase test(options);
  EXPECT_EQ(test.write().num_rescaled, 6);
  EXPECT_EQ(test.config()["lora_parameters"]["scale"], 1.0);
  const storage::SafetensorsFile peft(test.folder / "adapter" / "adapter_model.safetensors");
  const storage::SafetensorsFile mlx(test.folder / "out" / "adapters.safetensors");
  for (const auto& [path, scale] :
       {std::pair{"model.layers.0.mlp.up_proj", 2.0F}, {"model.layers.2.self_attn.q_proj", 1.5F}}) {
    const auto b = mlx_values(peft, "base_model.model." + std::string(path) + ".lora_B.weight");
    const auto lora_b = mlx_values(mlx, path + std::string(".lora_b"));
    const std::size_t out = b.size() / 4;
    for (std::size_t r = 0; r < 4; ++r) {
      for (std::size_t o = 0; o < out; ++o) EXPECT_EQ(lora_b[r * out + o], scale * b[o * 4 + r]);
    }
  }
}

/// What export_mlx says of an adapter whose adapter_config.json has this value.
std::string refusal_of(const char* key, const nlohmann::json& value) {
  const MlxCase test(targets_of({"q_proj"}));
  test.change_config(key, value);
  try {
    (void)test.write();
  } catch (const Error& error) {
    EXPECT_FALSE(fs::exists(test.folder / "out")) << key;
    return error.what();
  }
  return "nothing was refused";
}

TEST(MlxExport, RefusesWhatAnMlxAdapterCannotHold) {
  EXPECT_NE(refusal_of("trainable_token_indices", {3}).find("cannot hold trained token rows"), std::string::npos);
  for (const auto& [key, value] : {std::pair<const char*, nlohmann::json>{"modules_to_save", {"lm_head"}},
                                   {"use_dora", true},
                                   {"bias", "all"},
                                   {"layer_replication", {{0, 2}}}}) {
    const std::string text = refusal_of(key, value);
    EXPECT_NE(text.find(key), std::string::npos) << text;
  }
}

TEST(MlxExport, RefusesAnAdapterOfAnotherModel) {
  const MlxCase test(targets_of({"q_proj"}));
  testing_support::write_merge_model(test.folder / "other", {.hidden_size = 32});
  EXPECT_THROW((void)export_mlx({test.folder / "other", test.folder / "adapter", test.folder / "out", "x", false}),
               FormatError);
  EXPECT_FALSE(fs::exists(test.folder / "out"));
}

TEST(MlxExport, ReplacesItsOwnFolderOnly) {
  const MlxCase test(targets_of({"q_proj"}));
  MlxRequest request{test.folder / "model", test.folder / "adapter", test.folder / "out", "org/base", false};
  (void)export_mlx(request);
  EXPECT_THROW((void)export_mlx(request), ConfigError);
  request.overwrite = true;
  EXPECT_EQ(export_mlx(request).num_linears, 3);
  request.output_dir = request.adapter;
  EXPECT_THROW((void)export_mlx(request), ConfigError);
}

}  // namespace
}  // namespace lora_train::lora
