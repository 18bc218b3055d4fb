// Files behind files, variables, settings, alternatives and what is collected on the way.
#include "lora_train/config/load.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "lora_train/base/text.h"
#include "lora_train/config/layers.h"
#include "support/expect_refused.h"
#include "unit/config/profile_text.h"

namespace lora_train {
namespace {

using namespace testing_support;

TEST(Load, AnUnknownKeyNamesItsNeighboursAndNotAllKeys) {
  const ProfileText files;
  const std::string error = files.error("weigth_decay: 1\n");
  expect_mistake(error, "profile.yaml:1: weigth_decay: unknown key. Did you mean \"weight_decay\"?");
  EXPECT_EQ(error.find("lora_dropout"), std::string::npos) << error;
  expect_mistake(files.error("max_lenght: 5\n"), "profile.yaml:1: ", "Did you mean \"max_seq_len\"?");  // by an alias
  EXPECT_EQ(files.error("qqqqqqqqqqqqqqqqq: 5\nzz: 1\n").find("Did you mean"), std::string::npos);
  expect_one(files.load("seed: 1\nweigth_decay:\n").notes,
             "profile.yaml:2: weigth_decay: unknown key, which has no effect without a value. Did you mean "
             "\"weight_decay\"?");
}

TEST(Load, OtherDevicesAreNamed) {
  const ProfileText files;
  expect_mistake(files.error("device: mps\n"), "profile.yaml:1: device: ", "\"mps\" is not supported");
  EXPECT_EQ(files.profile("device: cuda:0\n").run.device, Device::kCuda);
}

TEST(Load, AFallbackLosesAgainstEverything) {
  const ProfileText files;
  ProfileSources sources;
  sources.needs_datasets = false;
  sources.fallbacks.push_back({"model", "of-adapter", "adapter_config.json", true});
  EXPECT_EQ(load_profile(sources).profile.model.path, "of-adapter");
  sources.profiles = {files.write("profile.yaml", "model: of-file\n")};
  EXPECT_EQ(load_profile(sources).profile.model.path, "of-file");
}

TEST(Load, ALeadingTildeIsTheHomeFolder) {
  ProfileText files;
  files.environment["HOME"] = "/home/u";
  const Profile profile = files.profile(
      "model: ~/m\ndatasets: [~/a.jsonl, {path: '~/b/*.jsonl'}, ./~/c]\neval_datasets: [~/v]\n"
      "chat_template: ~/t.jinja\ninit_adapter: ~/i\noutput_dir: ~/o\n"
      "resume_from_checkpoint: ~/r\nstage_dir: ~/s\ndataset_prepared_path: ~/d\n");
  const auto& [model, data, run] = std::tie(profile.model, profile.data, profile.run);
  EXPECT_EQ(
      join({model.path, data.datasets.at(0).path, data.datasets.at(1).path, data.eval_datasets.at(0).path,
            model.chat_template, profile.adapter.init_adapter, run.output_dir, run.resume_from_checkpoint,
            data.stage_dir, data.dataset_prepared_path}),
      "/home/u/m, /home/u/a.jsonl, /home/u/b/*.jsonl, /home/u/v, /home/u/t.jinja, /home/u/i, /home/u/o, /home/u/r, "
      "/home/u/s, /home/u/d");
  EXPECT_EQ(data.datasets.at(2).path, "./~/c");
}

TEST(Load, AllMistakesAreReportedTogetherInOrder) {
  ProfileText files;
  const std::string error = files.error("lora_r: x\nweigth_decay: 0\nseed: -1\nfp16: true\n", {"packing=perhaps"});
  const std::vector<std::string> places = {
      "profile.yaml:1: lora_r: got",
      "\nprofile.yaml:2: weigth_decay: unknown key. Did you mean \"weight_decay\"? "
      "All keys: docs/profile.md, or lora-train check --keys.",
      "\nprofile.yaml:3: seed: got", "\nprofile.yaml:4: fp16: is not supported", "\n--set: packing: got \"perhaps\""};
  for (std::size_t i = 0, at = 0; i < places.size(); ++i, ++at) {
    at = error.find(places[i], at);
    ASSERT_NE(at, std::string::npos) << places[i] << "\n" << error;
  }
}

TEST(Load, OneCauseIsOneMistake) {
  const ProfileText files;
  ProfileSources sources;
  sources.needs_datasets = false;
  for (const std::string cause :
       {"model: ${LORA_TRAIN_UNSET_VARIABLE}\n", "model: [m\n", "model: m\nlora_r: ${NOWHERE}\n"}) {
    sources.profiles = {files.write("p.yaml", cause)};
    const std::string error = files.error_of([&] { load_profile(sources); });
    EXPECT_TRUE(error.starts_with("p.yaml:")) << cause << error;
    EXPECT_EQ(error.find(": missing"), std::string::npos) << error;
    EXPECT_EQ(error.find("\np.yaml"), std::string::npos) << error;
  }
}

TEST(Load, TheErrorIsAUsageErrorAtTheFirstPlace) {
  expect_refused([] { ProfileText().load("seed: 1\nlora_r: 0\n"); }, "profile.yaml:2", {"lora_r: got \"0\""},
                 ExitCode::kUsage);
}

TEST(Load, TwoNamesForOneThingInOneFileAreAMistake) {
  expect_mistakes({
      {"lr: 1e-4\nlearning_rate: 1e-4\n", "profile.yaml:2: learning_rate: means the same as lr "},
      {"rank: 8\nr: 8\n", "profile.yaml:2: r: means the same as rank (lora_r) at "},
      {"load_in_4bit: true\nbase_precision: nf4\n", "profile.yaml:2: base_precision: means the same"},
      {"load_in_4bit: true\nload_in_8bit: true\n", "profile.yaml:2: load_in_8bit: means the same"},
      {"warmup_ratio: 0.1\nwarmup_steps: 0.2\n", "profile.yaml:2: warmup_steps: means the same as"},
  });
}

TEST(Load, AcrossLayersTheLaterNameWins) {
  ProfileText files;
  const auto base = files.write("a.yaml", "lr: 1e-4\n");
  const auto top = files.write("b.yaml", "learning_rate: 5e-4\n");
  EXPECT_EQ(files.load_files({base, top}).profile.optimizer.learning_rate, 5e-4);
  EXPECT_EQ(files.load_files({top, base}).profile.optimizer.learning_rate, 1e-4);
  EXPECT_EQ(files.load_files({top}, {"lr=7e-4", "learning_rate=8e-4"}).profile.optimizer.learning_rate, 8e-4);
}

TEST(Load, AlternativesExcludeEachOtherInOneFile) {
  expect_mistakes({
      {"gradient_accumulation_steps: 2\nglobal_batch_size: 4\n",
       "profile.yaml:2: global_batch_size: conflicts with gradient_accumulation_steps at "},
      {"warmup_ratio: 0.1\nwarmup_steps: 4\n", "profile.yaml:2: warmup_steps: conflicts with"},
      {"val_set_size: 0.1\neval_datasets: [a]\n", "profile.yaml:2: eval_datasets: conflicts with"},
  });
  const Profile profile = ProfileText().profile(
      "val_set_size: 0\neval_datasets: [a]\nglobal_batch_size: null\n"
      "gradient_accumulation_steps: 2\n");
  EXPECT_EQ(profile.data.eval_datasets.size(), 1u);
  EXPECT_EQ(profile.schedule.gradient_accumulation_steps, 2);
}

TEST(Load, AlternativesReplaceEachOtherAcrossLayers) {
  ProfileText files;
  const auto base =
      files.write("a.yaml", "global_batch_size: 64\nwarmup_ratio: 0.1\neval_datasets: [a]\nload_in_4bit: true\n");
  const Profile profile = files
                              .load_files({base}, {"gradient_accumulation_steps=2", "warmup_steps=5",
                                                   "val_set_size=0.1", "base_precision=bf16"})
                              .profile;
  EXPECT_FALSE(profile.schedule.global_batch_size.has_value());
  EXPECT_EQ(profile.schedule.gradient_accumulation_steps, 2);
  EXPECT_EQ(profile.schedule.warmup_steps, 5);
  EXPECT_TRUE(profile.data.eval_datasets.empty());
  EXPECT_EQ(profile.data.val_set_size, 0.1);
  EXPECT_EQ(profile.model.base_precision, BasePrecision::kBf16);
  const auto top = files.write("b.yaml", "gradient_accumulation_steps: 2\nwarmup_steps: 5\nval_set_size: 3\n");
  const Profile back = files.load_files({top, base}).profile;
  EXPECT_EQ(back.schedule.global_batch_size, 64);
  EXPECT_FALSE(back.schedule.gradient_accumulation_steps.has_value());
  EXPECT_FALSE(back.schedule.warmup_steps.has_value());
  EXPECT_EQ(back.data.val_set_size, 0);
}

TEST(Load, ListsAreReplacedWhole) {
  ProfileText files;
  const auto base = files.write("a.yaml", "datasets: [{path: a, weight: 2}, {path: b}]\n");
  const auto top = files.write("b.yaml", "datasets: [{path: c}]\n");
  const Profile profile = files.load_files({base, top}).profile;
  ASSERT_EQ(profile.data.datasets.size(), 1u);
  EXPECT_EQ(profile.data.datasets[0].weight, 1);
}

TEST(Load, SettingsReachInsideAndAppend) {
  const LoadedProfile loaded = ProfileText().load(
      "datasets: [{path: a}]\nrank_pattern: {q_proj: 4}\n",
      {"datasets[+].path=b", "datasets[1].type=text", "rank_pattern.v_proj=8", "lora_target_modules=[q_proj, v_proj]",
       "run_name=a: b # c", "add_tokens=['<x>', \"<y>\"]", "learning_rate='2E-4'", "output_dir=\"a b\""});
  const Profile& profile = loaded.profile;
  ASSERT_EQ(profile.data.datasets.size(), 2u);
  EXPECT_EQ(profile.data.datasets[1].path, "b");
  EXPECT_EQ(profile.data.datasets[1].type, DatasetType::kText);
  EXPECT_EQ(profile.adapter.rank_pattern.size(), 2u);
  EXPECT_EQ(profile.adapter.lora_target_modules.names.size(), 2u);
  EXPECT_EQ(profile.run.run_name, "a: b # c");
  EXPECT_EQ(profile.optimizer.learning_rate, 2e-4);
  EXPECT_EQ(profile.run.output_dir, "a b");
  EXPECT_EQ(profile.model.add_tokens, (std::vector<NewToken>{{"<x>", ""}, {"<y>", ""}}));
  EXPECT_EQ(loaded.origin.at("datasets"), "--set");
}

TEST(Load, SettingMistakesNameTheSetting) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"datasets[2].path=x", "datasets[2].path: there is no item 2: the list has 0. [+] appends one."},
      {"datasets[0=x", "datasets[0: is not a place in a profile"},
      {"train_data[0].path=x", "train_data[0].path: to set a nested value, use the key's own name: datasets."},
      {"lora_target_modules=[a", "lora_target_modules: not valid YAML"},
      {"datasts[0].path=x", "datasts: unknown key. Did you mean \"datasets\"?"},
  };
  for (const auto& [setting, error] : cases) expect_mistake(ProfileText().error("", {setting}), "--set: " + error);
  for (const char* text : {"novalue", "=x", ""}) {
    expect_refused([&] { parse_override(text); }, "--set",
                   {fmt::format("\"{}\" is not a setting. Expected key=value", text)}, ExitCode::kUsage);
  }
  EXPECT_EQ(parse_override("a=b=c").value, "b=c");
}

TEST(Load, FlagsAreTakenAsTheyStand) {
  ProfileSources sources;
  sources.needs_datasets = false;
  sources.overrides = {flag_override("model", "[odd] ${name}", "--model")};
  const LoadedProfile loaded = load_profile(sources);
  EXPECT_EQ(loaded.profile.model.path, "[odd] ${name}");
  EXPECT_EQ(loaded.origin.at("model"), "--model");
}

TEST(Load, DefaultsFollowOtherKeys) {
  ProfileText files;
  const Profile steps = files.profile("max_steps: 10\n");
  EXPECT_FALSE(steps.schedule.num_epochs.has_value());
  EXPECT_EQ(files.profile("max_steps: 10\nnum_epochs: 2\n").schedule.num_epochs, 2);
  EXPECT_EQ(files.profile("").schedule.num_epochs, 3);
}

TEST(Load, GivenKeysTellSilenceFromTheDefault) {
  ProfileText files;
  const Profile profile = files.profile("rank: 16\nlora_alpha: null\n", {"seed=42"});
  EXPECT_TRUE(profile.is_given("lora_r"));
  EXPECT_TRUE(profile.is_given("seed"));
  EXPECT_FALSE(profile.is_given("lora_alpha"));
  EXPECT_FALSE(profile.is_given("lora_dropout"));
}

TEST(Load, JsonAndYamlAreOne) {
  ProfileText files;
  const auto yaml =
      files.write("p.yaml", "lr: \"2e-4\"\ndatasets:\n  - path: a\n    field_map: {text: body}\npacking: false\n");
  const auto json = files.write(
      "p.json", R"({"lr": 0.0002, "datasets": [{"path": "a", "field_map": {"text": "body"}}], "packing": false})");
  EXPECT_EQ(to_yaml(files.load_files({yaml}).profile), to_yaml(files.load_files({json}).profile));
  const auto bad = files.write("bad.json", "{\n  \"lora_r\": 8,\n  \"lora_rr\": 8\n}\n");
  expect_mistake(files.error_of_files({bad}), "bad.json:3: lora_rr: unknown key. Did you mean \"lora_r\"?");
}

TEST(Merge, SilentValuesAreNoChoiceBetweenAlternatives) {
  EXPECT_TRUE(is_unset("warmup_steps", null_value()));
  EXPECT_TRUE(is_unset("val_set_size", text_value("0.0")));
  EXPECT_TRUE(is_unset("eval_datasets", list_value({})));
  EXPECT_FALSE(is_unset("warmup_steps", text_value("0")));
}

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
  const Profile profile = files.profile("extends: [a.yaml, b.json]\n");
  EXPECT_EQ(profile.run.seed, 2);
  EXPECT_EQ(profile.adapter.lora_r, 1);
  files.write("c.yaml", "extends: a.yaml\n");
  EXPECT_EQ(files.profile("extends: [c.yaml, a.yaml]\n").run.seed, 1) << "the same base twice is no circle";
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

TEST(Layers, NamesAreLookedUpAmongShippedProfiles) {
  ProfileText files;
  files.write("shipped/h100.yaml", "# lora-train --profile h100\nseed: 7\n");
  EXPECT_EQ(files.load_files({"h100"}).profile.run.seed, 7);
  EXPECT_EQ(files.load_files({"h100.yaml"}).profile.run.seed, 7);
  EXPECT_EQ(files.profile("extends: h100\n").run.seed, 7);
  EXPECT_EQ(files.error_of_files({"h10"}),
            "h10: no such file, and no shipped profile of that name (h100). Did you mean \"h100\"?");
  EXPECT_NE(files.error_of_files({files.folder().string()}).find("is a folder"), std::string::npos);
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
  const Profile profile = files.profile(
      "datasets: [{path: \"${DATA}/a.jsonl\", name: \"${NAME:-n}\"}]\n"
      "learning_rate: ${RATE}\nrun_name: x-${EMPTY:-e}-$${DATA}-$5-${EMPTY}\n");
  EXPECT_EQ(profile.data.datasets.at(0).path, "/data/a.jsonl");
  EXPECT_EQ(profile.data.datasets.at(0).name, "n");
  EXPECT_EQ(profile.optimizer.learning_rate, 2e-4);
  EXPECT_EQ(profile.run.run_name, "x-e-${DATA}-$5-");
  EXPECT_EQ(files.profile("", {"run_name=${DATA}"}).run.run_name, "/data");
}

TEST(Variables, MistakesNameTheLine) {
  expect_mistakes({
      {"seed: 1\nmodel: ${NOWHERE}/m\n",
       "profile.yaml:2: model: the variable NOWHERE is not set. Export it, or give a default: ${NOWHERE:-default}."},
      {"model: ${OPEN\n", "profile.yaml:1: model: \"${OPEN\" has no closing brace"},
      {"model: ${a b}\n", "profile.yaml:1: model: \"${a b}\" is not a variable"},
      {"model: ${A:-${B}}\n", "profile.yaml:1: model: ", "has a variable in its default, which is not expanded"},
  });
  expect_mistake(ProfileText().error("", {"model=${NOWHERE}"}), "--set: model: the variable NOWHERE is not set");
}

TEST(Variables, TheProcessEnvironmentIsTheDefault) {
  ProfileText files;
  ::setenv("LORA_TRAIN_TEST_VARIABLE", "from-process", 1);
  ProfileSources sources;
  sources.profiles = {files.write("p.yaml", "run_name: ${LORA_TRAIN_TEST_VARIABLE}\n")};
  sources.needs_model = sources.needs_datasets = false;
  EXPECT_EQ(load_profile(sources).profile.run.run_name, "from-process");
}

TEST(MalformedProfile, TextThatIsNoMap) {
  std::string many = "seed: 1\n";
  for (int i = 0; i < 60; ++i) many += "key" + std::to_string(i) + ": 1\n";
  const char *map = "profile.yaml:1: a profile is a map", *yaml = "not valid YAML or JSON";
  expect_mistakes({
      {"hello\n", map},
      {"- a\n- b\n", map, "of keys to values (`model: ...`)."},
      {"<html><body>404 Not Found</body></html>\n", map},
      {"seed: 1\nrun_name: a: b\n", "profile.yaml:2: ", yaml},
      {"seed: 1\nlora_r: 8\n  lora_alpha: 16\n", "profile.yaml:3: ", yaml},
      {"run_name: \"mine\nlora_r: 8\n", "profile.yaml:", yaml},
      {"seed: 1\nadd_tokens: *mine\n", "profile.yaml:2: ", "anchor is not defined"},
      {"lora_r: " + std::string(100'000, '['), "profile.yaml:1: ", "nested too deep"},
      {many, "profile.yaml:2: key0: unknown key", "and 10 more mistakes"},
      {"? " + std::string(20'000, 'k') + "\n: 1\n", "profile.yaml:1: a key of 20000 characters"},
      {"lora_r: " + std::string(20'000, '8') + "\n", "profile.yaml:1: lora_r: got \"888", "expected an integer"},
      {"seed: 1\nrun_name: caf\xE9\n", "profile.yaml:2: not valid UTF-8"},
      {std::string("\xFF\xFEm\0o\0", 6), "profile.yaml: ", "in UTF-8"},
      {"seed: 1\noutput_dir: \"runs/a\\0b\"\n", "profile.yaml:2: ", "a NUL byte"},
      {"%YAML 9.9\n---\nseed: 1\n", "profile.yaml:1: ", "version"},
      {"Lora_R: 8\n", "profile.yaml:1: Lora_R: unknown key", "\"lora_r\""},
      {"lora_r: !!python/object/apply:os.system [ls]\n", "profile.yaml:1: lora_r: got a list"},
      {"{\"seed\": 1,\n\"datasets\": [\"d\"]", "profile.yaml:2: ", yaml},
      {"{\"seed\": 1} {\"lora_r\": 8}", "profile.yaml:", "what follows the last brace"},
  });
}

TEST(MalformedProfile, FilesThatExtendOneAnother) {
  const ProfileText files;
  std::filesystem::create_directory(files.folder() / "d");
  expect_mistake(files.error("seed: 1\nextends: d\n"), "profile.yaml:2: extends: ", "is a folder");
  ASSERT_EQ(::mkfifo((files.folder() / "pipe").c_str(), 0600), 0);
  expect_mistake(files.error("extends: pipe\n"), "profile.yaml:1: extends: ", "is a pipe or a device");
  expect_mistake(files.error_of_files({(files.folder() / "pipe").string()}), "pipe: is a pipe or a device");
  files.write("base.yaml", "seed: x\n");
  expect_mistake(files.error("extends: base.yaml\n"), "base.yaml:1: seed: got \"x\"");
  // Thirty files that name the next one twice: a thousand million readings of the last.
  for (int i = 0; i < 30; ++i)
    files.write(fmt::format("p{}.yaml", i), fmt::format("extends: [p{0}.yaml, p{0}.yaml]\n", i + 1));
  files.write("p30.yaml", "seed: 1\n");
  expect_mistake(files.error("extends: p0.yaml\n"), "p", "more than 200 files extend one another");
  for (int i = 0; i < 300; ++i) files.write(fmt::format("c{}.yaml", i), fmt::format("extends: c{}.yaml\n", i + 1));
  expect_mistake(files.error("extends: c0.yaml\n"), "c", "more than 200 files extend one another");
}

TEST(MalformedProfile, MarksLineEndsAnchorsAndCommentsAreGood) {
  const ProfileText files;
  const Profile profile = files.profile(
      "\xEF\xBB\xBFseed: 3\r\nlora_target_modules: &t [a]  # \xF0\x9F\x99\x82\r\n"
      "run_name: caf\xC3\xA9\r\n");
  EXPECT_EQ(profile.run.seed, 3);
  EXPECT_EQ(profile.run.run_name, "caf\xC3\xA9");
  EXPECT_EQ(profile.adapter.lora_target_modules.names, std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace lora_train
