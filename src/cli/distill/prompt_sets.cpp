#include "prompt_sets.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/text.h"
#include "lora_train/data/read/dataset_files.h"

namespace lora_train::cli {
namespace {

std::vector<data::ChatQuestion> read_all(const std::vector<DatasetSpec>& specs, data::DatasetUse use,
                                         const std::string& row_template) {
  std::vector<data::ChatQuestion> all;
  for (const DatasetSpec& spec : specs) {
    const std::size_t begin = all.size();
    for (const auto& file : data::dataset_files(spec, use)) {
      std::vector<data::ChatQuestion> questions = data::read_questions(file.string(), row_template);
      std::ranges::move(questions, std::back_inserter(all));
    }
    if (spec.max_samples) all.resize(std::min(all.size(), begin + static_cast<std::size_t>(*spec.max_samples)));
  }
  return all;
}

std::string place_in_order(const data::ChatQuestion& prompt, std::int64_t seed) {
  return hash128_hex(std::to_string(seed) + ":" + prompt.messages);
}

/// Moves a part of the training prompts to those held out.
void hold_out(PromptSets& sets, double val_set_size, std::int64_t seed) {
  std::set<std::string> order;
  for (const data::ChatQuestion& prompt : sets.training) order.insert(place_in_order(prompt, seed));
  const auto num_prompts = static_cast<double>(order.size());
  const double wanted = std::max(1.0, std::round(val_set_size < 1 ? val_set_size * num_prompts : val_set_size));
  if (wanted >= num_prompts) {
    throw ConfigError("val_set_size", "holds out all prompts: there are " +
                                          count_of(static_cast<long long>(num_prompts), "prompt") + " in datasets.");
  }
  const std::string first_trained = *std::next(order.begin(), static_cast<std::ptrdiff_t>(wanted));
  const auto held_out = std::ranges::stable_partition(
      sets.training, [&](const data::ChatQuestion& prompt) { return place_in_order(prompt, seed) >= first_trained; });
  std::ranges::move(held_out, std::back_inserter(sets.held_out));
  sets.training.erase(held_out.begin(), held_out.end());
}

}  // namespace

void check_prompt_specs(const LoadedProfile& loaded, Findings& findings) {
  const DataSection& data = loaded.profile.data;
  for (const auto& [key, specs] : {std::pair("datasets", &data.datasets), {"eval_datasets", &data.eval_datasets}}) {
    for (std::size_t i = 0; i < specs->size(); ++i) {
      const DatasetSpec& spec = (*specs)[i];
      const std::string entry = std::string(key) + "[" + std::to_string(i) + "]";
      const auto refuse = [&](const char* member, const char* instead) {
        findings.mistake(parse_place(loaded.origin.at(key)), entry + "." + member,
                         std::string("is for rows with answers, but distill reads prompts. ") + instead);
      };
      if (spec.type != DatasetType::kAuto) refuse("type", "Remove it.");
      if (!spec.field_map.empty()) refuse("field_map", "Give --template FILE, which makes the prompt of the fields.");
      if (spec.weight != 1) refuse("weight", "Remove it, or give --samples N.");
    }
  }
}

PromptSets read_prompt_sets(const Profile& profile, const std::string& row_template) {
  const DataSection& data = profile.data;
  PromptSets sets;
  sets.training = read_all(data.datasets, data::DatasetUse::kTraining, row_template);
  sets.held_out = read_all(data.eval_datasets, data::DatasetUse::kEvaluation, row_template);
  if (data.val_set_size > 0) hold_out(sets, data.val_set_size, profile.run.seed);
  return sets;
}

}  // namespace lora_train::cli
