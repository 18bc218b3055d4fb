// Forecasts of published shapes, against the run's own plan and the counted step. Runs in the root of the repository.
#include "lora_train/bench/forecast/forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "bench/forecast/measured_rates.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/bench/bench.h"
#include "lora_train/config/load.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/plan/memory_plan.h"
#include "lora_train/plan/run_spec.h"
#include "support/environment.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace lora_train::bench {
namespace {

const std::vector<device::GpuFacts>& table() {
  static const auto gpus = device::read_gpu_table("configs/gpus.json");
  return gpus;
}

const device::GpuFacts& gpu_named(const std::string& name) {
  return *std::find_if(table().begin(), table().end(), [&](const auto& gpu) { return gpu.name == name; });
}

ForecastRequest request_for(const Profile& profile, const std::string& gpu, std::vector<int> counts = {1}) {
  return {.profile = profile,
          .shape = "qwen2.5-7b",
          .gpus = {gpu_named(gpu)},
          .counts = std::move(counts),
          .num_documents = 1000,
          .tokens_per_document = 500};
}

Profile shipped(const std::string& name) {
  ProfileSources sources;
  sources.profiles = {name};
  sources.shipped = {"configs"};
  sources.needs_datasets = false;
  sources.environment = [](const std::string&) { return std::nullopt; };
  return load_profile(sources).profile;
}

/// Without rates that were measured on this machine.
class ForecastTest : public ::testing::Test {
 protected:
  ForecastTest() { environment_.set("XDG_CACHE_HOME", cache_.path().string()); }

 private:
  testing_support::TemporaryFolder cache_;
  testing_support::ScopedEnvironment environment_;
};

/// What a run knows of a model of this shape.
struct Planned {
  Planned(const Profile& profile, const std::string& shape, std::int64_t max_seq_len)
      : files(with_shape(shape)),
        adapters(plan::choose_adapters(profile, files)),
        facts{profile, files.config, adapters.specs, max_seq_len} {}
  static lora::ModelFiles with_shape(const std::string& shape) {
    lora::ModelFiles files;
    files.config = model::known_shape(shape);
    return files;
  }

  lora::ModelFiles files;
  plan::AdapterSetup adapters;
  plan::RunFacts facts;
};

TEST_F(ForecastTest, MemoryAndStepsAreThoseOfTheRunsOwnSpec) {
  const Profile profile = shipped("h100");
  const Forecast row = make_forecast(request_for(profile, "H100")).rows.at(0);
  Planned planned(profile, "qwen2.5-7b", 2048);
  planned.facts.is_cuda = true;
  planned.facts.memory_bytes = row.memory_limit;
  planned.facts.host_bytes = std::int64_t{64} << 30;
  planned.facts.num_multiprocessors = 132;
  planned.facts.rows_of_rank = 4;  // 16 documents of 500 tokens, four to a row
  const plan::RunSpec spec = plan::decide(planned.facts);
  EXPECT_EQ(row.memory.total(), spec.memory.total());
  EXPECT_EQ(row.micro_batch_size, spec.micro_batch_size);
  EXPECT_EQ(spec.micro_batch_size, 4);
  EXPECT_EQ(row.num_steps, 3 * 63);  // 1,000 documents, 16 a step, three epochs
  EXPECT_EQ(row.global_batch_size, 16);
}

TEST_F(ForecastTest, EveryGpuAndCountHasARowAlsoWhereNothingFits) {
  ForecastRequest request = request_for(shipped("h100"), "H100", {1, 2, 4, 8});
  request.gpus = table();
  request.profile.model.precision = Precision::kFp32;
  request.profile.model.base_precision = BasePrecision::kFp32;
  const ForecastResult result = make_forecast(request);
  ASSERT_EQ(result.rows.size(), 4 * table().size());
  for (const Forecast& row : result.rows) {
    EXPECT_EQ(row.fits, row.memory.total() <= row.memory_limit) << row.gpu;
    EXPECT_GT(row.tokens_per_s, 0) << row.gpu;
    EXPECT_GT(row.hours, 0) << row.gpu;
    EXPECT_LT(row.hours_low, row.hours);
    EXPECT_GT(row.hours_high, row.hours);
    const double gib = gpu_named(row.gpu).memory_gib;
    if (gib < 30 || gib > 70) {
      EXPECT_EQ(row.fits, gib > 70) << row.gpu << " " << row.memory.total();
    }
  }
}

/// Each is planned for its target_gpu.
struct NamedProfile {
  std::string name;
  int num_gpus;
  std::string shape;
};
const std::vector<NamedProfile> kNamed = {{"a10g-4bit", 1, "qwen2.5-7b"},  {"h100", 1, "qwen2.5-7b"},
                                          {"h100-long", 1, "qwen2.5-7b"},  {"h200-cot", 1, "qwen2.5-7b"},
                                          {"4xh200-ddp", 4, "qwen2.5-7b"}, {"4xh200-confidence", 4, "qwen2.5-7b"},
                                          {"8xh100", 8, "qwen3-4b"}};

Forecast forecast_of(const NamedProfile& named, const Profile& profile, std::int64_t num_documents,
                     std::int64_t tokens_per_document) {
  ForecastRequest request = request_for(profile, profile.run.target_gpu, {named.num_gpus});
  request.shape = named.shape;
  request.num_documents = num_documents;
  request.tokens_per_document = tokens_per_document;
  return make_forecast(request).rows.at(0);
}

// With LORA_TRAIN_UPDATE_DOCS set, the lines are written.
TEST_F(ForecastTest, TheHeadsOfNamedProfilesHaveTheirFigures) {
  for (const auto& named : kNamed) {
    const Profile profile = shipped(named.name);
    const std::string& gpu = profile.run.target_gpu;
    const Forecast row = forecast_of(named, profile, 5000, 500);
    const std::string line = fmt::format(
        "# plan: {:.0f} of {:.0f} GiB on each {}; 5,000 documents of 500 tokens in about {:.0f} min and ${:.2f} "
        "(derived, not measured).",
        static_cast<double>(row.memory.total()) / (1 << 30), static_cast<double>(row.memory_limit) / (1 << 30), gpu,
        std::ceil(row.hours * 60), row.cost_usd.value_or(0));
    const std::string file = "configs/" + named.name + ".yaml";
    std::string text = read_file(file);
    if (std::getenv("LORA_TRAIN_UPDATE_DOCS") != nullptr) {
      const std::size_t begin = text.find("# plan: ");
      const std::size_t end = begin == std::string::npos ? text.find("model: ") : text.find('\n', begin) + 1;
      text.replace(std::min(begin, end), end - std::min(begin, end), line + "\n");
      write_file_atomic(file, text);
    }
    EXPECT_NE(text.find(line + "\n"), std::string::npos)
        << file << " has not: " << line << " (scripts/make_profile_docs.sh)";
  }
}

TEST_F(ForecastTest, ProfilesFitTheGpuTheyAreNamedAfterAtTheirLength) {
  for (const auto& named : kNamed) {
    const Profile profile = shipped(named.name);
    EXPECT_SAYS(lower_case(named.name), lower_case(profile.run.target_gpu));
    const Forecast row = forecast_of(named, profile, 4096, *profile.data.max_seq_len);  // the worst: every row is full
    EXPECT_TRUE(row.fits) << named.name << ": " << row.memory.total() << " of " << row.memory_limit;
  }
}

TEST_F(ForecastTest, AStepTakesAtLeastWhatItsCountSays) {
  BenchRequest counted;
  counted.shape = "qwen2.5-7b";
  counted.count_only = true;
  counted.profile.data.max_seq_len = 2048;
  counted.profile.schedule.micro_batch_size = 8;
  counted.profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  counted.profile.adapter.lora_r = 16;
  const BenchResult count = run_bench(counted);
  const Planned planned(counted.profile, "qwen2.5-7b", 2048);
  plan::RunSpec spec;
  spec.recompute.resize(28);
  const plan::StepLoad load{.tokens = static_cast<double>(count.tokens),
                            .supervised = static_cast<double>(count.supervised_tokens),
                            .keys_per_query = 1024.5};
  const double least = plan::least_step_s(planned.facts, spec, count.rates, load);
  EXPECT_NEAR(least / count.bound.total_s(), 1.0, 0.05);
  std::ranges::fill(spec.recompute, model::Recompute::kFull);
  EXPECT_NEAR(plan::least_step_s(planned.facts, spec, count.rates, load) / least, 1.45, 0.12);
}

TEST_F(ForecastTest, FullFineTuningAddsTheGradientsOfAllWeights) {
  Profile profile;
  profile.model.precision = Precision::kBf16;
  const auto config = model::known_shape("qwen2.5-0.5b");
  BenchRates rates;
  rates.gemm_flops_per_s = 1e12;
  rates.copy_bytes_per_s = rates.attention_forward_flops_per_s = rates.attention_backward_flops_per_s = 1e18;
  const plan::StepLoad load{.tokens = 4096, .supervised = 4096, .keys_per_query = 1};
  plan::RunSpec spec;
  spec.recompute.resize(24);
  const auto step_s = [&](const std::vector<model::AdapterSpec>& adapters, const plan::StepLoad& step) {
    return plan::least_step_s(plan::RunFacts{profile, config, adapters, 2048}, spec, rates, step);
  };
  const model::AdapterSpec smallest = lora::plan_adapters({}, config).front();
  EXPECT_NEAR(step_s({}, load) / step_s({smallest}, load), 1.5,
              0.01);  // forward and two products backward, the head's included
  rates.gemm_flops_per_s = 1e18;
  rates.copy_bytes_per_s = 1e9;
  plan::StepLoad twice = load;
  twice.num_micro_batches = 2;
  EXPECT_GT(step_s({}, twice), step_s({}, load) + 8e-9 * static_cast<double>(model::num_parameters(config)));
}

TEST_F(ForecastTest, MoreGpusAreFasterAndCostALittleMore) {
  ForecastRequest request = request_for(shipped("8xh100"), "H100", {1, 8});
  request.profile.data.max_seq_len = 2048;
  request.num_documents = 100000;
  const auto rows = make_forecast(request).rows;
  EXPECT_GT(rows[1].tokens_per_s, 6 * rows[0].tokens_per_s);
  EXPECT_LT(rows[1].tokens_per_s, 8.1 * rows[0].tokens_per_s);
  EXPECT_GT(*rows[1].cost_usd, 0.99 * *rows[0].cost_usd);
}

TEST_F(ForecastTest, VariantsChangeOneSetting) {
  const ForecastResult result = make_forecast(request_for(shipped("h100"), "H100"));
  const auto find = [&](const std::string& setting) {
    const auto found = std::find_if(result.variants.begin(), result.variants.end(),
                                    [&](const auto& variant) { return variant.setting == setting; });
    EXPECT_NE(found, result.variants.end()) << setting;
    return *found->forecast;
  };
  const Forecast given = find("as the profile says");
  EXPECT_LT(find("base_precision: nf4").memory.weights, 0.45 * static_cast<double>(given.memory.weights));
  const Forecast packed = find("nf4 with decoded_layers: 0");
  EXPECT_LT(packed.memory.total(), given.memory.total() - (std::int64_t{8} << 30));
  EXPECT_LT(packed.tokens_per_s, given.tokens_per_s);
  EXPECT_LT(find("gradient_checkpointing: full").tokens_per_s, 0.8 * given.tokens_per_s);
  EXPECT_EQ(find("packing: false").num_steps, given.num_steps);
  EXPECT_LT(find("optim: adamw_8bit").memory.optimizer, given.memory.optimizer);
}

TEST_F(ForecastTest, WhatDoesNotFitSaysWhatWould) {
  Profile profile = shipped("h100");
  profile.schedule.micro_batch_size = 16;
  profile.schedule.batch_unit = BatchUnit::kRows;
  profile.run.gradient_checkpointing = GradientCheckpointing::kOff;
  const Forecast row = make_forecast(request_for(profile, "H100")).rows.at(0);
  EXPECT_FALSE(row.fits);
  EXPECT_EQ(row.ways_to_fit, (std::vector<std::string>{"micro_batch_size: auto", "gradient_checkpointing: auto"}));
  EXPECT_EQ(make_forecast(request_for(profile, "A10G")).rows.at(0).ways_to_fit,
            std::vector<std::string>{"micro_batch_size: auto with gradient_checkpointing: auto"});
}

/// Rates as bench --measure-rates keeps them.
void keep_cpu_rates() {
  BenchRates rates;
  rates.gpu = "cpu";
  rates.precision = "fp32";
  rates.gemm_flops_per_s = 1e11;
  rates.copy_bytes_per_s = 1e10;
  rates.attention_forward_flops_per_s = rates.attention_backward_flops_per_s = 5e10;
  write_rates(rates_cache_file("cpu", "fp32"), rates);
}

ForecastRequest request_for_cpu() {
  Profile profile;
  profile.model.precision = Precision::kFp32;
  profile.data.max_seq_len = 512;
  profile.schedule.micro_batch_size = 2;
  ForecastRequest request = request_for(profile, "H100", {1, 2, 4, 8});
  request.gpus = {{.name = "CPU", .device_name = "cpu", .is_cpu = true}};
  request.shape = "tiny-qwen2";
  return request;
}

TEST_F(ForecastTest, ThisCpuHasOneRowWithTheMemoryOfTheRunsOwnSpec) {
  keep_cpu_rates();
  const ForecastRequest request = request_for_cpu();
  const auto rows = make_forecast(request).rows;
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_TRUE(rows[0].is_measured);
  EXPECT_GT(rows[0].hours, 0);
  Planned planned(request.profile, "tiny-qwen2", 512);
  planned.facts.memory_bytes = std::int64_t{1} << 30;
  const plan::MemoryPlan plan = plan::plan_host(planned.facts, plan::decide(planned.facts), {1024, 1024});
  EXPECT_EQ(rows[0].micro_batch_size, 2);
  EXPECT_EQ(rows[0].memory.total(), plan.total());
  EXPECT_EQ(rows[0].memory.program, plan.program);
}

TEST(Calibration, IsTheMedianAndTheSpread) {
  PastRatios past;
  auto& ratios = past[{"H100", Precision::kBf16}];
  ratios = {1.2};
  EXPECT_EQ(calibration_of({}, "H100", Precision::kBf16), std::nullopt);
  EXPECT_DOUBLE_EQ(calibration_of(past, "H100", Precision::kBf16)->high, 1.2 * 1.15);
  ratios = {1.2, 1.0, 1.21};
  const auto found = calibration_of(past, "H100", Precision::kBf16);
  EXPECT_DOUBLE_EQ(found->factor, 1.2);
  EXPECT_DOUBLE_EQ(found->low, 1.0);
  EXPECT_DOUBLE_EQ(found->high, 1.2 * 1.05);
  EXPECT_EQ(found->num_runs, 3);
  EXPECT_EQ(calibration_of(past, "H100", Precision::kFp32), std::nullopt);
}

TEST_F(ForecastTest, DocumentsLongerThanARowAndACpuWithoutRatesAreRefused) {
  EXPECT_SAYS(testing_support::refusal<ConfigError>([] { make_forecast(request_for_cpu()); }), "bench --measure-rates");
  ForecastRequest request = request_for(shipped("h100"), "H100");
  request.tokens_per_document = 4096;
  EXPECT_THROW(make_forecast(request), ConfigError);
}

}  // namespace
}  // namespace lora_train::bench
