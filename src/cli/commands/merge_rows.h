// The rows on which `merge` compares the merged model with the unmerged one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lora_train::cli {

struct MergeRows {
  std::vector<std::vector<std::int32_t>> ids;  ///< none empty
  std::vector<std::string> names;              ///< of each: "rows.jsonl:3", or "built-in row 1"
};

/// Of `file`, in any layout that a dataset may have; rows are cut to 512 tokens, and those past 2048 tokens in all are left
/// out, which is logged. Empty: a few built-in texts, or, if there is no tokenizer, a few rows of spread ids, and a row of the tokens
/// whose rows the adapter trains. Throws DataError for rows, FormatError.
MergeRows merge_rows(const std::string& file, const std::filesystem::path& model, const std::filesystem::path& adapter);

}  // namespace lora_train::cli
