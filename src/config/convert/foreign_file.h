// What a file of another tool is recognised by, and what to run in its place.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lora_train/config/convert.h"
#include "value/value.h"

namespace lora_train {

/// "LLaMA-Factory": title_of without the version.
std::string product_name(ForeignTool tool);

/// The keys of `source` that only `tool` has.
std::vector<std::string> evidence_for(ForeignTool tool, const Value& source);

/// The tool that has most keys of its own in `source`, and those. Several tools come in the order of their number.
std::vector<std::pair<ForeignTool, std::vector<std::string>>> possible_tools(const Value& source);

/// Whether it is LLaMA-Factory's file for export: an export_dir, and neither a stage nor data.
bool is_export(const Value& source);

/// `lora-train merge ...` with what `source` names.
std::string merge_line(const Value& source);

/// Of a file that is another tool's, by most of its keys, and would not do as a profile: one sentence with the lines to run in its
/// place. nullopt: it is a profile, or may be one.
std::optional<std::string> instead_of_file(const Value& source);

}  // namespace lora_train
