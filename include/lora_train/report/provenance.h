// Where a run came from: its environment, who set which key, and how long its documents are. The start line of metrics.jsonl
// has it, and report.html shows it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lora_train::report {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

struct Provenance {
  NamedTexts environment = {};  ///< {"command", "lora-train train ..."}, {"host", ...}; empty texts are left out
  NamedTexts set_by = {};       ///< of each key that is not a default: "my.yaml:3", "--set", "follows max_steps"
  std::vector<std::string> base_files = {};  ///< those files of set_by that are shipped profiles
  NamedTexts base_values = {};               ///< what they say of the keys that have another value now
};

/// How many documents are how long, in tokens.
struct LengthHistogram {
  long long bin_width = 0;  ///< bin i holds the lengths i * bin_width + 1 to (i + 1) * bin_width; 0: not known
  std::vector<long long> counts = {};  ///< at most 40 bins
  long long num_tokens = 0;            ///< of all documents
  long long longest = 0;
};

/// Bins of 1, 2, 5, 10, 20, 50, ... tokens, as few as hold the longest.
LengthHistogram length_histogram(const std::vector<long long>& lengths);

}  // namespace lora_train::report
