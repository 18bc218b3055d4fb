#include "lora_train/report/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "run_files.h"
#include "support/expect_parts.h"
#include "support/expect_refused.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::expect_members;
using testing_support::expect_parts;
using testing_support::expect_refused;
using testing_support::lines_of;

std::string order(const Comparison& comparison) {
  std::string names;
  for (const auto& run : comparison.runs) names += run.name;
  return names;
}

class ComparisonTest : public testing::Test {
 protected:
  Comparison three_runs() {
    write_run(folder_ / "a", "learning_rate: 0.01\nlora_r: 8\n", 2);
    write_run(folder_ / "b", "learning_rate: 0.002\nlora_r: 16\n", 1);
    write_run(folder_ / "c", "learning_rate: 0.1\nlora_r: 16\n", 3);
    return runs();
  }
  Comparison runs() const { return compare_runs(find_runs(folder_.path())); }

  testing_support::TemporaryFolder folder_;
};

TEST_F(ComparisonTest, NamesOnlyTheKeysThatDiffer) {
  EXPECT_EQ(three_runs().differing, (std::vector<std::string>{"lora_r", "learning_rate"}));
  for (const char* name : {"b", "c"}) std::filesystem::remove_all(folder_ / name);
  write_text(folder_ / "b/summary.json", "{\"status\":\"stopped\"}");
  EXPECT_TRUE(runs().differing.empty()) << "a run without a profile makes no difference";
}

TEST_F(ComparisonTest, SortsNumbersAsNumbersAndUnknownLast) {
  Comparison comparison = three_runs();
  comparison.runs[0].figures.eval_loss.reset();
  for (const auto& [column, expected] : {std::pair{"eval_loss", "bca"},
                                         {"-eval_loss", "cba"},
                                         {"learning_rate", "bac"},
                                         {"-lora_r", "bca"},
                                         {"-run", "cba"}}) {
    sort_runs(comparison, column);
    EXPECT_EQ(order(comparison), expected) << column;
  }
}

TEST_F(ComparisonTest, RefusesAnUnknownColumnWithTheNearest) {
  Comparison comparison = three_runs();
  expect_refused([&] { sort_runs(comparison, "evalloss"); }, "", {"Did you mean \"eval_loss\"?"}, ExitCode::kUsage);
  expect_refused(
      [&] {
        choose_columns(comparison, {"step", "learningrate"});
      },
      "--columns", {"Did you mean \"learning_rate\""}, ExitCode::kUsage);
}

TEST_F(ComparisonTest, ColumnsCanBeChosen) {
  Comparison comparison = three_runs();
  choose_columns(comparison, {"eval_loss", " lora_alpha", "run", "eval_perplexity", "eval_loss"});
  const auto lines = lines_of(comparison_table(comparison, 0, false));
  EXPECT_EQ(lines[0], "run  eval_loss  lora_alpha  perplexity");
  EXPECT_EQ(lines[1], "a       2.0000          32      7.3891");
  EXPECT_TRUE(comparison_csv(comparison).starts_with("run,folder,status,eval_loss,lora_alpha,perplexity\na,"));
  const Json object = Json::parse(lines_of(comparison_json(comparison)).front());
  EXPECT_EQ(object.at("profile"), Json({{"lora_alpha", 32}}));
  EXPECT_EQ(object.at("eval_loss"), 2);
  EXPECT_FALSE(object.contains("step"));
  sort_runs(comparison, "eval_mean_token_accuracy");  // no run has it
  EXPECT_EQ(order(comparison), "abc");
}

TEST_F(ComparisonTest, TableHasOneRunARowAndNumbersOnTheRight) {
  const auto lines = lines_of(comparison_table(three_runs(), 0, false));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].starts_with("run  lora_r  learning_rate  status  step"));
  EXPECT_TRUE(lines[1].starts_with("a         8           0.01  done       4"));
  EXPECT_TRUE(lines[2].starts_with("b        16          0.002  done       4"));
  EXPECT_NE(lines[0].find("peak_host_memory_gib"), std::string::npos);  // no run had a device
  EXPECT_EQ(lines[0].find("cost_usd"), std::string::npos);              // nobody said a price
}

TEST_F(ComparisonTest, NarrowTableWrapsIntoBlocksOfRuns) {
  const Comparison comparison = three_runs();
  for (const int width : {20, 32, 40, 60}) {
    const auto lines = lines_of(comparison_table(comparison, width, false));
    for (const auto& line : lines)
      EXPECT_LE(line.size(), std::max<std::size_t>(30, static_cast<std::size_t>(width))) << line;
    const auto blocks =
        std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.starts_with("run "); });
    EXPECT_EQ(blocks, width <= 32 ? 3 : width == 40 ? 2 : 1) << width;
  }
}

TEST_F(ComparisonTest, LongValuesAndReasonsFollowTheTable) {
  write_run(folder_ / "a", "", 2);
  write_text(folder_ / "a/profile.yaml", "model: m\ndatasets: [{path: /a/long/path/to/the/first/train.jsonl}]\n");
  write_run(folder_ / "b", "", 1);
  write_text(folder_ / "c/summary.json", "{\"status\":\"failed\",\"reason\":\"two\\nlines \\u001b[2J\"}");
  const std::string table = comparison_table(runs(), 0, false);
  EXPECT_EQ(table.substr(0, table.find('\n')).find("datasets"), std::string::npos) << table;
  expect_parts(table, {"\n\ndatasets\n  a  [{\"path\":\"/a/long/path/to/the/first/train.jsonl\"",
                       "\nc: failed: two lines \\x1b[2J\n"});
  EXPECT_EQ(table.find('\x1b'), std::string::npos);
}

TEST_F(ComparisonTest, ColourIsOnlyThereWhenAskedFor) {
  const Comparison comparison = three_runs();
  EXPECT_EQ(comparison_table(comparison, 0, false).find('\x1b'), std::string::npos);
  expect_parts(comparison_table(comparison, 0, true), {"\x1b[32mdone\x1b[0m", "\x1b[1m1.0000\x1b[0m"});  // the best
}

TEST_F(ComparisonTest, EqualNamesBecomeFolders) {
  for (const char* name : {"x/run", "y/run"}) write_run(folder_ / name, "", 1);
  const Comparison comparison = compare_runs({folder_ / "x/run", folder_ / "y/run"});
  EXPECT_EQ(comparison.runs[0].name, (folder_ / "x/run").string());
  EXPECT_NE(comparison.runs[0].name, comparison.runs[1].name);
}

TEST_F(ComparisonTest, CsvHoldsNoFormulas) {
  for (const std::string name : {"=HYPERLINK(1)", "-2", "@SUM(1)"})
    write_run(folder_ / name, "run_name: \"" + name + "\"\n", 1);
  expect_parts(comparison_csv(runs()), {"\n'=HYPERLINK(1),", "\n-2,", "\n'@SUM(1),"});
}

TEST_F(ComparisonTest, CsvQuotesWhatNeedsQuotes) {
  write_run(folder_ / "a", "run_name: 'one, \"two\"'\n", 0.1 + 0.2);
  write_text(folder_ / "b/summary.json",
             "{\"status\":\"failed\",\"reason\":\"line one\\nline two\",\"run_name\":\"b\"}");
  const std::string csv = comparison_csv(runs());
  EXPECT_TRUE(csv.starts_with("run,folder,status,step,total_steps,"));
  expect_parts(csv, {"\n\"one, \"\"two\"\"\"," + (folder_ / "a").string() + ",done,4,4,", ",\"line one\nline two\"\n"});
  const std::string header = csv.substr(0, csv.find('\n'));
  const std::string b = csv.substr(csv.find("\nb,") + 1);
  EXPECT_EQ(std::count(b.begin(), b.end(), ','), std::count(header.begin(), header.end(), ','));
}

TEST_F(ComparisonTest, JsonHasAllDigitsAndNullForUnknown) {
  const auto lines = lines_of(comparison_json(three_runs()));
  ASSERT_EQ(lines.size(), 3u);
  const Json run = Json::parse(lines[1]);
  EXPECT_EQ(run.at("profile").dump(), R"({"lora_r":16,"learning_rate":0.002})");
  EXPECT_EQ(run.at("step").dump(), "4");
  expect_members(run, R"({"run": "b", "tokens_per_s": 200.5, "cost_usd": null, "phases_s": null, "reason": null})");
}

}  // namespace
}  // namespace lora_train::report
