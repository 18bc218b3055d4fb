#include "lora_train/report/run_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/file.h"
#include "run_files.h"
#include "support/expect_parts.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::count_of;
using testing_support::expect_members;
using testing_support::expect_parts;

/// What the page's script reads.
Json data_of(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const auto from = html.find(begin) + begin.size();
  return Json::parse(html.substr(from, html.find("</script>", from) - from));
}

class RunPage : public testing::Test {
 protected:
  RunPage() { write_run(run_, "", 1); }

  /// What the script of the report on run a reads of it.
  Json report_data() const { return data_of(report_page(read_run(run_))).at("runs").at(0); }

  const testing_support::TemporaryFolder folder_;
  const std::filesystem::path run_ = folder_ / "a";
};

TEST_F(RunPage, TextOfRunsIsNoMarkup) {
  const std::string evil = "</script><script>alert(1)</script><!-- & \" ' \xff";
  write_run(run_, "run_name: \"</title><script>alert(1)</script>\"\nlora_r: 4\n", 1);
  write_text(folder_ / "b/summary.json", Json{{"status", "<b>odd</b>"}, {"run_name", evil}, {"reason", evil}}.dump(
                                             -1, ' ', false, Json::error_handler_t::ignore));
  const Comparison comparison = compare_runs(find_runs(folder_.path()));
  for (const auto& html :
       {comparison_page(comparison), report_page(comparison.runs[0]), report_page(comparison.runs[1])}) {
    EXPECT_EQ(count_of(html, "<script"), 2U);  // the data and ours
    EXPECT_EQ(count_of(html, "</script"), 2U);
    EXPECT_EQ(count_of(html, "</title"), 1U);
    EXPECT_EQ(count_of(html, "<b>odd"), 0U);
    EXPECT_TRUE(data_of(html).is_object());
  }
  EXPECT_EQ(data_of(comparison_page(comparison)).at("runs").at(0).at("name"), "</title><script>alert(1)</script>");
}

TEST_F(RunPage, HasTheCurvesLedgerAndProfileAndNeedsNothingFromTheNetwork) {
  const std::string html = report_page(read_run(run_));
  for (const char* part : {"http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttpRequest"}) {
    EXPECT_EQ(count_of(html, part), 0U) << part;
  }
  EXPECT_EQ(count_of(html, "default-src 'none'"), 1U);
  write_run(run_, "lora_r: 4\n", 1.25);
  const Json run = report_data();
  expect_members(run, R"({"curves": {"loss": [2.5, 2, 1.5, 1], "step": [1, 2, 3, 4]}, "eval": {"loss": [1.25]},
                          "summary": {"ledger": {"kept": 11}}, "profile": {"lora_r": 4}})");
  EXPECT_FALSE(run.at("curves").contains("memory_gib"));  // a run on a CPU
}

TEST_F(RunPage, HasTasksCalibrationAnswersAndWhatTheDeviceDid) {
  const auto task = [](int step, double accuracy) {
    return R"({"event":"eval","kind":"confidence","name":"conf","auroc":null,"ece":0.5,"bins":[[2,1.5,1],[0,0,0]],"step":)" +
           std::to_string(step) + ",\"accuracy\":" + std::to_string(accuracy) + "}\n";
  };
  write_text(
      run_ / "metrics.jsonl",
      R"({"event":"start","step":0,"time":1000,"environment":{"host":"here"},"set_by":{"lora_r":"my.yaml:3"}})"
      "\n" +
          task(0, 0.25) +
          R"({"event":"train","step":1,"loss":2,"gpu_utilization":97.5,"host_memory_gib":3,"gpu_throttle":["power"]})"
          "\n" +
          task(1, 0.5) + task(2, 0.75) + eval_line(2, "val", 1.5));
  write_text(
      run_ / "eval_answers.jsonl",
      R"({"step":0,"name":"conf","source":"a:1","prompt":"p","expected":"e","answer":"x","is_right":true,"confidence":0.5})"
      "\n[]\n{\n");
  const Json run = report_data();
  EXPECT_EQ(run.at("evals").size(), 4U);
  EXPECT_EQ(run.at("evals").at(2).at("accuracy"), 0.75);
  EXPECT_FALSE(run.at("evals").at(2).contains("auroc"));
  expect_parts(run.at("reliability").at(0),
               {"conf: confidence in its answers", "step 0: calibration error 0.5000",
                "step 2: calibration error 0.5000: confidence 0.75, right 0.5, 2 in the bin"});
  ASSERT_EQ(run.at("answers").size(), 1U);
  EXPECT_EQ(run.at("answers").at(0).at("is_right"), true);
  EXPECT_EQ(run.at("eval").at("loss").dump(), "[1.5]");  // tasks are no losses
  expect_members(run, R"({"curves": {"gpu_utilization": [97.5]}, "gpu_throttle": {"power": 1}, "started_at": 1000,
                          "start": {"environment": {"host": "here"}}, "defaults": {"lora_r": 16}})");
}

TEST_F(RunPage, CalibrationIsOfTheStepThatTheResultIsOf) {
  std::string lines = start_line(0);
  for (const int step : {0, 1, 2, 3}) {
    lines += R"({"event":"eval","name":"v","bins":[[1,0.5,1]],"step":)" + std::to_string(step) + "}\n";
  }
  write_text(run_ / "metrics.jsonl", lines);
  write_text(run_ / "summary.json", R"({"status":"done","step":3,"adapter_step":2})");
  expect_parts(report_data().at("reliability").at(0), {"step 0", "step 2"});
}

TEST_F(RunPage, LongAnswersAreClippedBetweenCharacters) {
  std::string text = "x";
  for (int i = 0; i < 4000; ++i) text += "\xc3\xa9";
  write_text(
      run_ / "eval_answers.jsonl",
      R"({"step": 0, "name": "t", "source": "", "prompt": "", "expected": null, "is_right": false, "answer": ")" +
          text + "\"}\n");
  const std::string shown = report_data().at("answers").at(0).at("answer");
  EXPECT_EQ(shown.substr(5990), "\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9 ... [2,002 more bytes]");
}

TEST_F(RunPage, TheCurvesAreAPictureAndAnEmptyRunHasAPageToo) {
  EXPECT_NO_THROW(write_report("/nonexistent/folder"));
  write_report(run_);
  EXPECT_EQ(read_file(run_ / "curves.png").substr(1, 3), "PNG");
  write_text(folder_ / "run.log", "");
  write_report(folder_.path());
  const Json run = data_of(read_file(folder_ / "report.html")).at("runs").at(0);
  expect_members(run, R"({"status": "unfinished", "summary": null})");
}

TEST_F(RunPage, TheReportHasWhatTheTimeWentInto) {  // but 10 ms of 100 s are no pixel
  write_text(run_ / "metrics.jsonl", start_line(0) + train_line(1, 2, 1) +
                                         R"({"event":"end","step":1,"elapsed_s":100,"phases_s":{"train":99,"other":1},)"
                                         R"("spans":[["train",0,50],["save",50,50.01],["train",50.01,99.5]]})"
                                         "\n");
  expect_members(report_data(), R"({"phases_s": {"train": 99}, "spans": [["train", 0, 99.5]], "processes_s": [0]})");
}

TEST_F(RunPage, LongCurvesAreShortenedToMeansAndPeaksStay) {
  std::string lines = start_line(0);
  for (int step = 1; step <= 9000; ++step) lines += train_line(step, step % 2 == 0 ? 1 : 3, step);
  const std::string peak = "\"grad_norm\":1,";
  lines.replace(lines.find(peak, lines.size() / 2), peak.size(), "\"grad_norm\":77,");
  write_text(run_ / "metrics.jsonl", lines);
  const Json curves = report_data().at("curves");
  const std::size_t points = curves.at("step").size();
  EXPECT_TRUE(1000 <= points && points <= 2000) << points;
  for (const auto& name : {"tokens", "time", "loss", "grad_norm"}) EXPECT_EQ(curves.at(name).size(), points) << name;
  EXPECT_EQ(curves.at("step").back(), 9000);
  EXPECT_EQ(*std::max_element(curves.at("grad_norm").begin(), curves.at("grad_norm").end()), 77);
}

}  // namespace
}  // namespace lora_train::report
