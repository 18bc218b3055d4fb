#include "lora_train/base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <latch>
#include <regex>
#include <sstream>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "support/file_size_limit.h"
#include "support/temporary_folder.h"

namespace lora_train {
namespace {

using testing_support::TemporaryFolder;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

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
  EXPECT_TRUE(contains(text, " a detail\n")) << text;
  EXPECT_FALSE(contains(text, "later")) << text;
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

TEST(Log, StderrGetsTheLineAndThePrefixOfItsLevel) {
  set_log_level(LogLevel::kDebug);
  testing::internal::CaptureStderr();
  log_debug("a detail");
  log_info("100% of {} and %v");
  log_warning("");
  log_error("two\nlines");
  const std::string shown = testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(shown, "a detail\n100% of {} and %v\nwarning: \nerror: two\nlines\n");
}

TEST(Log, TheFileGetsTheLocalTimeBeforeTheLine) {
  const TemporaryFolder folder;
  set_log_file(folder / "run.log");
  log_info("line");
  log_warning("line");
  set_log_file({});
  const auto lines = lines_of(read_file(folder / "run.log"));
  ASSERT_GE(lines.size(), 2u);
  const std::string time = R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )";
  EXPECT_TRUE(std::regex_match(*(lines.end() - 2), std::regex(time + "line"))) << *(lines.end() - 2);
  EXPECT_TRUE(std::regex_match(lines.back(), std::regex(time + "warning: line"))) << lines.back();
}

TEST(Log, EveryRankButTheFirstNamesItself) {
  const TemporaryFolder folder;
  set_log_file(folder / "run.log");
  testing::internal::CaptureStderr();
  set_log_rank(3);
  log_warning("slow");
  set_log_rank(0);
  log_info("fast");
  set_log_file({});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[rank 3] warning: slow\nfast\n");
  EXPECT_TRUE(contains(read_file(folder / "run.log"), " [rank 3] warning: slow\n"));
}

TEST(Log, AFullDiskCostsLinesUntilThereIsRoomAgain) {
  const TemporaryFolder folder;
  set_log_file(folder / "run.log");
  log_info("before");
  {
    const testing_support::FileSizeLimit full(read_file(folder / "run.log").size() + 10);
    EXPECT_NO_THROW(log_info("a line that does not fit"));
    EXPECT_NO_THROW(log_error("nor does this one"));
    EXPECT_FALSE(contains(read_file(folder / "run.log"), "fit"));
  }
  log_info("there is room");
  set_log_file({});
  const std::string text = read_file(folder / "run.log");
  EXPECT_TRUE(contains(text, " before\n")) << text;
  EXPECT_TRUE(contains(text, " there is room\n")) << text;
}

TEST(Log, AClosedTerminalCostsNoLineOfTheFile) {
  const TemporaryFolder folder;
  set_log_file(folder / "run.log");
  const auto previous = std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int real_stderr = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_NO_THROW(log_info("nobody reads"));
  ::dup2(real_stderr, STDERR_FILENO);
  ::close(real_stderr);
  std::signal(SIGPIPE, previous);
  testing::internal::CaptureStderr();
  log_info("somebody reads");
  set_log_file({});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "somebody reads\n");
  EXPECT_TRUE(contains(read_file(folder / "run.log"), " nobody reads\n"));
}

TEST(Log, ThreadsWriteWholeLines) {
  const TemporaryFolder folder;
  set_log_file(folder / "run.log");
  set_log_level(LogLevel::kOff);
  constexpr int kThreads = 4, kLines = 5000;  // more than a thread writes before the next one has started
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&start] {
      start.arrive_and_wait();
      for (int line = 0; line < kLines; ++line) log_info("abc");
    });
  }
  for (auto& thread : threads) thread.join();
  set_log_level(LogLevel::kInfo);
  set_log_file({});
  int num_whole = 0;
  for (const auto& line : lines_of(read_file(folder / "run.log")))
    num_whole += line.size() == 23 && line.ends_with(" abc");
  EXPECT_EQ(num_whole, kThreads * kLines);
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

TEST(Log, ControlCharactersOfNamesReachNoTerminal) {
  testing::internal::CaptureStderr();
  log_warning("a\x1b]0;title\x07 b\xc2\x9b");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: a\\x1b]0;title\\x07 b\\u009b\n");
}

TEST(Log, DoesNotWaitForAReaderThatHasStopped) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK), 0);
  const int own = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  const std::string page(4096, '.');
  while (::write(ends[1], page.data(), page.size()) > 0) {
  }
  ::fcntl(ends[1], F_SETFL, 0);  // now it would wait
  never_wait_for_stderr(std::chrono::milliseconds(0));
  log_info("lost");
  log_info("lost too");
  std::string text(1 << 20, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends[0], text.data(), text.size()))));
  EXPECT_EQ(text.find("lost"), std::string::npos);
  log_info("read again");
  text.resize(1000);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(ends[0], text.data(), text.size()))));
  never_wait_for_stderr(std::chrono::milliseconds(-1));
  ::dup2(own, STDERR_FILENO);
  for (const int fd : {own, ends[0], ends[1]}) ::close(fd);
  EXPECT_EQ(text, "warning: 2 lines are missing here; run.log has them\nread again\n");
}

}  // namespace
}  // namespace lora_train
