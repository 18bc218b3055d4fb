// The splits of a dataset's folder, as the datasets library finds them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/config/profile.h"
#include "lora_train/data/read/dataset_files.h"

namespace lora_train::data {

/// "train", "validation" or "test", if a part of the path below the folder has such a word in it; else nullptr.
const char* split_in_name(const std::filesystem::path& path);

/// Those of `files`, all below `folder`, that are the split and subset of `spec`:
///   subset  one of `configs` in README.md: the one that `spec` names, the only one, or the default. Where there are no
///           `configs`, a subfolder of that name.
///   split   by `configs`; else by "data/<split>-00000-of-00001", else by a word in the name; all files are train if none
///           has one. Without `spec.split`: the only one there is, or train for training.
/// Throws DataError (where = spec.path), which lists what there is.
std::vector<std::filesystem::path> files_of_split(const std::filesystem::path& folder,
                                                  const std::vector<std::filesystem::path>& files,
                                                  const DatasetSpec& spec, DatasetUse use);

}  // namespace lora_train::data
