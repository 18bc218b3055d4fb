#include <filesystem>

#include "data_load.h"
#include "lora_train/base/error.h"
#include "lora_train/bench/forecast/forecast.h"
#include "lora_train/data/prepare.h"
#include "lora_train/plan/target_gpu.h"

namespace lora_train::bench {
namespace {

constexpr std::uintmax_t kSmallData = std::uintmax_t{16} << 20;

bool are_small(const std::vector<DatasetSpec>& datasets) {
  std::uintmax_t bytes = 0;
  for (const DatasetSpec& dataset : datasets) {
    std::error_code code;  // folders and globs have no size
    const std::uintmax_t size = std::filesystem::file_size(dataset.path, code);
    if (code) return false;
    bytes += size;
  }
  return !datasets.empty() && bytes <= kSmallData;
}

std::optional<std::int64_t> length_of_rows(const Profile& profile, const plan::ModelFiles& files) {
  if (profile.data.max_seq_len) return profile.data.max_seq_len;
  if (!are_small(profile.data.datasets)) return std::nullopt;
  return data::prepare_data(profile.data, plan::data_context(profile, files), true).max_seq_len;
}

}  // namespace

std::string check_fit(const FitRequest& request) {
  const Profile& profile = request.profile;
  try {
    const plan::ModelFiles files = open_model_files(profile);
    const auto max_seq_len = length_of_rows(profile, files);
    if (!max_seq_len) return {};
    const auto adapters = plan::choose_adapters(profile, files);
    const bool has_evaluation = !profile.data.eval_datasets.empty() || profile.data.val_set_size > 0;
    plan::RunFacts facts{profile, files.config, adapters.specs, *max_seq_len, has_evaluation};
    facts.base = files.base;
    facts.token_rows = adapters.token_rows;
    return plan::misfit(facts, request.gpu);
  } catch (const Error&) {  // what is wrong with the files, other checks say
    return {};
  }
}

}  // namespace lora_train::bench
