#include "lora_train/data/read/dataset_files.h"

#include <fnmatch.h>
#include <glob.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "example_reader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/dataset_card.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/storage/hub_cache.h"
#include "lora_train/storage/run_marker.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;

using Files = std::vector<fs::path>;
using Splits = std::map<std::string, Files>;

/// "train_sft" for data/train_sft-00000-of-00003.parquet, the naming of push_to_hub(); else empty.
std::string shard_split(const fs::path& path) {
  constexpr std::size_t kNumberLength = 6;  // "-00000"
  const std::string name = path.filename().string();
  const std::size_t end = name.find("-of-"), begin = end - kNumberLength;
  const bool is_shard = path.parent_path().filename() == "data" && end != std::string::npos && end > kNumberLength &&
                        name[begin] == '-' && whole_number<unsigned>(name.substr(begin + 1, kNumberLength - 1));
  return is_shard ? name.substr(0, begin) : "";
}

/// "train", "validation" or "test" if part of the path below the folder contains such a word; else nullptr.
const char* split_in_name(const fs::path& path) {
  static const std::map<std::string_view, const char*> words = {
      {"train", "train"},    {"training", "train"}, {"validation", "validation"}, {"valid", "validation"},
      {"val", "validation"}, {"dev", "validation"}, {"eval", "validation"},       {"evaluation", "validation"},
      {"test", "test"},      {"testing", "test"},   {"holdout", "test"},          {"heldout", "test"}};
  std::string word;
  for (const char c : lower_case(path.string()) + ".") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += c;
      continue;
    }
    if (const auto found = words.find(word); found != words.end()) return found->second;
    word.clear();
  }
  return nullptr;
}

/// ** matches any number of folders; * stays inside one.
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
  splits.erase("");  // among files with split names, one without belongs to no split
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
                                                  : fmt::format("the dataset has no subset \"{}\"", spec.subset)) +
                                 ". Available: " + join(names));
}

Splits find_splits(const fs::path& folder, const Files& files, const DatasetSpec& spec) {
  const auto subsets = read_dataset_card(folder);
  if (subsets.empty()) {
    if (spec.subset.empty()) return splits_by_name(folder, files);
    const fs::path inner = folder / spec.subset;
    const Files below = files_below(inner, files);
    if (below.empty())
      throw DataError(spec.path, "no subset \"{}\": neither README.md nor a data folder has that name", spec.subset);
    return splits_by_name(inner, below);
  }
  const CardSubset& subset = choose_subset(subsets, spec);
  const fs::path inner = subset.data_dir.empty() ? folder : (folder / subset.data_dir).lexically_normal();
  const Files below = files_below(inner, files);
  return subset.splits.empty() ? splits_by_name(inner, below) : splits_by_card(inner, below, subset);
}

std::string choose_split(const Splits& splits, const DatasetSpec& spec, DatasetUse use) {
  std::vector<std::string> names;
  for (const auto& [name, files] : splits) names.push_back(name);
  const std::string there_are = ". Available: " + join(names);
  if (!spec.split.empty()) {
    if (splits.contains(spec.split)) return spec.split;
    const bool is_expression = spec.split.find_first_of("+[") != std::string::npos;  // of the datasets library
    throw DataError(spec.path, "no split \"{}\"{}{}", spec.split, there_are,
                    is_expression ? ". It names one whole split: for several, add one entry for each; for a part, set "
                                    "max_samples or val_set_size"
                                  : "");
  }
  if (splits.size() == 1) return names[0];
  if (use == DatasetUse::kTraining && splits.contains("train")) return "train";
  throw DataError(spec.path, "the dataset has several splits; name one with `split`" + there_are);
}

/// Selects those of `files`, all below `folder`, that match the split and subset of `spec`:
///   subset: one of `configs` in README.md: the one that `spec` names, the only one, or the default. Without
///     `configs`, a subfolder of that name.
///   split: by `configs`; else by "data/<split>-00000-of-00001", else by a word in the name; if no file has one, all
///     are train. Without `spec.split`: the only split, or train for training.
/// Throws DataError (where = spec.path), listing what is available.
Files files_of_split(const fs::path& folder, const Files& files, const DatasetSpec& spec, DatasetUse use) {
  Splits splits = find_splits(folder, files, spec);
  if (splits.empty()) throw DataError(spec.path, "no file of the dataset is named after a split");
  const std::string split = choose_split(splits, spec, use);
  if (splits[split].empty()) {
    throw DataError(spec.path, "the files of split \"" + split + "\" are not in " + folder.string() +
                                   " or have an unsupported type. Download the whole dataset");
  }
  return std::move(splits[split]);
}

constexpr std::string_view kReadable =
    ".jsonl, .ndjson, .json, .csv, .tsv or .txt (also with .gz or .zst appended), .parquet, .arrow or .feather";

bool is_text(const fs::path& path) { return unpacked(path).extension() == ".txt"; }

bool is_readable(const fs::path& path) {
  constexpr std::string_view kTexts[] = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt"};
  return std::ranges::count(kTexts, unpacked(path).extension().string()) > 0 || is_table(path);
}

/// True for files that the datasets library writes next to data.
bool is_description(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name == "state.json") return fs::exists(path.parent_path() / "dataset_info.json");  // from save_to_disk
  return name == "dataset_info.json" || name == "dataset_infos.json" || name == "dataset_dict.json";
}

void check_file(const fs::path& path) {
  const fs::path extension = path.extension();
  if (extension == ".xz" || extension == ".bz2" || extension == ".zip")
    throw DataError(path.string(), "{} is not supported; unpack the file, or use gzip or zstd", extension.string());
  if (!fs::is_regular_file(path)) {
    throw DataError(path.string(), "not a regular file; a dataset is a file, a folder or a glob");
  }
  if (is_table(path)) require_table_library(path);
}

/// A user who names a dataset folder does not mean to train on its test set.
void refuse_several_splits(const fs::path& folder, const Files& files) {
  std::map<std::string, fs::path> splits;
  for (const auto& file : files) {
    if (const char* split = split_in_name(file.lexically_relative(folder))) splits.emplace(split, file);
  }
  if (splits.size() < 2) return;
  std::string found;
  for (const auto& [split, file] : splits) {
    found += fmt::format("{}{} ({})", found.empty() ? "" : ", ", file.lexically_relative(folder).string(), split);
  }
  throw DataError(folder.string(),
                  "the folder has files of several splits: {}. Name one of them: datasets: [{{path: {}, split: {}}}], "
                  "the others in eval_datasets",
                  found, folder.string(), splits.contains("train") ? "train" : splits.begin()->first);
}

Files files_of_folder(const fs::path& folder) {
  Files files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::none, error);
  for (const fs::recursive_directory_iterator end; !error && entry != end; entry.increment(error)) {
    const bool is_hidden = entry->path().filename().string().starts_with(".");
    if (entry->is_directory()) {
      if (is_hidden || storage::read_marker(entry->path()) || storage::is_output_of_run(entry->path())) {
        entry.disable_recursion_pending();
      }
    } else if (!is_hidden && is_readable(entry->path()) && !is_description(entry->path()) &&
               !storage::is_output_of_run(entry->path())) {
      files.push_back(entry->path());
    }
  }
  if (error) throw IoError(folder.string(), "cannot list the folder: " + error.message());
  // Next to data, a .txt is a licence or a note; alone, it is the data.
  if (!std::ranges::all_of(files, is_text)) std::erase_if(files, is_text);
  if (files.empty()) throw DataError(folder.string(), "the folder has no {} file", kReadable);
  std::ranges::sort(files);
  return files;
}

Files files_of_glob(const std::string& pattern) {
  if (pattern.find("**") != std::string::npos) {
    throw DataError(pattern, "** is not supported; give the folder to read its subfolders too");
  }
  ::glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  Files files;
  for (std::size_t i = 0; result == 0 && i < found.gl_pathc; ++i) {
    if (!fs::is_directory(found.gl_pathv[i]) && !storage::is_output_of_run(found.gl_pathv[i])) {
      files.emplace_back(found.gl_pathv[i]);
    }
  }
  ::globfree(&found);
  if (files.empty()) throw DataError(pattern, "no file matches");
  return files;
}

/// The folder of org/name in the cache; empty if `path` is not such a name or names a file.
fs::path hub_folder(const std::string& path) {
  const auto id = storage::parse_hub_id(path, storage::HubKind::kDataset);
  if (!id || is_readable(path)) return {};
  fs::path folder = storage::find_in_hub_cache(*id);
  if (folder.empty()) {
    throw DataError(path, "no such file or folder, and " + storage::not_in_hub_cache(*id));
  }
  return folder;
}

Files files_in_folder(const DatasetSpec& spec, DatasetUse use) {
  auto files = files_of_folder(spec.path);
  if (!spec.split.empty() || !spec.subset.empty()) return files_of_split(spec.path, files, spec, use);
  refuse_several_splits(spec.path, files);
  return files;
}

void refuse_split_of_files(const DatasetSpec& spec) {
  if (spec.split.empty() && spec.subset.empty()) return;
  throw DataError(spec.path, "neither a folder nor a Hub dataset, so it cannot have `split` or `subset`. Remove them");
}

}  // namespace

std::vector<std::string> dataset_files(const DatasetSpec& spec, DatasetUse use) {
  const std::string& path = spec.path;
  Files files;
  if (std::error_code error; fs::is_directory(path, error)) {
    files = files_in_folder(spec, use);
  } else if (fs::exists(path, error)) {
    refuse_split_of_files(spec);
    files = {path};
  } else if (path.find_first_of("*?[") != std::string::npos) {
    refuse_split_of_files(spec);
    files = files_of_glob(path);
  } else if (const fs::path folder = hub_folder(path); !folder.empty()) {
    files = files_of_split(folder, files_of_folder(folder), spec, use);
  } else {
    throw DataError(path, "no such file, folder or glob, and no dataset org/name in the Hugging Face cache");
  }
  std::ranges::sort(files);
  std::ranges::for_each(files, check_file);
  return {files.begin(), files.end()};
}

std::string dataset_name(const std::string& path) {
  fs::path trimmed = fs::path(path).lexically_normal();
  if (!trimmed.has_filename()) {
    trimmed = trimmed.parent_path();
  }
  return is_readable(trimmed) ? unpacked(trimmed).stem().string() : trimmed.filename().string();
}

}  // namespace lora_train::data
