// The rows of a loss chunk where nothing is measured, and a row pitch with a clock that the test makes up.
#include "lora_train/plan/tuning/tuning_cases.h"

#include <gtest/gtest.h>

#include "lora_train/kernels/aten.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/plan/tuning/layer_runs.h"
#include "lora_train/plan/tuning/tuning.h"

namespace lora_train::plan {
namespace {

using model::RowPitch;

constexpr std::int64_t kVocabulary = 152064, kHidden = 3584, kRowBytes = 2 * kVocabulary;  // Qwen2.5-7B in bf16
constexpr std::int64_t kDefault = model::LossHeadOptions{}.chunk_bytes / kRowBytes;

std::int64_t rows_for(std::int64_t supervised, std::int64_t spare_bytes) {
  const at::Tensor head = at::empty({kVocabulary, kHidden}, at::device(at::kMeta).dtype(at::kBFloat16));
  return loss_chunk_by_count(head, supervised, spare_bytes, 132) / kRowBytes;
}

TEST(LossChunkByCount, TakesManyRowsWhereMemoryAllows) {
  constexpr std::int64_t kMore = kRowBytes + 4 * 2 * kHidden;  // per row: logits, and four rows of hidden states
  EXPECT_EQ(rows_for(16384, std::int64_t{8} << 30), 8192);
  EXPECT_EQ(rows_for(16384, (8192 - kDefault) * kMore), 8192);
  EXPECT_EQ(rows_for(16384, (8192 - kDefault) * kMore - 1), 4096);
  EXPECT_EQ(rows_for(16384, 0), kDefault);
}

TEST(LossChunkByCount, CountsThePaddingOfTheLastChunk) {
  EXPECT_EQ(rows_for(8192, std::int64_t{8} << 30), 8192);
  const std::int64_t rows = rows_for(4600, std::int64_t{8} << 30);  // 8192 rows would be half empty
  EXPECT_LT(rows, 4096);
  EXPECT_LT((4600 + rows - 1) / rows * rows, 6144);
  EXPECT_LE(rows_for(100, std::int64_t{8} << 30), kDefault);
}

const TuningMachine kAnyGpu = tuning_machine("NVIDIA H200", {13000, 13000, 130002, 91900});

class RowPitchTuning : public ::testing::Test {
 protected:
  RowPitchTuning() : config(model::known_shape("tiny-qwen2")) { adapters = lora::plan_adapters({}, config); }

  /// Exact rows are measured first in each round.
  kernels::Stopwatch stopwatch(double exact_ms, double padded_ms) {
    return [this, exact_ms, padded_ms](const std::function<void()>& run) {
      run();
      return ++num_timed % 2 == 1 ? exact_ms : padded_ms;
    };
  }
  RowPitch tune(kernels::Tuner& tuner, std::int64_t num_tokens = 5) const {
    return tune_row_pitch(tuner, config, adapters, num_tokens, at::kFloat, at::kCPU);
  }

  model::ModelConfig config;
  std::vector<model::AdapterSpec> adapters;
  int num_timed = 0;
};

TEST_F(RowPitchTuning, TheFasterPitchIsChosenAndKept) {
  RunTuning padded(kAnyGpu, "", stopwatch(2, 1)), exact(kAnyGpu, "", stopwatch(1, 2));
  EXPECT_EQ(tune(padded.tuner()), RowPitch::kPadded);
  num_timed = 0;
  EXPECT_EQ(tune(exact.tuner()), RowPitch::kExact);
  EXPECT_GT(num_timed, 0);
  num_timed = 0;
  RunTuning resumed(kAnyGpu, padded.text(), stopwatch(1, 2));
  EXPECT_EQ(tune(resumed.tuner(), 4096), RowPitch::kPadded) << "of the checkpoint, whatever the micro-batch";
  EXPECT_EQ(num_timed, 0);
}

TEST_F(RowPitchTuning, WithoutAdaptersNothingIsMeasured) {
  adapters.clear();
  RunTuning tuning(kAnyGpu, "", stopwatch(2, 1));
  EXPECT_EQ(tune(tuning.tuner()), RowPitch::kExact);
  EXPECT_EQ(num_timed, 0);
}

TEST_F(RowPitchTuning, BothPitchesMultiplyTheSameNumbers) {
  const auto layer_of = [&](RowPitch pitch) {
    return model::model_shape(config, adapters, {.row_pitch = pitch}).layers.front();
  };
  const LinearsMemory memory(layer_of(RowPitch::kPadded), 5, at::kFloat, at::kCPU);
  LinearsRun exact(projections_of(layer_of(RowPitch::kExact)), memory);
  LinearsRun padded(projections_of(layer_of(RowPitch::kPadded)), memory);
  ASSERT_EQ(exact.size(), 4U);
  EXPECT_EQ(short_name(projections_of(layer_of(RowPitch::kExact))[0]), "q|k|v");
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(exact.projection(i).weight.sizes(), padded.projection(i).weight.sizes());
    EXPECT_GT(padded.projection(i).weight.stride(0), exact.projection(i).weight.stride(0));
    EXPECT_EQ(padded.projection(i).weight.stride(0) % model::kPitchStep, 0);
  }
  exact.run_all();
  padded.run_all();
  for (const auto& adapter : padded.projection(0).adapters) {
    for (const at::Tensor& grad : adapter.grads) {
      EXPECT_TRUE(at::isfinite(grad).all().item<bool>());
      EXPECT_GT(grad.abs().max().item<float>(), 0);
    }
  }
}

}  // namespace
}  // namespace lora_train::plan
