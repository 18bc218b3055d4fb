#include <gtest/gtest.h>

#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/lora/adapter_config.h"

namespace lora_train::lora {
namespace {

model::ModelConfig config() {
  model::ModelConfig c;
  c.num_layers = 12;
  return c;
}

AdapterConfig with_names(std::vector<std::string> names) {
  AdapterConfig options;
  options.lora_target_modules = {LoraTargets::Kind::kList, std::move(names), {}};
  return options;
}

TEST(LoraPlan, AllLinearIsSevenPerLayerInModelOrder) {
  AdapterConfig options;
  const auto specs = plan_adapters(options, config());
  ASSERT_EQ(specs.size(), 84U);
  EXPECT_EQ(model::linear_path(specs[8]), "model.layers.1.self_attn.k_proj");
  EXPECT_DOUBLE_EQ(specs[0].scale, 2.0);
}

TEST(LoraPlan, NamesMatchAtADotOnly) {
  EXPECT_EQ(plan_adapters(with_names({"q_proj"}), config()).size(), 12U);
  EXPECT_EQ(plan_adapters(with_names({"layers.1.self_attn.q_proj"}), config()).size(), 1U);  // not layers.11
  EXPECT_THROW(plan_adapters(with_names({"proj"}), config()), ConfigError);
}

TEST(LoraPlan, RegexMustMatchTheWholeName) {
  AdapterConfig options;
  options.lora_target_modules = {LoraTargets::Kind::kRegex, {}, R"(model\.layers\.[0-3]\.mlp\.(gate|up)_proj)"};
  EXPECT_EQ(plan_adapters(options, config()).size(), 8U);
  options.lora_target_modules = {LoraTargets::Kind::kRegex, {}, "q_proj"};
  try {
    plan_adapters(options, config());
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("For a list of names, write [q_proj], or on the command line q_proj,"),
              std::string::npos)
        << error.message();
  }
  options.lora_target_modules = {LoraTargets::Kind::kRegex, {}, "(q_proj"};
  EXPECT_THROW(plan_adapters(options, config()), ConfigError);
}

// Each name would take it 20 ms, and a model has hundreds.
TEST(LoraPlan, ARegexThatTakesMillionsOfStepsIsRefused) {
  AdapterConfig options;
  options.lora_target_modules = {LoraTargets::Kind::kRegex, {}, ".*.*.*.*.*.*[!?]"};
  try {
    plan_adapters(options, config());
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("takes too long"), std::string::npos) << error.message();
  }
  options.lora_target_modules = {LoraTargets::Kind::kRegex, {}, ".*(.*.*attn.*.*)_.*"};
  EXPECT_EQ(plan_adapters(options, config()).size(), 48U);
}

TEST(LoraPlan, AnUnmatchedNameIsAnErrorThatListsTheNames) {
  try {
    plan_adapters(with_names({"q_proj", "qkv"}), config());
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("\"qkv\""), std::string::npos);
    EXPECT_NE(error.message().find("gate_proj"), std::string::npos);
  }
}

TEST(LoraPlan, PatternsAreMatchedAtTheEndAndTheFirstWins) {
  AdapterConfig options = with_names({"q_proj", "v_proj"});
  options.lora_r = 8;
  options.lora_alpha = 16;
  options.rank_pattern = {{"layers.2.self_attn.q_proj", 3}, {"q_proj", 4}};
  options.alpha_pattern = {{"v_proj", 6}};
  options.use_rslora = true;
  const auto specs = plan_adapters(options, config());
  EXPECT_EQ(specs[0].rank, 4);  // layer 0, q
  EXPECT_EQ(specs[4].rank, 3);  // layer 2, q
  EXPECT_EQ(specs[1].rank, 8);  // layer 0, v
  EXPECT_DOUBLE_EQ(specs[1].scale, 6 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(specs[0].scale, 16 / 2.0);
}

TEST(LoraPlan, APatternWithoutEffectIsAnErrorOfAProfileAndAWarningForAFile) {
  AdapterConfig options = with_names({"q_proj", "v_proj"});
  options.rank_pattern = {{"layers.2.*", 3}, {"q_proj", 4}};
  options.alpha_pattern = {{"v_proj", 6}};
  EXPECT_NO_THROW(check_patterns(options, config()));
  for (const char* pattern : {"kproj", "k_proj", "q_proj", "layers.2.self_attn.v_proj"}) {
    AdapterConfig spoiled = options;
    spoiled.rank_pattern.emplace_back(pattern, 5);
    try {
      check_patterns(spoiled, config());
      ADD_FAILURE() << pattern << " is accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.where(), "rank_pattern");
      EXPECT_NE(error.message().find(pattern), std::string::npos) << error.message();
    }
    spoiled.file = "adapter_config.json";
    EXPECT_NO_THROW(check_patterns(spoiled, config()));
  }
  options.alpha_pattern.emplace_back("up_proj", 2);
  EXPECT_THROW(check_patterns(options, config()), ConfigError);
}

TEST(LoraPlan, MistakesOfAnAdapterFileNameTheFile) {
  AdapterConfig options = with_names({"qkv"});
  options.file = "a/adapter_config.json";
  try {
    plan_adapters(options, config());
    FAIL() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_EQ(error.where(), "a/adapter_config.json: target_modules");
  }
}

TEST(LoraPlan, TargetsAreExplicitSortedAndExact) {
  EXPECT_EQ(explicit_targets(plan_adapters(with_names({"v_proj", "q_proj"}), config()), config()),
            (std::vector<std::string>{"q_proj", "v_proj"}));
  const auto specs = plan_adapters(with_names({"v_proj", "layers.3.mlp.up_proj"}), config());
  EXPECT_EQ(explicit_targets(specs, config()), (std::vector<std::string>{"model.layers.3.mlp.up_proj", "v_proj"}));
}

TEST(LoraPlan, KnowsTheFirstAdaptedLayer) {
  AdapterConfig options;
  options.lora_target_modules = {LoraTargets::Kind::kRegex, {}, R"(.*layers\.(7|9)\..*down_proj)"};
  EXPECT_EQ(first_adapted_layer(plan_adapters(options, config())), 7);
}

}  // namespace
}  // namespace lora_train::lora
