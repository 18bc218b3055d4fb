// `ablate`: the settings that are measured, one run each.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/profile.h"

namespace lora_train::report {

enum class Rung {
  kProfile,  ///< the user's profile
  kStep,     ///< of the ladder: what the one before has, and one thing more
  kVariant   ///< the top of the ladder with one thing changed
};

struct Setting {
  std::string name = {};  ///< "plain", "+ bf16", "nf4 base"
  Rung rung = Rung::kStep;
  std::vector<std::pair<std::string, std::string>> values = {};  ///< profile key and value
};

struct LadderOptions {
  bool is_gpu = false;
  bool stores_quantised = false;  ///< the model folder is quantised: its format stays
  long long num_steps = 20;
  std::string no_token_cache = {};  ///< a folder that is empty before each run
};

/// The profile first; then the ladder from fp32, everything recomputed, nothing packed, nothing cached, up to all that the program
/// does; then the variants. What has no effect on a CPU is left out there.
std::vector<Setting> make_ladder(const Profile& profile, const LadderOptions& options);

/// What is left out, in words; empty on a GPU.
std::string left_out(const LadderOptions& options);

/// What all settings share: so many steps of so many documents, no evaluation but the last, every step logged.
std::vector<std::pair<std::string, std::string>> shared_values(long long num_steps, long long documents_per_step);

}  // namespace lora_train::report
