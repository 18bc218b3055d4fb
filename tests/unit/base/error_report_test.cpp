#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "support/refusal.h"

namespace lora_train {
namespace {

template <typename Exception>
ErrorReport describe(const Exception& exception) {
  try {
    throw exception;
  } catch (...) {
    return describe_current_exception();
  }
}

TEST(ErrorReport, OwnErrorsSayKindPlaceAndCode) {
  const ErrorReport report = describe(DataError("a.jsonl:3", "bad example"));
  EXPECT_EQ(report.code, ExitCode::kData);
  EXPECT_EQ(report.kind + "|" + report.where + "|" + report.message, "data|a.jsonl:3|bad example");
  EXPECT_EQ(describe(ConfigError("", "")).code, ExitCode::kUsage);
  EXPECT_EQ(describe(FormatError("", "")).code, ExitCode::kFormat);
  EXPECT_EQ(describe(IoError("", "")).code, ExitCode::kIo);
  EXPECT_EQ(describe(DeviceError("", "")).code, ExitCode::kDevice);
  EXPECT_EQ(describe(NumericError("", "")).code, ExitCode::kNumeric);
}

TEST(ErrorReport, OurMistakesAreCalledBugs) {
  for (const ErrorReport& report :
       {describe(ShapeError("rms_norm", "weight is not [D]")), describe(std::runtime_error("odd")), describe(42)}) {
    EXPECT_EQ(report.code, ExitCode::kInternal);
    EXPECT_EQ(report.kind, "internal");
    EXPECT_TRUE(report.message.starts_with("internal error: ")) << report.message;
    EXPECT_SAYS(report.message, "bug in lora-train");
  }
}

TEST(ErrorReport, WhatTheFileSystemRefusesIsAnIoErrorOfItsPath) {
  const ErrorReport report = describe(
      std::filesystem::filesystem_error("cannot remove", "runs/x", std::make_error_code(std::errc::permission_denied)));
  EXPECT_EQ(report.code, ExitCode::kIo);
  EXPECT_EQ(report.kind + "|" + report.where + "|" + report.message, "io|runs/x|Permission denied");
}

TEST(ErrorReport, WhatAMachineLacksIsNoBug) {
  const std::runtime_error no_memory(
      "[enforce fail at alloc_cpu.cpp:1] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 "
      "bytes. Error code 12 (Cannot allocate memory)");
  for (const ErrorReport& report : {describe(std::bad_alloc()), describe(no_memory)}) {
    EXPECT_EQ(report.code, ExitCode::kDevice);
    EXPECT_EQ(report.kind, "device");
    EXPECT_SAYS(report.message, "micro_batch_size");
    EXPECT_SAYS(report.message, "gradient_checkpointing: full");
    EXPECT_EQ(report.message.find("bug"), std::string::npos) << report.message;
  }
  const ErrorReport no_device_memory = describe(std::runtime_error("CUDA out of memory. Tried to allocate 2 GiB"));
  EXPECT_EQ(no_device_memory.code, ExitCode::kDevice);
  EXPECT_EQ(no_device_memory.kind, "device");
  const ErrorReport no_thread = describe(std::system_error(EAGAIN, std::generic_category()));
  EXPECT_EQ(no_thread.code, ExitCode::kDevice);
  EXPECT_SAYS(no_thread.message, "ulimit -v");
  EXPECT_EQ(describe(std::system_error(EDEADLK, std::generic_category())).code, ExitCode::kInternal);
}

TEST(ErrorReport, StackTracesAreCutOff) {
  const ErrorReport report = describe(
      std::runtime_error("sizes differ\nException raised from f at x.cpp:1 (most recent call first):\nframe #0"));
  EXPECT_SAYS(report.message, "sizes differ");
  EXPECT_EQ(report.message.find("frame"), std::string::npos);
  EXPECT_EQ(report.message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace lora_train
