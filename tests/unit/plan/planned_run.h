// The facts of a run of a known shape, with LoRA of rank 16 on all linears: no device, no weights, no data.
#pragma once

#include <gtest/gtest.h>

#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/plan/run_spec.h"
#include "support/refusal.h"

namespace lora_train::plan {

class PlannedRun : public ::testing::Test {
 protected:
  static constexpr double kGib = 1 << 30;

  PlannedRun(const std::string& shape, std::int64_t row_tokens, std::int64_t rows_per_step)
      : config(model::known_shape(shape)), adapters(lora::plan_adapters({}, config)), max_seq_len(row_tokens) {
    profile.schedule.global_batch_size = rows_per_step;
  }

  /// On a CPU.
  RunFacts facts() const { return {profile, config, adapters, max_seq_len}; }
  /// On a GPU with the multiprocessors of an H100.
  RunFacts facts_on_gpu(double gib, double host_gib = 64) const {
    RunFacts found = facts();
    found.is_cuda = true;
    found.memory_bytes = static_cast<std::int64_t>(gib * kGib);
    found.host_bytes = static_cast<std::int64_t>(host_gib * kGib);
    found.num_multiprocessors = 132;
    found.base = base_storage(profile.model, config);
    return found;
  }
  RunSpec fit(double gib, double host_gib = 64) const { return decide(facts_on_gpu(gib, host_gib)); }
  std::string refusal(double gib, double host_gib = 64) const {
    return testing_support::refusal<DeviceError>([&] { fit(gib, host_gib); });
  }
  static double gib(std::int64_t bytes) { return static_cast<double>(bytes) / kGib; }

  Profile profile;
  model::ModelConfig config;
  std::vector<model::AdapterSpec> adapters;
  std::int64_t max_seq_len;
};

}  // namespace lora_train::plan
