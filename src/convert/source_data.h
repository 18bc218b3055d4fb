// Data that another tool's file names: entries of our `datasets`, and what can be learned from files that are there.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/config/value/value.h"

namespace lora_train {

/// One entry of `datasets`, as a profile has it.
struct DataEntry {
  std::string path;
  std::string type;                                            ///< empty = auto
  std::vector<std::pair<std::string, std::string>> field_map;  ///< our name, theirs ("": null); equal ones are left out
  std::string split = {}, subset = {};                         ///< of a dataset of the Hub
  bool has_tools = false;                                      ///< its rows have tools, or calls of them
  std::optional<double> max_samples = {};                      ///< its first rows
  std::optional<double> weight = {};                           ///< how often a row occurs in an epoch

  void map(const std::string& ours, const std::string& theirs);
  /// The rows' field of that name is not read.
  void leave_unread(const std::string& ours) { field_map.emplace_back(ours, ""); }
  Value value() const;
};

Value to_value(const std::vector<DataEntry>& entries);

/// Whether `path` is the name of a dataset of the Hub (org/name), and nothing on this machine.
bool is_hub_dataset(const std::string& path);

/// What speaks against a split of a Hub dataset here (train[:1000], train+test); empty = nothing.
std::string split_problem(const std::string& split);

/// The file or folder of one split of a local dataset folder: train.jsonl, train/, data/train-*.json, ...; nullopt if there is none.
std::optional<std::string> split_path(const std::filesystem::path& folder, const std::string& split);

/// Names of the keys of the first row of a JSON or JSON Lines file; empty if it cannot be read.
std::vector<std::string> first_row_keys(const std::filesystem::path& file);
/// Those of the first 1000 rows.
std::vector<std::string> row_keys(const std::filesystem::path& file);

/// Names of the keys of the first message in the list `column` of the first row, likewise.
std::vector<std::string> first_message_keys(const std::filesystem::path& file, const std::string& column);

/// Whether a JSON or JSON Lines file has the string `text`, in quotes, anywhere.
bool has_string(const std::filesystem::path& file, const std::string& text);

/// Rows of a JSON Lines file or of a JSON array; nullopt if the file is not there or of another kind.
std::optional<std::size_t> count_rows(const std::filesystem::path& file);

/// The names in a list, or in a text with commas; one empty name for an empty text.
std::vector<std::string> names_in(const Value& value);

/// Whether all `keys` of a map are among `known`.
bool has_only(const Value& map, const std::vector<std::string>& known);

}  // namespace lora_train
