#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/report/ablation/ablation_report.h"
#include "support/expect_parts.h"
#include "support/temporary_folder.h"
#include "unit/report/run_files.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;
using Map = std::map<std::string, std::string>;
using testing_support::expect_members;
using testing_support::expect_parts;

Map values_of(const Setting& setting) { return {setting.values.begin(), setting.values.end()}; }

/// Keys that have other values in b.
std::vector<std::string> changed(const Map& a, const Map& b) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : b) {
    if (!a.contains(key) || a.at(key) != value) keys.push_back(key);
  }
  return keys;
}

LadderOptions options(bool is_gpu) { return {.is_gpu = is_gpu, .no_token_cache = "/empty"}; }

TEST(Ladder, EachStepChangesOneThingOfTheStepBefore) {
  for (const bool is_gpu : {false, true}) {
    const auto settings = make_ladder({}, options(is_gpu));
    EXPECT_EQ(settings[0].rung, Rung::kProfile);
    EXPECT_TRUE(settings[0].values.empty());
    EXPECT_EQ(settings[1].name, "plain");
    Map top = values_of(settings[1]);
    EXPECT_EQ(top.at("dataset_prepared_path"), "/empty");
    for (std::size_t i = 2; i < settings.size(); ++i) {
      const Map values = values_of(settings[i]);
      EXPECT_EQ(changed(top, values).size(), 1U) << settings[i].name;
      EXPECT_EQ(values.size(), top.size()) << settings[i].name;
      if (settings[i].rung == Rung::kStep) top = values;
    }
    EXPECT_EQ(top.at("precision"), "bf16");
    EXPECT_EQ(top.at("packing"), "true");
  }
}

TEST(Ladder, LeavesOutWhatHasNoEffectOnACpu) {
  const Map plain = values_of(make_ladder({}, options(false))[1]);
  const Map on_gpu = values_of(make_ladder({}, options(true))[1]);
  EXPECT_EQ(changed(plain, on_gpu), (std::vector<std::string>{"cuda_graphs", "dataloader_pin_memory", "tf32"}));
  EXPECT_NE(left_out(options(false)).find("CUDA graphs"), std::string::npos);
  EXPECT_EQ(left_out(options(true)), "");
}

TEST(Ladder, QuantisesNoBaseThatIsTrainedOrStoredQuantised) {
  const auto asks = [](const std::vector<Setting>& settings) {
    for (const Setting& setting : settings) {
      const Map values = values_of(setting);
      if (values.contains("base_precision") && values.at("base_precision") == "nf4") return true;
    }
    return false;
  };
  Profile full;
  full.adapter.kind = AdapterKind::kNone;
  LadderOptions stored = options(false);
  stored.stores_quantised = true;
  EXPECT_TRUE(asks(make_ladder({}, options(false))));
  EXPECT_FALSE(asks(make_ladder(full, options(false))));
  EXPECT_FALSE(asks(make_ladder({}, stored)));
  EXPECT_FALSE(values_of(make_ladder({}, stored)[1]).contains("base_precision"));
}

/// Five steps: the first takes 10 s, the others 2 s, each with 100 tokens.
void write_measured_run(const std::filesystem::path& folder, int num_steps = 5) {
  std::string lines = start_line(0);
  for (int step = 1; step <= num_steps; ++step) lines += with(train_line(step, 2, 8 + 2 * step), "\"num_documents\":3");
  write_text(folder / "metrics.jsonl", lines);
  write_text(
      folder / "summary.json",
      R"({"status":"done","step":5,"tokens":500,"train_loss":2.25,"startup_s":{"data":1.5,"load":2},"gpu":null})");
}

class MeasurementTest : public testing::Test {
 protected:
  Measurement measured(const std::string& name, Rung rung, double tokens_per_s, double loss) {
    write_measured_run(folder_ / name);
    Measurement found = measure({name, rung, {}}, folder_ / name, 0, 5);
    found.tokens_per_s = tokens_per_s;
    found.loss = loss;
    return found;
  }
  testing_support::TemporaryFolder folder_;
};

TEST_F(MeasurementTest, CountsTokensAfterTheFirstFifthOfTheSteps) {
  write_measured_run(folder_ / "run");
  const Measurement found = measure({"a", Rung::kStep, {}}, folder_ / "run", 0, 5);
  ASSERT_TRUE(found.is_done) << found.reason;
  EXPECT_DOUBLE_EQ(found.tokens_per_s, 400 / 8.0);
  EXPECT_DOUBLE_EQ(found.startup_s, 3.5);
  EXPECT_DOUBLE_EQ(found.loss, 2.25);
  EXPECT_EQ(found.num_documents, 15);
  EXPECT_EQ(found.num_supervised, 50);
  EXPECT_EQ(found.device, "cpu");
}

TEST_F(MeasurementTest, ARunThatDidNotEndIsNotDone) {
  write_measured_run(folder_ / "short", 4);
  EXPECT_FALSE(measure({"a", Rung::kStep, {}}, folder_ / "short", 0, 5).is_done);
  write_measured_run(folder_ / "failed");
  EXPECT_FALSE(measure({"a", Rung::kStep, {}}, folder_ / "failed", 6, 5).is_done);
  const Measurement missing = measure({"a", Rung::kStep, {}}, folder_ / "nothing", 2, 5);
  EXPECT_TRUE(!missing.is_done && !missing.reason.empty());
}

TEST_F(MeasurementTest, RefusesToCompareDifferentWork) {
  std::vector<Measurement> found = {measured("plain", Rung::kStep, 100, 2), measured("bf16", Rung::kStep, 200, 2)};
  EXPECT_NO_THROW(check_same_work(found));
  found[1].num_supervised = 51;
  EXPECT_THROW(check_same_work(found), DataError);
  found[1].num_supervised = 50;
  found[1].num_documents = 14;
  EXPECT_THROW(check_same_work(found), DataError);
  found[1].is_done = false;  // then it is compared with nothing
  EXPECT_NO_THROW(check_same_work(found));
}

TEST_F(MeasurementTest, TheBaseIsTheFirstOfTheLadderThatIsDone) {
  std::vector<Measurement> found = {measured("your profile", Rung::kProfile, 300, 2),
                                    measured("plain", Rung::kStep, 100, 2), measured("bf16", Rung::kStep, 200, 2)};
  for (const std::size_t next : {1, 2, 0}) {
    EXPECT_EQ(baseline(found), &found[next]);
    found[next].is_done = false;
  }
  EXPECT_EQ(baseline(found), nullptr);
}

TEST_F(MeasurementTest, ReportsSpeedLossAndWhatFailed) {
  Ablation ablation{.num_steps = 5, .documents_per_step = 3, .note = "left out: x"};
  ablation.measurements = {measured("your profile", Rung::kProfile, 300, 2.5), measured("plain", Rung::kStep, 100, 2)};
  ablation.measurements[0].document_losses = {{5, "val", "h", {10, 20, 30, 41, 50}, {10, 10, 10, 10, 10}}};
  ablation.measurements[1].document_losses = {{5, "val", "h", {10, 20, 30, 40, 50}, {10, 10, 10, 10, 10}}};
  Measurement failed;
  failed.setting = {"<b>", Rung::kVariant, {{"optim", "x"}}};
  failed.reason = "does not fit & ends";
  ablation.measurements.push_back(failed);

  const std::string table = ablation_table(ablation);
  expect_parts(table, {"3.00x", "too few documents to tell: +0.0200", "<b>", "does not fit & ends\n", "left out: x\n"});

  std::vector<Json> objects;
  for (const auto& line : testing_support::lines_of(ablation_json(ablation))) objects.push_back(Json::parse(line));
  ASSERT_EQ(objects.size(), 3U);
  expect_members(objects[0], R"({"setting": "your profile", "tokens_per_s": 300, "loss": 2.5, "supervised_tokens": 50,
                                 "eval_loss_difference": {"verdict": "unclear"}})");
  expect_members(objects[1], R"({"eval_loss_difference": null})");
  expect_members(objects[2], R"({"tokens_per_s": null, "reason": "does not fit & ends"})");

  const std::string page = ablation_page(ablation);
  EXPECT_TRUE(is_ablation_page(page));
  expect_parts(page, {"<svg", "does not fit &amp; ends"});
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  EXPECT_EQ(ablation_chart(ablation).rectangles.size(), 3U);  // two bars and the line that they begin at
}

}  // namespace
}  // namespace lora_train::report
