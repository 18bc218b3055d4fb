#include "dataset_splits.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/dataset_card.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;

using Files = std::vector<fs::path>;
using Splits = std::map<std::string, Files>;

/// "train_sft" of data/train_sft-00000-of-00003.parquet, as push_to_hub() writes it; else empty.
std::string shard_split(const fs::path& path) {
  const std::string name = path.filename().string();
  const auto end = name.find("-of-");
  if (path.parent_path().filename() != "data" || end == std::string::npos) return {};
  const auto begin = name.rfind('-', end - 1);
  const bool is_number = begin != std::string::npos && end == begin + 6 &&
                         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin) + 1,
                                     name.begin() + static_cast<std::ptrdiff_t>(end),
                                     [](unsigned char c) { return std::isdigit(c) != 0; });
  return is_number ? name.substr(0, begin) : std::string();
}

/// ** stands for any number of folders, and * stays inside one.
bool is_match(std::string pattern, const std::string& path) {
  if (pattern.starts_with("./")) pattern.erase(0, 2);
  const bool is_deep = pattern.find("**") != std::string::npos;
  for (std::size_t at = 0; (at = pattern.find("**", at)) != std::string::npos;) {
    pattern.replace(at, pattern.compare(at, 3, "**/") == 0 ? 3 : 2, "*");
  }
  return ::fnmatch(pattern.c_str(), path.c_str(), is_deep ? 0 : FNM_PATHNAME) == 0;
}

Splits splits_by_name(const fs::path& folder, const Files& files) {
  Splits splits;
  for (const auto& file : files) {
    const fs::path below = file.lexically_relative(folder);
    std::string split = shard_split(below);
    if (const char* word = split_in_name(below); split.empty() && word != nullptr) split = word;
    splits[split].push_back(file);
  }
  if (splits.size() == 1 && splits.begin()->first.empty()) return {{"train", files}};
  splits.erase("");  // a file without a split's name beside others is of none
  return splits;
}

Splits splits_by_card(const fs::path& folder, const Files& files, const CardSubset& subset) {
  Splits splits;
  for (const CardSplit& split : subset.splits) {
    Files& found = splits[split.name];
    for (const auto& file : files) {
      const std::string below = file.lexically_relative(folder).string();
      if (std::ranges::any_of(split.patterns, [&](const auto& pattern) { return is_match(pattern, below); }))
        found.push_back(file);
    }
  }
  return splits;
}

Files files_below(const fs::path& folder, const Files& files) {
  Files below;
  for (const auto& file : files) {
    const fs::path relative = file.lexically_relative(folder);
    if (!relative.empty() && *relative.begin() != "..") below.push_back(file);
  }
  return below;
}

const CardSubset& choose_subset(const std::vector<CardSubset>& subsets, const DatasetSpec& spec) {
  std::vector<std::string> names;
  for (const auto& subset : subsets) {
    const bool is_chosen = spec.subset.empty() ? subset.is_default || subset.name == "default" || subsets.size() == 1
                                               : subset.name == spec.subset;
    if (is_chosen) return subset;
    names.push_back(subset.name);
  }
  throw DataError(spec.path, (spec.subset.empty() ? "the dataset has several subsets; name one with `subset`"
                                                  : "the dataset has no subset \"" + spec.subset + "\"") +
                                 ". There are: " + join(names));
}

Splits find_splits(const fs::path& folder, const Files& files, const DatasetSpec& spec) {
  const auto subsets = read_dataset_card(folder);
  if (subsets.empty()) {
    if (spec.subset.empty()) return splits_by_name(folder, files);
    const fs::path inner = folder / spec.subset;
    const Files below = files_below(inner, files);
    if (below.empty())
      throw DataError(spec.path,
                      "no subset \"" + spec.subset + "\": neither README.md nor a folder of data has that name");
    return splits_by_name(inner, below);
  }
  const CardSubset& subset = choose_subset(subsets, spec);
  const fs::path inner = subset.data_dir.empty() ? folder : (folder / subset.data_dir).lexically_normal();
  const Files below = files_below(inner, files);
  return subset.splits.empty() ? splits_by_name(inner, below) : splits_by_card(inner, below, subset);
}

/// For an expression of the datasets library: train[:1000], train[:90%], train+validation.
std::string instead_of_part(const std::string& split) {
  if (split.find('+') != std::string::npos) return ". For several splits, write an entry for each";
  if (split.find('%') != std::string::npos)
    return ". For a share of the rows, name the whole split, and hold out the rest: val_set_size: 0.1";
  if (split.find('[') != std::string::npos)
    return ". For its first rows, name the whole split, and say how many: max_samples: 1000";
  return "";
}

std::string choose_split(const Splits& splits, const DatasetSpec& spec, DatasetUse use) {
  std::vector<std::string> names;
  for (const auto& [name, files] : splits) names.push_back(name);
  const std::string there_are = ". There are: " + join(names);
  if (!spec.split.empty()) {
    if (splits.contains(spec.split)) return spec.split;
    throw DataError(spec.path, "no split \"" + spec.split + "\"" + there_are + instead_of_part(spec.split));
  }
  if (splits.size() == 1) return names[0];
  if (use == DatasetUse::kTraining && splits.contains("train")) return "train";
  throw DataError(spec.path, "the dataset has several splits; name one with `split`" + there_are);
}

}  // namespace

const char* split_in_name(const fs::path& path) {
  constexpr std::pair<std::string_view, const char*> kWords[] = {
      {"train", "train"},    {"training", "train"}, {"validation", "validation"}, {"valid", "validation"},
      {"val", "validation"}, {"dev", "validation"}, {"eval", "validation"},       {"evaluation", "validation"},
      {"test", "test"},      {"testing", "test"},   {"holdout", "test"},          {"heldout", "test"}};
  std::string word;
  for (const char c : path.string() + ".") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    for (const auto& [name, split] : kWords) {
      if (word == name) return split;
    }
    word.clear();
  }
  return nullptr;
}

Files files_of_split(const fs::path& folder, const Files& files, const DatasetSpec& spec, DatasetUse use) {
  Splits splits = find_splits(folder, files, spec);
  if (splits.empty()) throw DataError(spec.path, "no file of the dataset has the name of a split");
  const std::string split = choose_split(splits, spec, use);
  if (splits[split].empty()) {
    throw DataError(spec.path, "the files of split \"" + split + "\" are not in " + folder.string() +
                                   ", or of a kind that is not read. Download the whole dataset");
  }
  return std::move(splits[split]);
}

}  // namespace lora_train::data
