#include "lora_train/base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <latch>
#include <regex>
#include <sstream>
#include <thread>

#include "lora_train/base/file.h"
#include "support/file_size_limit.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train {
namespace {

/// With a log file of its own, and without one after the test.
class Log : public ::testing::Test {
 protected:
  ~Log() override { set_log_file({}); }
  void open_file() const { set_log_file(file); }
  /// Closes it.
  std::string text_of_file() const {
    set_log_file({});
    return read_file(file);
  }
  static std::string shown(const std::function<void()>& body) {
    testing::internal::CaptureStderr();
    body();
    return testing::internal::GetCapturedStderr();
  }

  testing_support::TemporaryFolder folder;
  const std::filesystem::path file = folder / "run.log";
};

// Each test is a process of its own under CTest; in one process only the first file gets the early lines.
TEST_F(Log, TheFirstFileBeginsWithTheLinesBeforeIt) {
  log_info("before");
  log_debug("a detail");
  open_file();
  log_warning("after");
  set_log_file({});
  log_info("later");
  const std::string text = text_of_file();
  for (const char* part : {" before\n", " warning: after\n", " a detail\n"}) EXPECT_SAYS(text, part);
  EXPECT_LT(text.find("before"), text.find("after"));
  EXPECT_EQ(text.find("later"), std::string::npos) << text;
  set_log_file(folder / "second.log");
  set_log_file({});
  EXPECT_EQ(read_file(folder / "second.log"), "");
}

TEST_F(Log, TheFileGetsWhatStderrDoesNot) {
  open_file();
  set_log_level(LogLevel::kOff);
  EXPECT_EQ(shown([] { log_error("quiet"); }), "");
  set_log_level(LogLevel::kInfo);
  EXPECT_SAYS(text_of_file(), " error: quiet\n");
}

TEST_F(Log, TheBarIsClearedBeforeALineAndRedrawnAfterIt) {
  std::string calls;
  set_log_bar([&] { calls += "clear "; }, [&] { calls += "redraw"; });
  log_info("line");
  set_log_bar({}, {});
  EXPECT_EQ(calls, "clear redraw");
}

TEST_F(Log, StderrGetsTheLineAndThePrefixOfItsLevel) {
  set_log_level(LogLevel::kDebug);
  const std::string text = shown([] {
    log_debug("a detail");
    log_info("100% of {} and %v");
    log_warning("");
    log_error("two\nlines");
    log_warning("a\x1b]0;title\x07 b\xc2\x9b");
  });
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(text, "a detail\n100% of {} and %v\nwarning: \nerror: two\nlines\nwarning: a\\x1b]0;title\\x07 b\\u009b\n");
}

TEST_F(Log, TheFileGetsTheLocalTimeBeforeTheLine) {
  open_file();
  log_info("line");
  log_warning("line");
  const std::string time = R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )", text = text_of_file();
  EXPECT_TRUE(std::regex_search(text, std::regex("(^|\n)" + time + "line\n" + time + "warning: line\n$"))) << text;
}

TEST_F(Log, EveryRankButTheFirstNamesItself) {
  open_file();
  EXPECT_EQ(shown([] {
              set_log_rank(3);
              log_warning("slow");
              set_log_rank(0);
              log_info("fast");
            }),
            "[rank 3] warning: slow\nfast\n");
  EXPECT_SAYS(text_of_file(), " [rank 3] warning: slow\n");
}

TEST_F(Log, AFullDiskCostsLinesUntilThereIsRoomAgain) {
  open_file();
  log_info("before");
  {
    const testing_support::FileSizeLimit full(read_file(file).size() + 10);
    EXPECT_NO_THROW(log_info("a line that does not fit"));
    EXPECT_NO_THROW(log_error("nor does this one"));
    EXPECT_EQ(read_file(file).find("fit"), std::string::npos);
  }
  log_info("there is room");
  const std::string text = text_of_file();
  EXPECT_SAYS(text, " before\n");
  EXPECT_SAYS(text, " there is room\n");
}

TEST_F(Log, AClosedTerminalCostsNoLineOfTheFile) {
  open_file();
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
  EXPECT_EQ(shown([] { log_info("somebody reads"); }), "somebody reads\n");
  EXPECT_SAYS(text_of_file(), " nobody reads\n");
}

TEST_F(Log, ThreadsWriteWholeLines) {
  open_file();
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
  int num_whole = 0;
  std::istringstream lines(text_of_file());
  for (std::string line; std::getline(lines, line);) num_whole += line.size() == 23 && line.ends_with(" abc");
  EXPECT_EQ(num_whole, kThreads * kLines);
}

TEST_F(Log, RefusesUnknownLevelsAndFilesThatCannotBeOpened) {
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarning);
  EXPECT_THROW(parse_log_level("loud"), ConfigError);
  EXPECT_THROW(set_log_file(folder / "none" / "run.log"), IoError);
}

TEST_F(Log, DoesNotWaitForAReaderThatHasStopped) {
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

TEST(LinePace, LongWorkGetsALineFromOneOfItsThreadsAtATime) {
  using std::chrono::hours;
  EXPECT_FALSE(LinePace().is_due()) << "short work";
  LinePace always(hours(0), hours(0));
  EXPECT_TRUE(always.is_due() && always.is_due());
  LinePace pace(hours(0), hours(1));
  std::atomic<int> num_due = 0;
  {
    std::vector<std::jthread> threads(8);
    for (auto& thread : threads) thread = std::jthread([&] { num_due += pace.is_due() ? 1 : 0; });
  }
  EXPECT_EQ(num_due, 1);
  EXPECT_FALSE(pace.is_due());
}

}  // namespace
}  // namespace lora_train
