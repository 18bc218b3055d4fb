// The subsets and splits that a dataset's README.md declares: `configs` in its front matter, as on the Hub.
// Source: huggingface.co/docs/hub/datasets-manual-configuration
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lora_train {

struct CardSplit {
  std::string name;                   ///< "train"
  std::vector<std::string> patterns;  ///< globs below the dataset's folder, or below data_dir
};

struct CardSubset {
  std::string name;  ///< config_name
  bool is_default = false;
  std::string data_dir;           ///< empty = the dataset's folder
  std::vector<CardSplit> splits;  ///< empty = named by the files
};

/// `configs` of the README.md in `folder`; empty if there is none. Throws DataError (where = file:line) for front
/// matter that the Hub would not accept.
std::vector<CardSubset> read_dataset_card(const std::filesystem::path& folder);

}  // namespace lora_train
