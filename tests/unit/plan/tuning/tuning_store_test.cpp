#include <gtest/gtest.h>

#include <thread>

#include "lora_train/base/file.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/plan/tuning/tuning.h"
#include "support/environment.h"
#include "support/temporary_folder.h"

namespace lora_train::plan {
namespace {

using namespace testing_support;
using kernels::TuningTable;

const kernels::CudaVersions kVersions = {13000, 13000, 130002, 91900};
const TuningMachine kMachine = tuning_machine("NVIDIA H200", kVersions),
                    kA100 = tuning_machine("NVIDIA A100", kVersions);
const TuningTable kTable = {{"attention bf16 heads28", {"cudnn", 1.25, 2.5, 2}},
                            {"gemm \"odd\" name", {"0123abcd", 1.0 / 3, 0.4, 12}}};

TEST(TuningStore, TextHoldsTheTableForItsMachineAndVersions) {
  const std::string text = tuning_text(kMachine, kTable);
  EXPECT_EQ(parse_tuning(text, kMachine, "test"), kTable);
  EXPECT_TRUE(parse_tuning("", kMachine, "test").empty());
  EXPECT_TRUE(parse_tuning(text, kA100, "test").empty());
  for (const kernels::CudaVersions& other : {kernels::CudaVersions{13010, 13000, 130002, 91900},
                                             {13000, 13010, 130002, 91900},
                                             {13000, 13000, 130003, 91900},
                                             {13000, 13000, 130002, 91901}}) {
    EXPECT_TRUE(parse_tuning(text, tuning_machine("NVIDIA H200", other), "test").empty());
  }
}

TEST(TuningStore, DamagedTextIsNotUsed) {
  const std::string text = tuning_text(kMachine, kTable);
  for (std::size_t length = 1; length < text.size(); ++length) {
    EXPECT_TRUE(parse_tuning(text.substr(0, length), kMachine, "test").empty()) << length;
  }
  std::string other = text;
  other.replace(other.find("cudnn", other.find("choices")), 5, "other");
  EXPECT_TRUE(parse_tuning(other, kMachine, "test").empty()) << "the hash is of the choices";
  for (const char* odd : {"[]", "7", "null", "{\"gpu\": 1}", "{\"gpu\": \"NVIDIA H200\"}"}) {
    EXPECT_TRUE(parse_tuning(odd, kMachine, "test").empty()) << odd;
  }
}

TEST(TuningCache, KeepsWhatEveryProcessMeasured) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "deep" / "cache.json";
  EXPECT_TRUE(read_tuning_cache(file, kMachine).empty());
  add_to_tuning_cache(file, kMachine, {});
  EXPECT_FALSE(std::filesystem::exists(file)) << "nothing was measured";
  add_to_tuning_cache(file, kMachine, {{"a", {"1", 1, 2, 3}}, {"b", {"1", 1, 2, 3}}});
  add_to_tuning_cache(file, kMachine, {{"b", {"2", 1, 2, 3}}, {"c", {"2", 1, 2, 3}}});
  const TuningTable all = read_tuning_cache(file, kMachine);
  EXPECT_EQ(all.size(), 3u);
  EXPECT_EQ(all.at("b").choice, "2");
  EXPECT_EQ(all.at("a").choice, "1");
}

TEST(TuningCache, ABrokenFileIsIgnoredAndReplaced) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "cache.json";
  write_file_atomic(file, "{\"gpu\": \"NVIDIA H2");
  EXPECT_TRUE(read_tuning_cache(file, kMachine).empty());
  add_to_tuning_cache(file, kMachine, kTable);
  EXPECT_EQ(read_tuning_cache(file, kMachine), kTable);
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_TRUE(read_tuning_cache(file, kMachine).empty());
  add_to_tuning_cache(file, kMachine, kTable);  // a line in the log
  EXPECT_TRUE(std::filesystem::is_directory(file));
}

TEST(TuningCache, ManyWritersLeaveAFileThatIsWhole) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "cache.json";
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 10; ++i) {
        add_to_tuning_cache(file, kMachine,
                            {{"key" + std::to_string(writer) + "." + std::to_string(i), {"x", 1, 2, 3}}});
        EXPECT_FALSE(read_tuning_cache(file, kMachine).empty());
      }
    });
  }
  for (auto& writer : writers) writer.join();
}

TEST(TuningCache, LiesInTheUsersCacheFolderUnderItsMachine) {
  ScopedEnvironment environment;
  environment.set("XDG_CACHE_HOME", "/x");
  environment.set("HOME", "/home/me");
  const auto file = tuning_cache_file(kMachine);
  EXPECT_EQ(file.parent_path(), "/x/lora-train");
  EXPECT_EQ(file.filename().string().find("tuning-NVIDIA-H200-"), 0u) << file;
  EXPECT_NE(tuning_cache_file(tuning_machine("NVIDIA H200", {})), file);
  EXPECT_NE(tuning_cache_file(kA100), file);
  environment.set("XDG_CACHE_HOME", std::nullopt);
  EXPECT_EQ(tuning_cache_file(kMachine).parent_path(), "/home/me/.cache/lora-train");
}

TEST(Tuning, ACpuAndDeterministicRunsMeasureNothing) {
  RunSection section;
  EXPECT_EQ(start_tuning(section, RunDevice{}, ""), nullptr);
  const RunDevice gpu{at::Device(at::kCUDA, 0), "NVIDIA H200", 132};
  section.deterministic = true;
  EXPECT_EQ(start_tuning(section, gpu, ""), nullptr);
  section.deterministic = false;
  section.tuning = Tuning::kOff;
  EXPECT_EQ(start_tuning(section, gpu, ""), nullptr);
}

TEST(RunTuning, AnotherProcessTakesItsChoicesFromTheText) {
  const TemporaryFolder folder;
  ScopedEnvironment environment;
  environment.set("XDG_CACHE_HOME", folder.path().string());
  int num_timed = 0;
  const kernels::Stopwatch stopwatch = [&num_timed](const std::function<void()>& run) {
    run();
    return static_cast<double>(++num_timed);
  };
  const kernels::TuningCase tuning_case = {"key",
                                           [](const std::string& choice) { return choice == "a" || choice == "b"; },
                                           [] {
                                             return std::vector<kernels::TuningCandidate>{{"a", [] {}}, {"b", [] {}}};
                                           }};
  RunTuning first(kMachine, "", stopwatch);
  EXPECT_EQ(first.tuner().choose(tuning_case), "a");
  EXPECT_GT(num_timed, 0);
  const int timed_by_first = num_timed;
  RunTuning second(kMachine, first.text(), stopwatch);
  EXPECT_EQ(second.tuner().choose(tuning_case), "a");
  EXPECT_EQ(second.tuner().counts().from_checkpoint, 1);
  first.finish();
  RunTuning third(kMachine, "", stopwatch);
  EXPECT_EQ(third.tuner().choose(tuning_case), "a");
  EXPECT_EQ(third.tuner().counts().from_cache, 1);
  EXPECT_EQ(num_timed, timed_by_first);
}

}  // namespace
}  // namespace lora_train::plan
