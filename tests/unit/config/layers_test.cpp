// Files behind files, variables, and where a profile is looked for.
#include "lora_train/config/layers.h"

#include <gtest/gtest.h>

#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using testing_support::ProfileText;

TEST(Layers, LaterFilesWinAndExtendsLiesUnderItsFile) {
  ProfileText files;
  files.write("sub/base.yaml", "lora_r: 1\nlora_alpha: 1\nseed: 1\nlora_dropout: 0.1\n");
  const auto first = files.write("first.yaml", "extends: sub/base.yaml\nlora_alpha: 2\nseed: 2\n");
  const auto second = files.write("second.yaml", "seed: 3\n");
  const LoadedProfile loaded = files.load_files({first, second});
  EXPECT_EQ(loaded.profile.adapter.lora_r, 1);
  EXPECT_EQ(loaded.profile.adapter.lora_alpha, 2);
  EXPECT_EQ(loaded.profile.run.seed, 3);
  EXPECT_EQ(loaded.profile.adapter.lora_dropout, 0.1);
  EXPECT_TRUE(loaded.origin.at("lora_r").ends_with("sub/base.yaml:1")) << loaded.origin.at("lora_r");
  EXPECT_TRUE(loaded.origin.at("lora_alpha").ends_with("first.yaml:2"));
  EXPECT_EQ(loaded.origin.at("learning_rate"), "default");
}

TEST(Layers, ExtendsMayBeAListInOrder) {
  ProfileText files;
  files.write("a.yaml", "seed: 1\nlora_r: 1\n");
  files.write("b.json", "{\"seed\": 2}");
  const Profile profile = files.load("extends: [a.yaml, b.json]\n").profile;
  EXPECT_EQ(profile.run.seed, 2);
  EXPECT_EQ(profile.adapter.lora_r, 1);
}

TEST(Layers, CirclesAndMissingBasesAreMistakes) {
  ProfileText files;
  const auto a = files.write("a.yaml", "seed: 1\nextends: b.yaml\n");
  files.write("b.yaml", "extends: a.yaml\n");
  EXPECT_EQ(files.error_of_files({a}), "b.yaml:1: extends: forms a cycle: a.yaml -> b.yaml -> a.yaml.");
  const auto self = files.write("self.yaml", "extends: ./self.yaml\n");
  EXPECT_EQ(files.error_of_files({self}), "self.yaml:1: extends: forms a cycle: self.yaml -> self.yaml.");
  EXPECT_EQ(files.error("seed: 1\nextends: nowhere.yaml\n"),
            "profile.yaml:2: extends: \"nowhere.yaml\": no such file.");
  const std::string name(300, 'a');
  EXPECT_EQ(files.error("extends: " + name + "\n"), "profile.yaml:1: extends: \"" + name + "\": File name too long.");
  files.write("netrc", "password: secret\n");
  std::filesystem::create_symlink("netrc", files.folder() / "netrc.yaml");
  for (const std::string other : {"netrc", "netrc.yaml"}) {
    EXPECT_EQ(
        files.error("extends: " + other + "\n"),
        "profile.yaml:1: extends: \"" + other + "\" does not end in .yaml, .yml or .json. Expected a profile file.");
  }
  EXPECT_EQ(files.error("extends: {a: 1}\n"), "profile.yaml:1: extends: expected a file name.");
}

TEST(Layers, TheSameBaseTwiceIsNoCircle) {
  ProfileText files;
  files.write("base.yaml", "seed: 5\n");
  files.write("a.yaml", "extends: base.yaml\n");
  EXPECT_EQ(files.load("extends: [a.yaml, base.yaml]\n").profile.run.seed, 5);
}

TEST(Layers, NamesAreLookedUpAmongShippedProfiles) {
  ProfileText files;
  files.write("shipped/h100.yaml", "# lora-train --profile h100\nseed: 7\n");
  EXPECT_EQ(files.load_files({"h100"}).profile.run.seed, 7);
  EXPECT_EQ(files.load_files({"h100.yaml"}).profile.run.seed, 7);
  EXPECT_EQ(files.load("extends: h100\n").profile.run.seed, 7);
  EXPECT_EQ(files.error_of_files({"h10"}),
            "h10: no such file, and no shipped profile of that name (h100). Did you mean \"h100\"?");
  EXPECT_NE(files.error_of_files({files.folder().string()}).find("is a folder"), std::string::npos);
}

TEST(Layers, AFileMustBeAMap) {
  ProfileText files;
  EXPECT_EQ(files.error("- a\n- b\n"), "profile.yaml:1: a profile is a map of keys to values (`model: ...`).");
  EXPECT_EQ(to_yaml(files.load("").profile), to_yaml(Profile{}));
}

TEST(Layers, SyntaxMistakesOfSeveralFilesAreReportedTogether) {
  ProfileText files;
  const auto a = files.write("a.yaml", "seed: [1\n");
  const auto b = files.write("b.yaml", "sed: 1\nseed: x\n");
  const std::string error = files.error_of_files({a, b});
  EXPECT_NE(error.find("a.yaml:1: not valid YAML or JSON"), std::string::npos) << error;
  EXPECT_NE(error.find("\nb.yaml:1: sed: unknown key. Did you mean \"seed\"?"), std::string::npos) << error;
  EXPECT_NE(error.find("\nb.yaml:2: seed: got \"x\""), std::string::npos) << error;
}

TEST(Variables, AreReplacedInAllTexts) {
  ProfileText files;
  files.environment = {{"DATA", "/data"}, {"RATE", "2e-4"}, {"EMPTY", ""}};
  const Profile profile = files
                              .load(
                                  "datasets: [{path: \"${DATA}/a.jsonl\", name: \"${NAME:-n}\"}]\n"
                                  "learning_rate: ${RATE}\nrun_name: x-${EMPTY:-e}-$${DATA}-$5-${EMPTY}\n")
                              .profile;
  EXPECT_EQ(profile.data.datasets.at(0).path, "/data/a.jsonl");
  EXPECT_EQ(profile.data.datasets.at(0).name, "n");
  EXPECT_EQ(profile.optimizer.learning_rate, 2e-4);
  EXPECT_EQ(profile.run.run_name, "x-e-${DATA}-$5-");
  EXPECT_EQ(files.load("", {"run_name=${DATA}"}).profile.run.run_name, "/data");
}

TEST(Variables, MistakesNameTheLine) {
  ProfileText files;
  EXPECT_EQ(
      files.error("seed: 1\nmodel: ${NOWHERE}/m\n"),
      "profile.yaml:2: model: the variable NOWHERE is not set. Export it, or give a default: ${NOWHERE:-default}.");
  EXPECT_NE(files.error("model: ${OPEN\n").find("profile.yaml:1: model: \"${OPEN\" has no closing brace"),
            std::string::npos);
  EXPECT_NE(files.error("model: ${a b}\n").find("\"${a b}\" is not a variable"), std::string::npos);
  EXPECT_NE(files.error("model: ${A:-${B}}\n").find("has a variable in its default, which is not expanded"),
            std::string::npos);
  EXPECT_NE(files.error("", {"model=${NOWHERE}"}).find("--set: model: the variable NOWHERE is not set"),
            std::string::npos);
}

TEST(Variables, TheProcessEnvironmentIsTheDefault) {
  ProfileText files;
  ::setenv("LORA_TRAIN_TEST_VARIABLE", "from-process", 1);
  ProfileSources sources;
  sources.profiles = {files.write("p.yaml", "run_name: ${LORA_TRAIN_TEST_VARIABLE}\n")};
  sources.needs_model = sources.needs_datasets = false;
  EXPECT_EQ(load_profile(sources).profile.run.run_name, "from-process");
}

}  // namespace
}  // namespace lora_train
