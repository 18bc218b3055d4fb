#include "app/commands/command_line.h"

#include <gtest/gtest.h>

#include "app/commands/profile_flags.h"
#include "app/commands/registry.h"
#include "lora_train/base/error.h"

namespace lora_train::app {
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
}

TEST(SplitInvocation, NothingIsAUsageError) {
  EXPECT_THROW(split_invocation({}), ConfigError);
  EXPECT_THROW(split_invocation({"--json"}), ConfigError);
}

TEST(ProfileFlags, KeepOrderAndPutKeyFlagsLast) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {{"--model", "model", ""}, {"--output-dir", "output_dir", ""}});
  ASSERT_TRUE(parser.parse({"--model", "m", "--profile", "a.yaml", "lora_r=8", "--set", "datasets[+].path=[x]",
                            "--profile", "b.yaml", "seed=1"}));
  const ProfileSources sources = flags.sources();
  EXPECT_EQ(sources.profiles, (Words{"a.yaml", "b.yaml"}));
  Words overrides;
  for (const auto& override_ : sources.overrides) overrides.push_back(override_.path + "=" + override_.value);
  EXPECT_EQ(overrides, (Words{"datasets[+].path=[x]", "lora_r=8", "seed=1", "model=m"}));
  EXPECT_TRUE(sources.overrides.back().literal);
  EXPECT_EQ(sources.overrides.back().where, "--model");
}

TEST(CommandParser, UnknownFlagNamesTheNearest) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {{"--output-dir", "output_dir", ""}});
  try {
    parser.parse({"--output_dir=x"});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.where(), "--output_dir");
    EXPECT_NE(error.message().find("\"--output-dir\""), std::string::npos) << error.message();
  }
}

TEST(CommandParser, MissingValueIsAUsageError) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {});
  EXPECT_THROW(parser.parse({"--profile"}), ConfigError);
}

TEST(CommandParser, TrailingWordThatIsNoSettingIsAUsageError) {
  CommandParser parser("train", "");
  const ProfileFlags flags(parser, {});
  ASSERT_TRUE(parser.parse({"h100.yaml"}));
  EXPECT_THROW(flags.sources(), ConfigError);
}

TEST(Registry, KnowsEveryCommandOfTheContract) {
  Words names;
  for (const auto& command : commands()) names.push_back(command.name);
  EXPECT_EQ(names, (Words{"train",   "check",  "plan",  "ablate",   "tokenize", "generate",   "eval",    "merge",
                          "compare", "doctor", "bench", "cache",    "quantize", "init-model", "convert", "teach",
                          "distill", "chat",   "serve", "download", "push",     "export",     "sweep"}));
  for (const auto& name : built_commands()) EXPECT_NE(overview().find("\n  " + name + " "), std::string::npos) << name;
  EXPECT_EQ(overview().find("\n  distill "), std::string::npos);
  EXPECT_NE(overview().find("Not implemented yet: teach, distill"), std::string::npos) << overview();
}

}  // namespace
}  // namespace lora_train::app
