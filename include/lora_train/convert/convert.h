// Makes a profile from another tool's configuration file: Axolotl, LLaMA-Factory, or TRL's command line.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/config/load.h"
#include "lora_train/config/value/findings.h"

namespace lora_train {

enum class ForeignTool { kAxolotl, kLlamaFactory, kTrl };
inline std::vector<std::string> names_of(ForeignTool) { return {"axolotl", "llamafactory", "trl"}; }

/// The tool's own spelling of its name, and the version with the keys and defaults known here: "Axolotl 0.19.0".
std::string title_of(ForeignTool tool);

/// The fate of one key of the source.
struct ConvertedKey {
  std::string key;      ///< "lora_r", or a place inside one: "datasets[0].split"
  std::string outcome;  ///< kept, renamed: the lines of the profile ("base_precision: nf4"); else the reason
  Place place;
};

/// A key that the profile spells out because our default differs from the tool's.
struct WrittenDefault {
  std::string key;
  std::string value;
  std::string reason;
};

/// Every key of the source is in exactly one of kept, renamed, dropped and refused, in file order. A key inside
/// `datasets` is there only if it is refused; the others are part of the outcome of `datasets`, or noted.
struct Conversion {
  ForeignTool tool = ForeignTool::kAxolotl;
  std::string recognised_by;  ///< keys that only this tool has; empty if the caller named the tool
  std::string yaml;           ///< the profile, with comments on the source of each value, without refused keys
  std::string json;           ///< the same as one line of JSON
  std::vector<ConvertedKey> kept;
  std::vector<ConvertedKey> renamed;
  std::vector<ConvertedKey> dropped;     ///< cannot change a result here
  std::vector<ConvertedKey> refused;     ///< would change the result and has no counterpart; what to do instead
  std::vector<WrittenDefault> defaults;  ///< spelled out
  std::vector<std::string> notes;        ///< where the same words mean something slightly different: "key: difference"
};

struct ConvertOptions {
  std::vector<Override> overrides = {};  ///< the tool's own keys, set in the file's content before conversion
  std::vector<Override> settings = {};   ///< keys of the profile, set in the result: `where` is the flag
};

/// The state of a profile since its conversion.
enum class ConvertedFile { kUnedited, kEdited, kForeign };
/// `text` is the whole file. The header of a converted profile has the hash of the rest; kForeign: there is no such
/// header.
ConvertedFile kind_of_converted(std::string_view text);
/// The name of the file that a converted profile was made from, according to its header; empty if there is no such
/// header.
std::string source_of_converted(std::string_view text);

/// Reads `file` and converts it. Recognises the tool by the keys if it is not given. Opens files that the source names
/// if their content decides (dataset_info.json, a DeepSpeed configuration, the rows of local data); they may be
/// missing. Throws ConfigError if the file is not a map of keys, is already a profile, trains nothing, or fits several
/// tools or none; IoError if it cannot be read.
Conversion convert_profile(const std::filesystem::path& file, std::optional<ForeignTool> tool,
                           const ConvertOptions& options = {});

/// `lora-train merge --model M --adapter A --output-dir O` with the folders that a configuration of any tool, or a
/// profile, names; words in capitals stand for the rest, and for a missing file.
std::string merge_line(const std::filesystem::path& file);

/// "Axolotl", for a key of Axolotl's; the first tool that has it; empty: none has.
std::string tool_of_key(const std::string& name);

}  // namespace lora_train
