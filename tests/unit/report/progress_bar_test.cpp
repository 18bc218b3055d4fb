#include "lora_train/report/progress_bar.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "support/environment.h"
#include "support/expect_parts.h"
#include "support/temporary_folder.h"

namespace lora_train::report {
namespace {

using testing_support::expect_parts;

const ProgressState kState{
    .step = 25, .total_steps = 100, .loss = 1.23456, .steps_per_s = 3.214, .tokens_per_s = 12345.6, .eta_s = 65};

/// With all that a run can show.
const ProgressState kWholeState{.step = 420,
                                .total_steps = 1000,
                                .loss = 1.23456,
                                .steps_per_s = 3.214,
                                .tokens_per_s = 12345.6,
                                .eta_s = 65,
                                .cost_usd = 0.42,
                                .elapsed_s = 125,
                                .learning_rate = 1.5e-4,
                                .epoch = 1.26,
                                .eval_loss = 1.2001,
                                .gpu_utilization = 97,
                                .next_eval = 500,
                                .next_save = 600};

// What was written into a pipe so far.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  int write_end() const { return ends_[1]; }
  /// A terminal of 120 columns without colours, at the end of this pipe.
  ProgressOptions terminal() const {
    return {.is_terminal = true, .width = 120, .use_color = false, .fd = write_end()};
  }
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

TEST(ProgressBar, APlainLineHasAllThatIsKnown) {
  EXPECT_EQ(format_progress_line(kState), "step 25/100 (25%) loss 1.2346 3.21 it/s 12,345 tok/s, 1m 05s left");
  EXPECT_EQ(
      format_progress_line(kWholeState),
      "step 420/1000 (42%) loss 1.2346 eval_loss 1.2001 lr 1.50e-04 epoch 1.26 3.21 it/s 12,345 tok/s gpu 97%, 2m "
      "05s elapsed, 1m 05s left, $0.42");
  ProgressState evaluating = kWholeState;
  evaluating.activity = "evaluating val 3/12";
  EXPECT_EQ(format_progress_line(evaluating), "step 420/1000 (42%): evaluating val 3/12");
  EXPECT_EQ(format_progress_line(ProgressState{}).substr(0, 13), "step 0/0 (0%)");
  ProgressState prompts = kState;
  prompts.loss.reset();
  prompts.unit = "prompt";
  EXPECT_EQ(format_progress_line(prompts), "prompt 25/100 (25%) 3.21 it/s 12,345 tok/s, 1m 05s left");
  EXPECT_EQ(format_progress_bar(prompts, 120, false).find("loss"), std::string::npos);
}

TEST(ProgressBar, BarFillsWithTheShareOfStepsAndHasColourWhenAsked) {
  EXPECT_EQ(format_progress_bar(kState, 120, /*use_color=*/false),
            " 25% [#######-----------------------] 25/100 01:05 left loss 1.2346 3.21 it/s 12,345 tok/s");
  expect_parts(format_progress_bar(kState, 120, true), {"\x1b["});
}

TEST(ProgressBar, WhatIsNeededLeastLeavesFirst) {
  const auto bar = [](int width) { return format_progress_bar(kWholeState, width, false); };
  EXPECT_EQ(bar(39), " 42% 420/1000 02:05<01:05 loss 1.2346");
  EXPECT_EQ(bar(79), " 42% 420/1000 02:05<01:05 loss 1.2346 eval 1.2001 12,345 tok/s gpu 97% eval@500");
  EXPECT_EQ(bar(119),
            " 42% [##-----] 420/1000 02:05<01:05 loss 1.2346 eval 1.2001 lr 1.5e-04 3.21 it/s 12,345 tok/s gpu 97% "
            "eval@500 save@600");
  EXPECT_EQ(bar(199),
            " 42% [############------------------] 420/1000 02:05<01:05 loss 1.2346 eval 1.2001 lr 1.5e-04 3.21 it/s "
            "12,345 tok/s gpu 97% epoch 1.26 eval@500 save@600 $0.42");
  ProgressState not_evaluated = kWholeState;
  not_evaluated.eval_loss.reset();
  EXPECT_EQ(format_progress_bar(not_evaluated, 79, false),
            " 42% 420/1000 02:05<01:05 loss 1.2346 lr 1.5e-04 3.21 it/s 12,345 tok/s gpu 97%");
}

TEST(ProgressBar, BetweenStepsItSaysWhatGoesOn) {
  ProgressState state = kWholeState;
  state.activity = "evaluating val 3/12";
  EXPECT_EQ(format_progress_bar(state, 79, false),
            " 42% 420/1000 evaluating val 3/12 02:05<01:05 loss 1.2346 eval 1.2001 gpu 97%");
  EXPECT_EQ(format_progress_bar(state, 35, false), " 42% 420/1000 evaluating val 3/12");
}

TEST(ProgressBar, HoursAreShownOnceThereAreSomeAndAllPercentWhenDone) {
  ProgressState state = kState;
  state.elapsed_s = 3599;
  state.eta_s = 360000 + 62;
  expect_parts(format_progress_bar(state, 120, false), {" 59:59<100:01:02 "});
  state.steps_per_s = 0;  // no step yet
  expect_parts(format_progress_bar(state, 120, false), {" 59:59<? "});
  state.total_steps = 1000;
  for (const auto& [step, share] : {std::pair{999, " 99%"}, {1000, "100%"}}) {
    state.step = step;
    EXPECT_EQ(format_progress_bar(state, 120, false).substr(0, 4), share);
  }
}

TEST(ProgressBar, NeverWiderThanTheTerminal) {
  ProgressState evaluating = kWholeState;
  evaluating.activity = "evaluating val 3/12";
  for (int width = 0; width < 240; ++width) {
    for (const ProgressState& state : {kState, kWholeState, evaluating}) {
      EXPECT_LE(format_progress_bar(state, width, false).size(), static_cast<std::size_t>(width)) << width;
    }
  }
}

TEST(ProgressBar, HeedsNoColorAndColumnsWhereNoTerminalSaysItsWidth) {
  Pipe pipe;
  testing_support::ScopedEnvironment environment;
  environment.set("NO_COLOR", "1");
  environment.set("COLUMNS", "120");
  ProgressBar bar({.is_terminal = true, .fd = pipe.write_end()});
  bar.update(kWholeState);
  EXPECT_NE(format_progress_bar(kWholeState, 119, true), format_progress_bar(kWholeState, 119, false));
  EXPECT_EQ(pipe.read(), "\r\x1b[J" + format_progress_bar(kWholeState, 119, false) + "\r");
}

TEST(ProgressBar, RedrawsOneLineAndEndsIt) {
  Pipe pipe;
  {
    ProgressBar bar(pipe.terminal());
    bar.update(kState);
    const std::string drawn = pipe.read();
    EXPECT_EQ(drawn.substr(0, 9), "\r\x1b[J 25% ");
    EXPECT_EQ(drawn.back(), '\r') << "a terminal that becomes narrower wraps what is after the cursor";
  }
  const std::string end = pipe.read();
  EXPECT_EQ(end.substr(0, 4), "\r\x1b[J");
  EXPECT_EQ(end.back(), '\n');
}

TEST(ProgressBar, LogLineClearsTheBarAndDrawsItAgain) {
  Pipe pipe;
  ProgressBar bar(pipe.terminal());
  bar.update(kState);
  pipe.read();
  testing::internal::CaptureStderr();
  log_info("saved");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "saved\n");
  const std::string drawn = pipe.read();
  EXPECT_EQ(drawn.substr(0, 8), "\r\x1b[J\r\x1b[J");
  expect_parts(drawn, {" 25% ["});
}

TEST(ProgressBar, IsDrawnAgainWhileNothingHappens) {
  Pipe pipe;
  ProgressState state = kWholeState;
  state.elapsed_s = 59.999;
  state.eta_s = 3600.2;
  ProgressOptions options = pipe.terminal();
  options.tick = std::chrono::milliseconds(5);
  ProgressBar bar(options);
  bar.update(state);
  expect_parts(pipe.read(), {" 00:59<1:00:00 "});
  expect_parts(pipe.read(), {" 01:00<1:00:00 "});  // it waits for it
}

TEST(ProgressBar, AnActivityKeepsWhatIsKnownOfTheSteps) {
  Pipe pipe;
  ProgressOptions options = pipe.terminal();
  options.tick = std::chrono::hours(1);
  ProgressBar bar(options);
  bar.show_activity({.total_steps = 3, .elapsed_s = 7, .activity = "first step"});
  expect_parts(pipe.read(), {" 0/3 first step 00:07<?\r"});
  bar.update(kWholeState);
  bar.show_activity({.step = 421, .total_steps = 1000, .eval_loss = 1.1, .activity = "evaluating val 3/12"});
  log_info("draws it again");
  expect_parts(pipe.read(), {" 421/1000 evaluating val 3/12 ", " loss 1.2346 eval 1.1000 "});
}

std::string lines_of(int num_steps, const ProgressOptions& options, bool is_logged = true) {
  testing::internal::CaptureStderr();
  {
    ProgressBar bar(options);
    for (int step = 1; step <= num_steps; ++step) {
      ProgressState state = kState;
      state.step = step;
      state.total_steps = num_steps;
      is_logged ? bar.log_step(state) : bar.update(state);
    }
  }
  return testing::internal::GetCapturedStderr();
}

long count_lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(ProgressBar, WithoutATerminalAHundredLinesAreEnoughAndNoneIsLongAgo) {
  const ProgressOptions options{.is_terminal = false};
  EXPECT_EQ(count_lines(lines_of(3, options)), 3);
  EXPECT_EQ(count_lines(lines_of(100, options)), 100);
  const std::string lines = lines_of(5000, options);
  EXPECT_EQ(count_lines(lines), 101) << "the first, and then each hundredth";
  EXPECT_TRUE(lines.starts_with("step 1/5000 (0%) "));
  EXPECT_NE(lines.find("\nstep 5000/5000 (100%) "), std::string::npos);
  EXPECT_EQ(lines_of(5000, options, /*is_logged=*/false), "") << "they are not logged, and the last line is young";
  const ProgressOptions at_once{.is_terminal = false, .line_interval = std::chrono::milliseconds(0)};
  EXPECT_EQ(count_lines(lines_of(50, at_once, /*is_logged=*/false)), 50);
}

TEST(ProgressBar, TheLastLineIsLoggedAtTheEndIfItWasHeldBack) {
  testing::internal::CaptureStderr();
  {
    ProgressBar bar({.is_terminal = false});
    ProgressState state = kState;
    state.total_steps = 10000;
    for (state.step = 1; state.step < 4; ++state.step) bar.log_step(state);
    bar.show_activity({.step = 3, .total_steps = 10000, .activity = "evaluating"});
  }
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_lines(lines), 2) << lines;
  EXPECT_NE(lines.find("\nstep 3/10000 (0%) loss"), std::string::npos) << "of a run that was stopped";
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
  expect_parts(read_file(folder / "run.log"), {"step 25/100"});
}

TEST(ProgressBar, AClosedTerminalIsIgnored) {
  const auto previous = std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.close_read_end();
  EXPECT_NO_THROW(ProgressBar(pipe.terminal()).update(kState));
  std::signal(SIGPIPE, previous);
}

}  // namespace
}  // namespace lora_train::report
