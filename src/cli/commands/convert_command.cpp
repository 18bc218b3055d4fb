// lora-train convert: a profile from a configuration file of another tool.

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "flags/command_line.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/config/keys/reference.h"
#include "lora_train/config/load.h"
#include "lora_train/config/value/value.h"
#include "lora_train/convert/convert.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

/// Overwrites an existing file without asking only if convert wrote it from `source` and it is unedited.
void refuse_to_replace(const std::string& output, const std::string& source) {
  constexpr std::size_t kMostBytes = 1 << 22;
  if (path_kind(output) == PathKind::kNone) return;
  const std::string text = read_start(output, kMostBytes);
  const ConvertedFile kind = kind_of_converted(text);
  const std::string made_from = source_of_converted(text);
  const bool is_of_source = made_from == std::filesystem::path(source).filename().string();
  if (text.empty() || (kind == ConvertedFile::kUnedited && is_of_source)) return;
  const std::string what = kind == ConvertedFile::kEdited     ? "was edited since lora-train convert wrote it"
                           : kind == ConvertedFile::kUnedited ? "was made from " + made_from + ", not from " + source
                                                              : "was not written by lora-train convert";
  throw ConfigError(output, what + ", so it is not replaced: choose another --output, or pass --overwrite.");
}

/// Width of the key column: the longest key in any section.
std::size_t width_of(const Conversion& conversion) {
  std::size_t width = 28;
  for (const auto* part : {&conversion.kept, &conversion.renamed, &conversion.dropped, &conversion.refused}) {
    for (const auto& converted : *part) width = std::max(width, converted.key.size());
  }
  for (const auto& written : conversion.defaults) width = std::max(width, written.key.size());
  return width + 4;
}

std::string section(const std::string& title, const std::vector<ConvertedKey>& keys, std::size_t width) {
  if (keys.empty()) return {};
  std::string text = title + "\n";
  for (const auto& [key, outcome, place] : keys) {
    std::string name = "  " + key;
    name.resize(width, ' ');
    text += fmt::format("{}{}\n", name, outcome);
  }
  return text;
}

std::string table(const Conversion& conversion, const std::string& file) {
  std::string text = fmt::format("{}: {}", file, title_of(conversion.tool));
  text += conversion.recognised_by.empty() ? "\n" : fmt::format(", by {}\n", conversion.recognised_by);
  const std::size_t width = width_of(conversion);
  text += section("kept", conversion.kept, width);
  text += section("renamed", conversion.renamed, width);
  text += section("dropped, because it does nothing here", conversion.dropped, width);
  std::vector<ConvertedKey> defaults;
  for (const auto& [key, value, reason] : conversion.defaults)
    defaults.push_back({key, fmt::format("{}   ({})", value, reason), {}});
  text += section("written out, because the default here differs", defaults, width);
  if (!conversion.notes.empty()) text += "notes\n";
  for (const auto& note : conversion.notes) text += fmt::format("  {}\n", note);
  text.pop_back();  // the log ends the line
  return visible_text(text);
}

nlohmann::ordered_json part(const std::vector<ConvertedKey>& keys) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [key, outcome, place] : keys) object[key] = outcome;
  return object;
}

std::string json_line(const Conversion& conversion, const std::vector<std::string>& allowed) {
  nlohmann::ordered_json defaults = nlohmann::ordered_json::object();
  for (const auto& [key, value, reason] : conversion.defaults) defaults[key] = value;
  return to_line({{"tool", names_of(conversion.tool).at(static_cast<std::size_t>(conversion.tool))},
                  {"profile", nlohmann::ordered_json::parse(conversion.json)},
                  {"kept", part(conversion.kept)},
                  {"renamed", part(conversion.renamed)},
                  {"dropped", part(conversion.dropped)},
                  {"refused", part(conversion.refused)},
                  {"allowed", allowed},
                  {"defaults", defaults},
                  {"notes", conversion.notes}});
}

std::optional<ForeignTool> tool_of(const CommandParser& parser, const std::string& name) {
  if (name.empty()) return std::nullopt;
  const auto tool = from_string<ForeignTool>(lower_case(name));
  if (!tool) parser.refuse("--from", fmt::format("got {}, expected {}.", name, join(names_of(ForeignTool{}), ", ")));
  return tool;
}

/// The refused keys to leave out.
struct AllowedKeys {
  bool all = false;
  std::vector<std::string> names;

  bool has(const std::string& key) const { return all || std::ranges::count(names, key) > 0; }
};

std::vector<std::string> names_in(const std::vector<ConvertedKey>& keys) {
  std::vector<std::string> names;
  for (const auto& converted : keys) names.push_back(converted.key);
  return names;
}

void refuse_idle_allowances(const CommandParser& parser, const AllowedKeys& allowed, const Conversion& conversion) {
  const auto refused = names_in(conversion.refused);
  for (const std::string& name : allowed.names) {
    if (std::ranges::count(refused, name) > 0) continue;
    parser.refuse("--allow-refused",
                  fmt::format("{} is not refused.{} Refused: {}.", name, did_you_mean(nearest_names(name, refused)),
                              refused.empty() ? "nothing" : join(refused)));
  }
}

/// The request on the command line.
struct ConvertRequest {
  std::string file, from, output;
  AllowedKeys allowed;
  bool overwrite = false;
  ConvertOptions options;
};

void check_files(const CommandParser& parser, const ConvertRequest& request) {
  const std::string expected = "expected an Axolotl, LLaMA-Factory or TRL configuration.";
  if (request.file.empty()) parser.refuse("FILE", "missing; " + expected);
  std::error_code code;
  const std::filesystem::file_status status = std::filesystem::status(request.file, code);
  if (!std::filesystem::exists(status)) parser.refuse(request.file, "no such file; " + expected);
  if (std::filesystem::is_directory(status)) parser.refuse(request.file, "is a folder; " + expected);
  if (request.output.empty()) return;
  parser.refuse_special_file("--output", request.output);
  if (std::filesystem::equivalent(request.output, request.file, code))
    parser.refuse("--output", "is the file to convert.");
  if (!request.overwrite) refuse_to_replace(request.output, request.file);
}

bool read_request(CommandParser& parser, const std::vector<std::string>& arguments, ConvertRequest& request) {
  std::vector<std::string> words;
  parser.add("file", words, "FILE [KEY=VALUE]",
             "the configuration, YAML or JSON; key=value changes one of its keys before conversion");
  parser.add("--from", request.from, "TOOL", "axolotl, llamafactory or trl (default: detected from the keys)");
  parser.add("-o,--output", request.output, "FILE", "the profile to write");
  std::vector<std::string> allowed;  // "" for --allow-refused without KEY
  parser.app()
      .add_option("--allow-refused", allowed,
                  "leave out this refused key, or several (a,b); without KEY, leave out all refused keys")
      ->type_name("[KEY]")
      ->expected(0, 1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  parser.add_flag("--overwrite", request.overwrite, "replace a file that was edited, or that convert did not write");
  parser.accept_keys(request.options.settings);
  parser.app().footer("Any key of a profile is a flag too, and is written into it: --lora-r 8.");
  if (!parser.parse(arguments)) return false;
  request.allowed.all = std::erase(allowed, "") > 0;
  for (const std::string& keys : allowed) {
    for (std::string& key : names_in(text_value(keys))) request.allowed.names.push_back(std::move(key));
  }
  for (const std::string& word : words) {
    if (word.find('=') != std::string::npos) {
      request.options.overrides.push_back(parse_override(word, word));
    } else if (request.file.empty()) {
      request.file = word;
    } else {
      parser.refuse(word, "one file at a time: " + request.file + " is given already. Change a key with key=value.");
    }
  }
  check_files(parser, request);
  return true;
}

void log_refused(const Conversion& conversion, const AllowedKeys& allowed) {
  for (const auto& [is_allowed, title] : {std::pair{true, "refused, and left out because of --allow-refused"},
                                          {false, "refused, because the result would differ"}}) {
    std::vector<ConvertedKey> keys = conversion.refused;
    std::erase_if(keys, [&](const ConvertedKey& key) { return allowed.has(key.key) != is_allowed; });
    const std::string text = section(title, keys, width_of(conversion));
    if (!text.empty()) log_warning(visible_text(text.substr(0, text.size() - 1)));  // the log ends the line
  }
}

/// True if there is a profile to write; otherwise reports why not.
bool is_whole(const Conversion& conversion, const AllowedKeys& allowed) {
  const auto count =
      std::ranges::count_if(conversion.refused, [&](const ConvertedKey& key) { return !allowed.has(key.key); });
  if (count > 0) {
    log_error(
        "{}{} refused. Change the file, or leave out keys it can do without: --allow-refused KEY (without KEY: all).",
        count, count == 1 ? " key is" : " keys are");
  }
  return count == 0;
}

}  // namespace

int run_convert(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "convert",
      "Makes a profile from an Axolotl, LLaMA-Factory or TRL config. Reports on stderr what became of each key, and "
      "writes the profile to stdout or to --output. Exits with 2 if a refused key would change the result.");
  ConvertRequest request;
  if (!read_request(parser, arguments, request)) return 0;
  const auto& [file, from, output, allowed, overwrite, options] = request;
  const Conversion conversion = convert_profile(file, tool_of(parser, from), options);
  refuse_idle_allowances(parser, allowed, conversion);
  log_info(table(conversion, file));
  log_refused(conversion, allowed);
  if (parser.common().json)
    print_line(json_line(conversion, allowed.all ? names_in(conversion.refused) : allowed.names));
  if (!is_whole(conversion, allowed)) return static_cast<int>(ExitCode::kUsage);
  if (!output.empty()) {
    write_result(output, conversion.yaml);
    log_info("next: lora-train check " + output);
  } else if (!parser.common().json) {
    print_text(conversion.yaml);
  }
  return 0;
}

}  // namespace lora_train::cli
