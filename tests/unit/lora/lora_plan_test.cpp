#include <gtest/gtest.h>

#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/lora/adapter_config.h"
#include "support/expect_refused.h"

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

AdapterConfig with_regex(const std::string& regex) {
  AdapterConfig options;
  options.lora_target_modules = {LoraTargets::Kind::kRegex, {}, regex};
  return options;
}

void expect_refused(const AdapterConfig& options, const std::vector<std::string>& words) {
  testing_support::expect_refused([&] { plan_adapters(options, config()); }, "lora_target_modules", words,
                                  ExitCode::kUsage);
}

TEST(LoraPlan, AllLinearIsSevenPerLayerInModelOrder) {
  const auto specs = plan_adapters({}, config());
  ASSERT_EQ(specs.size(), 84U);
  EXPECT_EQ(model::linear_path(specs[8]), "model.layers.1.self_attn.k_proj");
  EXPECT_DOUBLE_EQ(specs[0].scale, 2.0);
}

TEST(LoraPlan, NamesMatchAtADotOnlyAndMustMatch) {
  EXPECT_EQ(plan_adapters(with_names({"q_proj"}), config()).size(), 12U);
  EXPECT_EQ(plan_adapters(with_names({"layers.1.self_attn.q_proj"}), config()).size(), 1U);  // not layers.11
  expect_refused(with_names({"proj"}), {"\"proj\""});
  expect_refused(with_names({"q_proj", "qkv"}), {"\"qkv\"", "gate_proj"});  // lists the names
}

TEST(LoraPlan, RegexMustMatchTheWholeName) {
  EXPECT_EQ(plan_adapters(with_regex(R"(model\.layers\.[0-3]\.mlp\.(gate|up)_proj)"), config()).size(), 8U);
  expect_refused(with_regex("q_proj"), {"For a list of names, write [q_proj], or on the command line q_proj,"});
  expect_refused(with_regex("(q_proj"), {"(q_proj"});
}

// Each name would take it 20 ms, and a model has hundreds.
TEST(LoraPlan, ARegexThatTakesMillionsOfStepsIsRefused) {
  expect_refused(with_regex(".*.*.*.*.*.*[!?]"), {"takes too long"});
  EXPECT_EQ(plan_adapters(with_regex(".*(.*.*attn.*.*)_.*"), config()).size(), 48U);
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
  for (const char* pattern : {"proj", "kproj", "k_proj", "q_proj", "layers.2.self_attn.v_proj"}) {
    AdapterConfig spoiled = options;
    spoiled.rank_pattern.emplace_back(pattern, 5);
    testing_support::expect_refused([&] { check_patterns(spoiled, config()); }, "rank_pattern", {pattern},
                                    ExitCode::kUsage);
    spoiled.file = "adapter_config.json";
    EXPECT_NO_THROW(check_patterns(spoiled, config()));
  }
  options.alpha_pattern.emplace_back("up_proj", 2);
  EXPECT_THROW(check_patterns(options, config()), ConfigError);
}

TEST(LoraPlan, MistakesOfAnAdapterFileNameTheFile) {
  AdapterConfig options = with_names({"qkv"});
  options.file = "a/adapter_config.json";
  testing_support::expect_refused([&] { plan_adapters(options, config()); }, "a/adapter_config.json: target_modules",
                                  {});
}

TEST(LoraPlan, TargetsAreExplicitSortedAndExact) {
  EXPECT_EQ(explicit_targets(plan_adapters(with_names({"v_proj", "q_proj"}), config()), config()).names,
            (std::vector<std::string>{"q_proj", "v_proj"}));
  const auto specs = plan_adapters(with_names({"v_proj", "layers.3.mlp.up_proj"}), config());
  EXPECT_EQ(explicit_targets(specs, config()).names,
            (std::vector<std::string>{"model.layers.3.mlp.up_proj", "v_proj"}));
}

TEST(LoraPlan, TargetsInAWrapperAreWholeNamesOfTheText) {
  model::ModelConfig wrapper = config();
  wrapper.module_prefix = "model.language_model.";
  const auto targets = [&](const AdapterConfig& options) {
    return explicit_targets(plan_adapters(options, wrapper), wrapper).regex;
  };
  EXPECT_EQ(targets(with_names({"v_proj", "mlp.up_proj"})),
            R"(model\.language_model\.layers\.(\d+\.mlp\.up_proj|\d+\.self_attn\.v_proj))");
  EXPECT_EQ(targets(with_names({"layers.3.mlp.up_proj", "layers.1.mlp.up_proj"})),
            R"(model\.language_model\.layers\.((1|3)\.mlp\.up_proj))");
  for (const char* name : {"model.language_model.layers.2.mlp.up_proj", "model.layers.2.mlp.up_proj",
                           "language_model.model.layers.2.mlp.up_proj"}) {
    EXPECT_EQ(plan_adapters(with_names({name}), wrapper).size(), 1U) << name;
  }
  for (const char* regex : {R"(model\.language_model\.layers\.2\..*up_proj)", R"(model\.layers\.2\..*up_proj)"}) {
    EXPECT_EQ(plan_adapters(with_regex(regex), wrapper).size(), 1U) << regex;
  }
}

TEST(LoraPlan, NamesOfTheTextClassAndOfTheClassThatHoldsIt) {
  const std::string peft = "base_model.model.", linear = "layers.0.mlp.up_proj.lora_A.weight";
  for (const std::string form : {"model.", "model.language_model.", "language_model.model."}) {
    EXPECT_EQ(model::text_class_name(peft + form + linear), peft + "model." + linear);
    EXPECT_EQ(model::text_class_name(form + linear), "model." + linear);
  }
  EXPECT_EQ(model::text_class_name("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(model::name_in_class(peft + "model." + linear, "model.language_model."),
            peft + "model.language_model." + linear);
  EXPECT_EQ(model::name_in_class(peft + "lm_head.weight", "model.language_model."), peft + "lm_head.weight");
}

TEST(LoraPlan, KnowsTheFirstAdaptedLayer) {
  EXPECT_EQ(first_adapted_layer(plan_adapters(with_regex(R"(.*layers\.(7|9)\..*down_proj)"), config())), 7);
}

}  // namespace
}  // namespace lora_train::lora
