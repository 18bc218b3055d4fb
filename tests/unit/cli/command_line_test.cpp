#include "flags/command_line.h"

#include <gtest/gtest.h>

#include "commands/registry.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "support/temporary_folder.h"

namespace lora_train::cli {
namespace {

using Words = std::vector<std::string>;

TEST(SplitInvocation, FlagsOrSettingsFirstMeanTrain) {
  EXPECT_EQ(split_invocation({"--profile", "a.yaml"}).command, "train");
  EXPECT_EQ(split_invocation({"--profile", "a.yaml"}).arguments, (Words{"--profile", "a.yaml"}));
  EXPECT_EQ(split_invocation({"lora_r=8", "--model", "m"}).command, "train");
}

TEST(SplitInvocation, CommandMayStandBehindCommonFlags) {
  const Invocation invocation = split_invocation({"--json", "--log-level", "error", "eval", "--adapter", "a"});
  EXPECT_EQ(invocation.command, "eval");
  EXPECT_EQ(invocation.arguments, (Words{"--json", "--log-level", "error", "--adapter", "a"}));
}

TEST(SplitInvocation, ACommonFlagMayHoldItsValue) {
  const Invocation invocation = split_invocation({"--log-level=error", "check", "--list"});
  EXPECT_EQ(invocation.command, "check");
  EXPECT_EQ(invocation.arguments, (Words{"--log-level=error", "--list"}));
}

TEST(SplitInvocation, HelpOfTheProgramOnlyBeforeACommand) {
  EXPECT_TRUE(split_invocation({"--help"}).wants_help);
  EXPECT_TRUE(split_invocation({"--quiet", "-h"}).wants_help);
  EXPECT_FALSE(split_invocation({"train", "--help"}).wants_help);
  EXPECT_TRUE(split_invocation({"--version"}).wants_version);
  EXPECT_TRUE(split_invocation({"-V"}).wants_version);
}

TEST(SplitInvocation, HelpIsACommandToo) {
  EXPECT_TRUE(split_invocation({"help"}).wants_help);
  const Invocation of_train = split_invocation({"help", "train"});
  EXPECT_FALSE(of_train.wants_help);
  EXPECT_EQ(of_train.command, "train");
  EXPECT_EQ(of_train.arguments, Words{"--help"});
  EXPECT_THROW(split_invocation({"help", "train", "eval"}), ConfigError);
}

TEST(SplitInvocation, NothingIsAUsageError) {
  EXPECT_THROW(split_invocation({}), ConfigError);
  EXPECT_THROW(split_invocation({"--json"}), ConfigError);
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
  try {
    parser.parse({"--output-dri=x"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.where(), "--output-dri");
    EXPECT_NE(error.message().find("\"--output-dir\""), std::string::npos) << error.message();
  }
}

TEST(CommandParser, AllWrongFlagsAreToldAtOnce) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {{"--output-dir", "output_dir", ""}});
  int count = 0;
  parser.add_integer("--nproc", count, 1, 8, "");
  try {
    parser.parse({"--lora-rr", "8", "--no-packing", "--nproc", "0", "--learning-rate", "fast", "--output-dri=x"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const char* part :
         {"--lora-rr: unknown flag. Did you mean \"--lora-r\"?", "--no-packing: unknown flag. Switch it off",
          "--nproc: got \"0\"", "--output-dri: unknown flag", "--learning-rate: got \"fast\""})
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
    EXPECT_EQ(text.find(" 8:"), std::string::npos) << text;  // the value of an unknown flag is no argument of its own
    EXPECT_TRUE(text.ends_with("\nSee lora-train train --help.")) << text;
  }
}

TEST(CommandParser, MissingValueIsAUsageError) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {});
  EXPECT_THROW(parser.parse({"--profile"}), ConfigError);
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

TEST(ProfileFlags, AnyKeyIsAFlagInBothSpellings) {
  EXPECT_EQ(settings_of({"--lora-r", "8", "--lora_alpha=16", "--learning-rate", "-1"}),
            (Words{"lora_r=8", "lora_alpha=16", "learning_rate=-1"}));
  EXPECT_EQ(settings_of({"--per-device-train-batch-size", "2"}), Words{"per_device_train_batch_size=2"});
  EXPECT_EQ(settings_of({"--output_dir", "x"}), Words{"output_dir=x"});
}

TEST(ProfileFlags, ASwitchNeedsNoValue) {
  EXPECT_EQ(settings_of({"--packing", "--shuffle", "false", "--tf32=off", "--load-in-4bit", "lora_r=8"}),
            (Words{"lora_r=8", "packing=true", "shuffle=false", "tf32=off", "load_in_4bit=true"}));
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {});
  EXPECT_THROW(parser.parse({"--lora-r"}), ConfigError);
  EXPECT_THROW(parser.parse({"--lora-r", "--packing"}), ConfigError);
}

TEST(ProfileFlags, NoKeyOfAnotherToolIsProposed) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {});
  try {
    parser.parse({"--lora-mlp-kernl", "5"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(error.message().starts_with("unknown flag.")) << error.message();
    EXPECT_EQ(error.message().find("lora-mlp-kernel"), std::string::npos) << error.message();
  }
}

TEST(ProfileFlags, BehindTwoDashesThereAreNoFlags) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {});
  ASSERT_TRUE(parser.parse({"--lora-r", "8", "--", "--lora-alpha"}));
  EXPECT_EQ(flags.sources().profiles, Words{"--lora-alpha"});
  EXPECT_EQ(flags.sources().overrides.size(), 1U);
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

TEST(ProfileFlags, AWordAloneIsAProfile) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {});
  ASSERT_TRUE(parser.parse({"h100.yaml", "--config", "more.yaml", "lora_r=8"}));
  EXPECT_EQ(flags.sources().profiles, (Words{"more.yaml", "h100.yaml"}));
  EXPECT_EQ(flags.sources().overrides.size(), 1U);
}

TEST(CommandParser, ASettingBehindAFlagWithoutAValueIsNotItsValue) {
  CommandParser parser("eval", "");
  const ProfileFlags flags(parser, {{"--model", "model", ""}});
  std::string pattern;
  parser.app().add_option("--exact-match", pattern)->expected(0, 1);
  ASSERT_TRUE(parser.parse({"--exact-match", "model=x"}));
  EXPECT_EQ(pattern, "");
  ASSERT_EQ(flags.sources().overrides.size(), 1U);
  EXPECT_EQ(flags.sources().overrides[0].path, "model");
}

TEST(CommandParser, AFileBehindAFlagWithoutAValueIsNotItsValue) {
  const testing_support::TemporaryFolder folder;
  testing_support::write_text(folder / "mine", "lora_r: 8\n");
  CommandParser parser("eval", "");
  const ProfileFlags flags(parser, {{"--model", "model", ""}});
  std::string pattern;
  parser.app().add_option("--exact-match", pattern)->expected(0, 1);
  ASSERT_TRUE(parser.parse({"--exact-match", folder / "mine"}));
  EXPECT_EQ(flags.sources().profiles, Words{folder / "mine"});
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
  EXPECT_EQ(names, (Words{"train",      "check", "plan",       "ablate",  "tokenize", "generate", "chat",  "serve",
                          "eval",       "merge", "export",     "compare", "doctor",   "bench",    "cache", "quantize",
                          "init-model", "sweep", "completion", "convert", "download", "push",     "teach", "distill"}));
  for (const auto& name : names) EXPECT_NE(overview().find("\n  " + name + " "), std::string::npos) << name;
}

}  // namespace
}  // namespace lora_train::cli
