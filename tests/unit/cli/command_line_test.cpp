#include "flags/command_line.h"

#include <gtest/gtest.h>

#include "commands/registry.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "support/expect_refused.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::cli {
namespace {

using Words = std::vector<std::string>;

TEST(SplitInvocation, TheCommandIsTrainOrStandsBehindCommonFlags) {
  const std::tuple<Words, std::string, Words> cases[] = {
      {{"--profile", "a.yaml"}, "train", {"--profile", "a.yaml"}},
      {{"lora_r=8", "--model", "m"}, "train", {"lora_r=8", "--model", "m"}},
      {{"--json", "--log-level", "error", "eval", "--adapter", "a"},
       "eval",
       {"--json", "--log-level", "error", "--adapter", "a"}},
      {{"--log-level=error", "check", "--list"}, "check", {"--log-level=error", "--list"}},
      {{"help", "train"}, "train", {"--help"}}};
  for (const auto& [words, command, arguments] : cases) {
    const Invocation invocation = split_invocation(words);
    EXPECT_EQ(invocation.command, command);
    EXPECT_EQ(invocation.arguments, arguments);
    EXPECT_FALSE(invocation.wants_help);
  }
}

TEST(SplitInvocation, HelpOfTheProgramOnlyBeforeACommand) {
  for (const Words& words : {Words{"--help"}, {"--quiet", "-h"}, {"help"}})
    EXPECT_TRUE(split_invocation(words).wants_help) << words[0];
  EXPECT_FALSE(split_invocation({"train", "--help"}).wants_help);
  for (const char* flag : {"--version", "-V"}) EXPECT_TRUE(split_invocation({flag}).wants_version) << flag;
}

TEST(SplitInvocation, NothingOrTwoCommandsAreAUsageError) {
  for (const Words& words : {Words{}, {"--json"}, {"help", "train", "eval"}})
    EXPECT_THROW(split_invocation(words), ConfigError) << words.size();
}

TEST(ProfileFlags, KeepOrderPutKeyFlagsBehindAndWhatReachesInsideLast) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {{"--model", "model", ""}, {"--output-dir", "output_dir", ""}});
  ASSERT_TRUE(parser.parse({"--model", "m", "--profile", "a.yaml", "lora_r=8", "--set", "datasets[+].path=[x]",
                            "--profile", "b.yaml", "seed=1"}));
  const ProfileSources sources = flags.sources();
  EXPECT_EQ(sources.profiles, (Words{"a.yaml", "b.yaml"}));
  Words overrides;
  for (const auto& override_ : sources.overrides) overrides.push_back(override_.path + "=" + override_.value);
  ASSERT_EQ(overrides, (Words{"lora_r=8", "seed=1", "model=m", "datasets[+].path=[x]"}));
  EXPECT_TRUE(sources.overrides[2].literal);
  EXPECT_EQ(sources.overrides[2].where, "--model");
}

TEST(CommandParser, UnknownFlagNamesTheNearest) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {{"--output-dir", "output_dir", ""}});
  testing_support::expect_refused([&] { parser.parse({"--output-dri=x"}); }, "--output-dri", {"\"--output-dir\""},
                                  ExitCode::kUsage);
}

TEST(CommandParser, AllWrongFlagsAreToldAtOnce) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {{"--output-dir", "output_dir", ""}});
  int count = 0;
  parser.add_integer("--nproc", count, 1, 8, "");
  const std::string text = testing_support::refusal<ConfigError>([&] {
    parser.parse({"--lora-rr", "8", "--no-packing", "--nproc", "0", "--learning-rate", "fast", "--output-dri=x"});
  });
  for (const char* part :
       {"--lora-rr: unknown flag. Did you mean \"--lora-r\"?", "--no-packing: unknown flag. Switch it off",
        "--nproc: got \"0\"", "--output-dri: unknown flag", "--learning-rate: got \"fast\""})
    EXPECT_SAYS(text, part);
  EXPECT_EQ(text.find(" 8:"), std::string::npos) << text;  // the value of an unknown flag is no argument of its own
  EXPECT_TRUE(text.ends_with("\nSee lora-train train --help.")) << text;
}

/// "key=value" of the settings that `arguments` give.
Words settings_of(const Words& arguments) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {{"--output-dir", "output_dir", ""}});
  EXPECT_TRUE(parser.parse(arguments));
  Words settings;
  for (const auto& setting : flags.sources().overrides) settings.push_back(setting.path + "=" + setting.value);
  return settings;
}

TEST(ProfileFlags, AnyKeyIsAFlagInBothSpellingsAndASwitchNeedsNoValue) {
  EXPECT_EQ(settings_of({"--lora-r", "8", "--lora_alpha=16", "--learning-rate", "-1"}),
            (Words{"lora_r=8", "lora_alpha=16", "learning_rate=-1"}));
  EXPECT_EQ(settings_of({"--per-device-train-batch-size", "2"}), Words{"per_device_train_batch_size=2"});
  EXPECT_EQ(settings_of({"--output_dir", "x"}), Words{"output_dir=x"});
  EXPECT_EQ(settings_of({"--packing", "--shuffle", "false", "--tf32=off", "--load-in-4bit", "lora_r=8"}),
            (Words{"lora_r=8", "packing=true", "shuffle=false", "tf32=off", "load_in_4bit=true"}));
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {});
  for (const Words& words : {Words{"--lora-r"}, {"--lora-r", "--packing"}, {"--profile"}})
    EXPECT_THROW(parser.parse(words), ConfigError) << words.back();
}

TEST(ProfileFlags, NoKeyOfAnotherToolIsProposed) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {});
  const std::string said = testing_support::refusal<ConfigError>([&] { parser.parse({"--lora-mlp-kernl", "5"}); });
  EXPECT_TRUE(said.starts_with("--lora-mlp-kernl: unknown flag.")) << said;
  EXPECT_EQ(said.find("lora-mlp-kernel"), std::string::npos) << said;
}

TEST(ProfileFlags, AWordAloneIsAProfileAndBehindTwoDashesEveryWord) {
  const std::pair<Words, Words> cases[] = {
      {{"h100.yaml", "--config", "more.yaml", "lora_r=8"}, {"more.yaml", "h100.yaml"}},
      {{"--lora-r", "8", "--", "--lora-alpha"}, {"--lora-alpha"}}};
  for (const auto& [words, profiles] : cases) {
    CommandParser parser("train", "");
    const ProfileFlags flags(parser, {});
    ASSERT_TRUE(parser.parse(words));
    EXPECT_EQ(flags.sources().profiles, profiles);
    EXPECT_EQ(flags.sources().overrides.size(), 1U);
  }
}

TEST(ProfileFlags, OptionsOfTheCommandComeBeforeKeys) {
  CommandParser parser("generate", "");
  const ProfileFlags flags(parser, {});
  std::string seed;
  parser.app().add_option("--seed", seed);
  ASSERT_TRUE(parser.parse({"--seed", "7"}));
  EXPECT_EQ(seed, "7");
  EXPECT_TRUE(flags.sources().overrides.empty());
}

TEST(CommandParser, ASettingOrAFileBehindAFlagWithoutAValueIsNotItsValue) {
  const testing_support::TemporaryFolder folder;
  const std::string file = folder / "mine";
  testing_support::write_text(file, "lora_r: 8\n");
  for (const auto& [word, num_settings] : {std::pair<std::string, std::size_t>{"model=x", 1}, {file, 0}}) {
    CommandParser parser("eval", "");
    const ProfileFlags flags(parser, {{"--model", "model", ""}});
    std::string pattern;
    parser.app().add_option("--exact-match", pattern)->expected(0, 1);
    ASSERT_TRUE(parser.parse({"--exact-match", word}));
    EXPECT_EQ(pattern, "");
    EXPECT_EQ(flags.sources().overrides.size(), num_settings);
    EXPECT_EQ(flags.sources().profiles, num_settings == 0 ? Words{file} : Words{});
  }
}

// What is said of words behind one list: habits_test.
TEST(ProfileFlags, AMisspeltProfileAndWordsBehindTwoListsAreNoItems) {
  for (const Words& arguments : {Words{"nope.yaml", "--lora-target-modules", "q_proj"},
                                 Words{"--lora-target-modules", "q_proj", "v_proj", "--report-to", "none"}}) {
    CommandParser parser("train", "");
    const ProfileFlags flags(parser, {{"--train-data", "datasets", ""}});
    parser.parse(arguments);
    EXPECT_NO_THROW(flags.sources());
  }
}

TEST(Registry, KnowsEveryCommandOfTheContract) {
  Words names;
  for (const auto& command : commands()) names.push_back(command.name);
  EXPECT_EQ(names, (Words{"train",    "check",  "plan",     "ablate",     "tokenize", "generate",   "chat",
                          "serve",    "verify", "eval",     "merge",      "export",   "compare",    "doctor",
                          "bench",    "cache",  "quantize", "init-model", "sweep",    "completion", "convert",
                          "download", "push",   "teach",    "distill"}));
  for (const auto& name : names) EXPECT_NE(overview().find("\n  " + name + " "), std::string::npos) << name;
}

}  // namespace
}  // namespace lora_train::cli
