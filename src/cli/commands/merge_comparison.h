// The comparison of a merged model with base and adapter: its rows, its results, and how they are said.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "flags/open_model.h"
#include "lora_train/lora/merge.h"

namespace lora_train::cli {

struct MergeRows {
  std::vector<std::vector<std::int32_t>> ids = {};  ///< none empty
  std::vector<std::string> names = {};              ///< for each: "rows.jsonl:3", or "built-in text 1"
};

struct Comparison {
  MergeRows rows = {};
  std::vector<ModelSection> bases = {};      ///< what was trained; if it was quantised on loading, the model's own too
  std::vector<lora::MergeCheck> found = {};  ///< for each base
  std::string why_not = {};                  ///< why there is no comparison
};

/// Reads the rows (merge_rows), before anything is merged. No comparison with `no_check`, or without LibTorch unless
/// there is a file of rows. Throws DataError for rows, FormatError.
Comparison prepare_comparison(const std::string& rows_file, bool no_check, const lora::MergeRequest& request,
                              const MergeBase& base);

/// Compares the merged folder.
void compare(const lora::MergeRequest& request, const std::filesystem::path& folder, Comparison& comparison);

/// A line for each base.
std::string in_words(const Comparison& comparison);

/// Adds the fields of the comparison: the second one is the object `original`.
void add_to(nlohmann::ordered_json& line, const Comparison& comparison);

}  // namespace lora_train::cli
