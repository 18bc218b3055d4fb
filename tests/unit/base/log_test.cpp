#include "lora_train/base/log.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/temporary_folder.h"

namespace lora_train {
namespace {

using testing_support::TemporaryFolder;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Each test is a process of its own under CTest; in one process only the first file gets the early lines.
TEST(Log, TheFirstFileBeginsWithTheLinesBeforeIt) {
  const TemporaryFolder folder;
  log_info("before");
  log_debug("a detail");
  set_log_file(folder / "run.log");
  log_warning("after");
  set_log_file({});
  log_info("later");
  const std::string text = read_file(folder / "run.log");
  EXPECT_TRUE(contains(text, " before\n")) << text;
  EXPECT_TRUE(contains(text, " warning: after\n")) << text;
  EXPECT_LT(text.find("before"), text.find("after"));
  EXPECT_FALSE(contains(text, "a detail") || contains(text, "later")) << text;
  set_log_file(folder / "second.log");
  set_log_file({});
  EXPECT_EQ(read_file(folder / "second.log"), "");
}

TEST(Log, TheFileGetsWhatStderrDoesNot) {
  const TemporaryFolder folder;
  set_log_file(folder / "run.log");
  set_log_level(LogLevel::kOff);
  testing::internal::CaptureStderr();
  log_error("quiet");
  const std::string shown = testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::kInfo);
  set_log_file({});
  EXPECT_EQ(shown, "");
  EXPECT_TRUE(contains(read_file(folder / "run.log"), " error: quiet\n"));
}

TEST(Log, TheBarIsClearedBeforeALineAndRedrawnAfterIt) {
  std::string calls;
  set_log_bar([&] { calls += "clear "; }, [&] { calls += "redraw"; });
  log_info("line");
  set_log_bar({}, {});
  EXPECT_EQ(calls, "clear redraw");
}

TEST(Log, LevelsAreReadByName) {
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarning);
  EXPECT_THROW(parse_log_level("loud"), ConfigError);
}

TEST(Log, AFileThatCannotBeOpenedIsAnIoError) {
  const TemporaryFolder folder;
  EXPECT_THROW(set_log_file(folder / "none" / "run.log"), IoError);
  set_log_file({});
}

}  // namespace
}  // namespace lora_train
