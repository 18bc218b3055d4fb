#include "lora_train/metrics/progress_bar.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "support/temporary_folder.h"

namespace lora_train::metrics {
namespace {

const ProgressState kState{
    .step = 25, .total_steps = 100, .loss = 1.23456, .steps_per_s = 3.214, .tokens_per_s = 12345.6, .eta_s = 65};

// What was written into a pipe so far.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  int write_end() const { return ends_[1]; }
  void close_read_end() {
    ::close(ends_[0]);
    ends_[0] = -1;
  }
  std::string read() {
    char bytes[4096];
    const ssize_t count = ::read(ends_[0], bytes, sizeof bytes);
    return count > 0 ? std::string(bytes, static_cast<std::size_t>(count)) : std::string();
  }

 private:
  int ends_[2] = {-1, -1};
};

TEST(ProgressBar, PlainLineHasAllNumbers) {
  EXPECT_EQ(format_progress_line(kState), "step 25/100 (25%) loss 1.2346 3.21 it/s 12,345 tok/s, 1m 05s left");
}

TEST(ProgressBar, BarFillsWithTheShareOfSteps) {
  const std::string bar = format_progress_bar(kState, 120, /*use_color=*/false);
  EXPECT_EQ(bar, " 25% [#######-----------------------] 25/100 loss 1.2346 3.21 it/s 12,345 tok/s 1m 05s left");
}

TEST(ProgressBar, TheCostStandsAtTheEndWhereThereIsRoom) {
  ProgressState state = kState;
  state.cost_usd = 0.42;
  EXPECT_TRUE(format_progress_line(state).ends_with("1m 05s left, $0.42"));
  EXPECT_TRUE(format_progress_bar(state, 120, false).ends_with("1m 05s left $0.42"));
  const std::size_t enough =
      format_progress_bar(kState, 0x7fff, false).size() - 30 + 5 + 6;  // the shortest bar, and " $0.42"
  EXPECT_TRUE(format_progress_bar(state, static_cast<int>(enough), false).ends_with("$0.42"));
  EXPECT_EQ(format_progress_bar(state, static_cast<int>(enough) - 1, false),
            format_progress_bar(kState, static_cast<int>(enough) - 1, false));
}

TEST(ProgressBar, NeverWiderThanTheTerminal) {
  ProgressState state = kState;
  state.cost_usd = 12.5;
  for (int width = 0; width < 140; ++width) {
    EXPECT_LE(format_progress_bar(kState, width, false).size(), static_cast<std::size_t>(width)) << width;
    EXPECT_LE(format_progress_bar(state, width, false).size(), static_cast<std::size_t>(width)) << width;
  }
}

TEST(ProgressBar, HundredPercentOnlyWhenDone) {
  ProgressState state = kState;
  state.step = 999;
  state.total_steps = 1000;
  EXPECT_EQ(format_progress_bar(state, 120, false).substr(0, 4), " 99%");
  state.step = 1000;
  EXPECT_EQ(format_progress_bar(state, 120, false).substr(0, 4), "100%");
}

TEST(ProgressBar, NoStepsIsZeroPercent) {
  EXPECT_EQ(format_progress_line(ProgressState{}).substr(0, 13), "step 0/0 (0%)");
}

TEST(ProgressBar, CountsWhatHasNoLoss) {
  ProgressState state = kState;
  state.loss.reset();
  state.unit = "prompt";
  EXPECT_EQ(format_progress_line(state), "prompt 25/100 (25%) 3.21 it/s 12,345 tok/s, 1m 05s left");
  EXPECT_EQ(format_progress_bar(state, 120, false).find("loss"), std::string::npos);
}

TEST(ProgressBar, ColorOnlyWhenAsked) {
  EXPECT_NE(format_progress_bar(kState, 120, true).find("\x1b["), std::string::npos);
  EXPECT_EQ(format_progress_bar(kState, 120, false).find("\x1b["), std::string::npos);
}

TEST(ProgressBar, NoColorVariableTurnsColorOff) {
  Pipe pipe;
  ::setenv("NO_COLOR", "1", 1);
  {
    ProgressBar bar({.is_terminal = true, .width = 120, .fd = pipe.write_end()});
    bar.update(kState);
  }
  ::unsetenv("NO_COLOR");
  EXPECT_EQ(pipe.read().find("\x1b[32m"), std::string::npos);
}

TEST(ProgressBar, RedrawsOneLineAndEndsIt) {
  Pipe pipe;
  {
    ProgressBar bar({.is_terminal = true, .width = 120, .use_color = false, .fd = pipe.write_end()});
    bar.update(kState);
    EXPECT_EQ(pipe.read().substr(0, 9), "\r\x1b[K 25% ");
  }
  const std::string end = pipe.read();
  EXPECT_EQ(end.substr(0, 4), "\r\x1b[K");
  EXPECT_EQ(end.back(), '\n');
}

TEST(ProgressBar, LogLineClearsTheBarAndDrawsItAgain) {
  Pipe pipe;
  ProgressBar bar({.is_terminal = true, .width = 120, .use_color = false, .fd = pipe.write_end()});
  bar.update(kState);
  pipe.read();
  testing::internal::CaptureStderr();
  log_info("saved");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "saved\n");
  const std::string drawn = pipe.read();
  EXPECT_EQ(drawn.substr(0, 8), "\r\x1b[K\r\x1b[K");
  EXPECT_NE(drawn.find(" 25% ["), std::string::npos);
}

TEST(ProgressBar, WithoutATerminalLogsOnePlainLinePerLoggedStep) {
  testing::internal::CaptureStderr();
  {
    ProgressBar bar({.is_terminal = false});
    bar.update(kState);
    bar.log_step(kState);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), format_progress_line(kState) + "\n");
}

TEST(ProgressBar, QuietDrawsNothingOnATerminal) {
  Pipe pipe;
  const testing_support::TemporaryFolder folder;
  set_log_file(folder / "run.log");
  set_log_level(LogLevel::kWarning);
  {
    ProgressBar bar({.quiet = true, .is_terminal = true, .width = 120, .fd = pipe.write_end()});
    bar.update(kState);
    bar.log_step(kState);
  }
  set_log_level(LogLevel::kInfo);
  set_log_file("");
  EXPECT_EQ(::write(pipe.write_end(), "x", 1), 1);
  EXPECT_EQ(pipe.read(), "x");
  EXPECT_NE(read_file(folder / "run.log").find("step 25/100"), std::string::npos);
}

TEST(ProgressBar, AClosedTerminalIsIgnored) {
  const auto previous = std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.close_read_end();
  {
    ProgressBar bar({.is_terminal = true, .width = 120, .fd = pipe.write_end()});
    EXPECT_NO_THROW(bar.update(kState));
  }
  std::signal(SIGPIPE, previous);
}

}  // namespace
}  // namespace lora_train::metrics
