#include <gtest/gtest.h>

#include "bench/forecast/measured_rates.h"
#include "lora_train/base/file.h"
#include "lora_train/bench/bench.h"
#include "support/environment.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::bench {
namespace {

using namespace testing_support;

BenchRates some_rates() {
  BenchRates rates{{700e12, 4e12, 500e12, 400e12}};
  rates.gpu = "NVIDIA H200";
  rates.shape = "qwen2.5-7b";
  rates.precision = "bf16";
  rates.date = "2026-11-22T00:00:00Z";
  return rates;
}

TEST(RatesFile, HoldsWhatWasMeasured) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "deep" / "rates.json";
  write_rates(file, some_rates());
  const BenchRates read = read_rates(file);
  EXPECT_EQ(read.source, file.string());
  EXPECT_FALSE(read.is_assumed());
  EXPECT_EQ(read.gemm_flops_per_s, 700e12);
  EXPECT_EQ(read.copy_bytes_per_s, 4e12);
  EXPECT_EQ(read.attention_forward_flops_per_s, 500e12);
  EXPECT_EQ(read.attention_backward_flops_per_s, 400e12);
  EXPECT_EQ(read.gpu + read.shape + read.precision + read.date, "NVIDIA H200qwen2.5-7bbf162026-11-22T00:00:00Z");
}

TEST(RatesFile, AMalformedFileIsRefusedByName) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "rates.json";
  write_rates(file, some_rates());
  const std::string whole = read_file(file);
  const auto refuses = [&](const std::string& text) {
    write_file_atomic(file, text);
    return refusal<FormatError>([&] { read_rates(file); }).find(file.string()) != std::string::npos;
  };
  for (std::size_t length = 0; length + 2 < whole.size(); length += 29) EXPECT_TRUE(refuses(whole.substr(0, length)));
  for (const char* odd : {"[]", "7", "null", "{}", "{\"kind\": \"lora-train rates 1\"}"}) EXPECT_TRUE(refuses(odd));
  for (const char* rate : {"0.0", "-1.0", "null", "\"fast\""}) {
    std::string other = whole;
    const std::size_t at = other.find("4000000000000.0");
    ASSERT_NE(at, std::string::npos);
    EXPECT_TRUE(refuses(other.replace(at, 15, rate))) << rate;
  }
  EXPECT_THROW(read_rates(folder.path() / "none.json"), IoError);
}

TEST(RatesFile, IsFoundByGpuAndPrecisionAndElseRatesAreAssumed) {
  const TemporaryFolder folder;
  ScopedEnvironment environment;
  environment.set("XDG_CACHE_HOME", folder.path().string());
  EXPECT_TRUE(find_rates("", "NVIDIA H200", "bf16").is_assumed());
  const auto cached = rates_cache_file("NVIDIA H200", "bf16");
  EXPECT_EQ(cached, folder.path() / "lora-train" / "rates-NVIDIA-H200-bf16.json");
  write_rates(cached, some_rates());
  EXPECT_EQ(find_rates("", "NVIDIA H200", "bf16").source, cached.string());
  EXPECT_TRUE(find_rates("", "NVIDIA H200", "fp32").is_assumed());
  EXPECT_TRUE(find_rates("", "NVIDIA A100", "bf16").is_assumed());
  EXPECT_TRUE(find_rates("", "", "bf16").is_assumed()) << "--count without a device";
  EXPECT_EQ(find_rates(cached, "NVIDIA A100", "bf16").gpu, "NVIDIA H200") << "named by the user";
  EXPECT_THROW(find_rates(cached, "", "fp32"), ConfigError);
}

TEST(RatesFile, TheBoundOfAStepFollowsTheRates) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "rates.json";
  BenchRates half = assumed_rates();
  half.gemm_flops_per_s /= 2;
  half.precision = "bf16";
  write_rates(file, half);
  BenchRequest request;
  request.shape = "qwen2.5-0.5b";
  request.count_only = true;
  request.profile.model.precision = Precision::kBf16;
  const BenchResult assumed = run_bench(request);
  request.rates = file;
  const BenchResult measured = run_bench(request);
  EXPECT_TRUE(assumed.rates.is_assumed());
  EXPECT_EQ(measured.rates.source, file.string());
  EXPECT_DOUBLE_EQ(measured.bound.gemm_s, 2 * assumed.bound.gemm_s);
  EXPECT_DOUBLE_EQ(measured.bound.memory_s, assumed.bound.memory_s);
  for (const BenchResult& result : {assumed, measured}) {
    double sum_ms = 0;
    for (const BenchWork& work : result.classes) sum_ms += work.bound_ms.value();
    EXPECT_NEAR(sum_ms, 1e3 * result.bound.total_s(), 1e-6 * sum_ms) << "classes add up to the bound";
  }
}

}  // namespace
}  // namespace lora_train::bench
