#include "lora_train/data/read/dataset_files.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <system_error>

#include "lora_train/base/error.h"
#include "lora_train/storage/hub_cache.h"
#include "lora_train/storage/run_marker.h"
#include "read/dataset_splits.h"
#include "table_library.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReadable =
    ".jsonl, .ndjson, .json, .csv, .tsv or .txt (also with .gz or .zst appended), .parquet, .arrow or .feather";

struct UnreadKind {
  std::string_view extension;
  std::string_view advice;
};

constexpr std::array<UnreadKind, 3> kUnreadKinds = {{
    {".xz", "xz is not supported; unpack it (unxz -k FILE.xz), or use gzip or zstd"},
    {".bz2", "bzip2 is not supported; unpack it (bunzip2 -k FILE.bz2), or use gzip or zstd"},
    {".zip", "zip is not supported; unpack it: unzip FILE.zip"},
}};

// The name without the ending of its packing.
fs::path unpacked(const fs::path& path) {
  return path.extension() == ".gz" || path.extension() == ".zst" ? path.parent_path() / path.stem() : path;
}

bool is_text(const fs::path& path) { return unpacked(path).extension() == ".txt"; }

bool is_readable(const fs::path& path) {
  const std::string extension = unpacked(path).extension().string();
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json" || extension == ".csv" ||
         extension == ".tsv" || extension == ".txt" || is_table(path);
}

/// What the datasets library writes beside data.
bool is_description(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name == "state.json") return fs::exists(path.parent_path() / "dataset_info.json");  // of save_to_disk
  return name == "dataset_info.json" || name == "dataset_infos.json" || name == "dataset_dict.json";
}

void check_file(const fs::path& path) {
  for (const UnreadKind& kind : kUnreadKinds) {
    if (path.extension() == kind.extension) {
      throw DataError(path.string(), std::string(kind.advice));
    }
  }
  if (!fs::is_regular_file(path)) {
    throw DataError(path.string(), "not a regular file; a dataset is a file, a folder or a glob");
  }
  if (is_table(path)) require_table_library(path);
}

/// Whoever names the folder of a dataset does not mean to train on its test set.
void refuse_several_splits(const fs::path& folder, const std::vector<fs::path>& files) {
  std::map<std::string, fs::path> splits;
  for (const auto& file : files) {
    if (const char* split = split_in_name(file.lexically_relative(folder))) splits.emplace(split, file);
  }
  if (splits.size() < 2) return;
  std::string found;
  for (const auto& [split, file] : splits) {
    found += (found.empty() ? "" : ", ") + file.lexically_relative(folder).string() + " (" + split + ")";
  }
  throw DataError(folder.string(), "the folder has files of several splits: " + found +
                                       ". Name one of them: datasets: [{path: " + folder.string() +
                                       ", split: " + (splits.contains("train") ? "train" : splits.begin()->first) +
                                       "}], the others in eval_datasets");
}

std::vector<fs::path> files_of_folder(const fs::path& folder) {
  std::vector<fs::path> files;
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
  if (error) {
    throw IoError(folder.string(), "cannot list the folder: " + error.message());
  }
  // Beside data, a .txt is a licence or a note; alone it is the data.
  if (!std::all_of(files.begin(), files.end(), is_text)) {
    std::erase_if(files, is_text);
  }
  if (files.empty()) {
    throw DataError(folder.string(), "the folder has no " + std::string(kReadable) + " file");
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> files_of_glob(const std::string& pattern) {
  if (pattern.find("**") != std::string::npos) {
    throw DataError(pattern, "** is not supported; give the folder to read its subfolders too");
  }
  ::glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> files;
  for (std::size_t i = 0; result == 0 && i < found.gl_pathc; ++i) {
    if (!fs::is_directory(found.gl_pathv[i]) && !storage::is_output_of_run(found.gl_pathv[i])) {
      files.emplace_back(found.gl_pathv[i]);
    }
  }
  ::globfree(&found);
  if (files.empty()) {
    throw DataError(pattern, "no file matches");
  }
  return files;
}

/// The folder of org/name in the cache; empty if `path` is no such name, or has that of a file.
fs::path hub_folder(const std::string& path) {
  const auto id = storage::parse_hub_id(path);
  if (!id || is_readable(path)) return {};
  fs::path folder = storage::find_in_hub_cache(*id, storage::HubKind::kDataset);
  if (folder.empty()) {
    throw DataError(path, "no such file or folder, and " + storage::not_in_hub_cache(*id, storage::HubKind::kDataset));
  }
  return folder;
}

std::vector<fs::path> files_in_folder(const DatasetSpec& spec, DatasetUse use) {
  auto files = files_of_folder(spec.path);
  if (!spec.split.empty() || !spec.subset.empty()) return files_of_split(spec.path, files, spec, use);
  refuse_several_splits(spec.path, files);
  return files;
}

void refuse_split_of_files(const DatasetSpec& spec) {
  if (spec.split.empty() && spec.subset.empty()) return;
  throw DataError(spec.path,
                  "neither a folder nor a dataset of the Hub, so it has no `split` and no `subset`. Remove them");
}

}  // namespace

std::vector<fs::path> dataset_files(const DatasetSpec& spec, DatasetUse use) {
  const std::string& path = spec.path;
  std::vector<fs::path> files;
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
  std::sort(files.begin(), files.end());
  std::for_each(files.begin(), files.end(), check_file);
  return files;
}

std::string dataset_name(const std::string& path) {
  fs::path trimmed = fs::path(path).lexically_normal();
  if (!trimmed.has_filename()) {
    trimmed = trimmed.parent_path();
  }
  return is_readable(trimmed) ? unpacked(trimmed).stem().string() : trimmed.filename().string();
}

}  // namespace lora_train::data
