// lora-train convert: a profile from a configuration file of another tool.
#include <algorithm>
#include <filesystem>

#include "command_line.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/folder.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/visible_text.h"
#include "lora_train/config/convert.h"
#include "lora_train/config/profile.h"
#include "output/json_text.h"
#include "output/result_file.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::app {
namespace {

/// Of a file that is there: only one that convert wrote and nobody edited is replaced without being asked.
void refuse_to_replace(const std::string& output) {
  constexpr std::size_t kMostBytes = 1 << 22;
  if (path_kind(output) == PathKind::kNone) return;
  const std::string text = read_start(output, kMostBytes);
  const ConvertedFile kind = kind_of_converted(text);
  if (text.empty() || kind == ConvertedFile::kUnedited) return;
  throw ConfigError(output, std::string(kind == ConvertedFile::kEdited ? "was edited since lora-train convert wrote it"
                                                                       : "was not written by lora-train convert") +
                                ", so it is not replaced: name another --output, or say --overwrite.");
}

void refuse_other_template(const std::string& file, const std::string& text) {
  if (path_kind(file) == PathKind::kNone || read_start(file, text.size() + 1) == text) return;
  throw ConfigError(file,
                    "is there and is not the chat template of the configuration, so it is not replaced: name "
                    "another --output, or say --overwrite.");
}

/// Of the column of keys: that of the longest in any part.
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
    text += name + outcome + "\n";
  }
  return text;
}

std::string table(const Conversion& conversion, const std::string& file) {
  std::string text = file + ": " + title_of(conversion.tool);
  text += conversion.recognised_by.empty() ? "\n" : ", by " + conversion.recognised_by + "\n";
  const std::size_t width = width_of(conversion);
  text += section("kept", conversion.kept, width);
  text += section("renamed", conversion.renamed, width);
  text += section("dropped, because it does nothing here", conversion.dropped, width);
  std::vector<ConvertedKey> defaults;
  for (const auto& [key, value, reason] : conversion.defaults)
    defaults.push_back({key, value + "   (" + reason + ")", {}});
  text += section("written out, because the default here is another", defaults, width);
  if (!conversion.notes.empty()) text += "notes\n";
  for (const auto& note : conversion.notes) text += "  " + note + "\n";
  text.pop_back();  // the log ends the line
  return visible_text(text);
}

nlohmann::ordered_json part(const std::vector<ConvertedKey>& keys) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [key, outcome, place] : keys) object[key] = outcome;
  return object;
}

std::string json_line(const Conversion& conversion) {
  nlohmann::ordered_json defaults = nlohmann::ordered_json::object();
  for (const auto& [key, value, reason] : conversion.defaults) defaults[key] = value;
  return to_line({{"tool", names_of(conversion.tool).at(static_cast<std::size_t>(conversion.tool))},
                  {"profile", nlohmann::ordered_json::parse(conversion.json)},
                  {"kept", part(conversion.kept)},
                  {"renamed", part(conversion.renamed)},
                  {"dropped", part(conversion.dropped)},
                  {"refused", part(conversion.refused)},
                  {"defaults", defaults},
                  {"notes", conversion.notes}});
}

std::optional<ForeignTool> tool_of(const CommandParser& parser, const std::string& name) {
  if (name.empty()) return std::nullopt;
  const auto tool = from_string<ForeignTool>(lower_case(name));
  if (!tool) parser.refuse("--from", "got " + name + ", expected " + join(names_of(ForeignTool{}), ", ") + ".");
  return tool;
}

}  // namespace

int run_convert(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "convert",
      "Makes a profile of a configuration file of Axolotl, LLaMA-Factory or TRL. What became of each key "
      "goes to stderr, the profile to stdout or to --output. Exit code 2 where a key that is refused would "
      "change the result.");
  std::string file, from, output;
  std::vector<std::string> words;
  bool allow_refused = false, overwrite = false;
  parser.app()
      .add_option("file", words,
                  "the configuration, YAML or JSON; key=value changes a key of it before it is converted")
      ->type_name("FILE [KEY=VALUE]");
  parser.app().add_option("--from", from, "axolotl, llamafactory or trl; without it, the keys tell")->type_name("TOOL");
  parser.app().add_option("--output", output, "the profile to write")->type_name("FILE");
  parser.app().add_flag(
      "--allow-refused", allow_refused,
      "leave out all that is refused, and write the profile (to leave out one key, take it out of the file)");
  parser.app().add_flag("--overwrite", overwrite, "replace a file that was edited, or that convert did not write");
  if (!parser.parse(arguments)) return 0;
  std::vector<Override> overrides;
  for (const std::string& word : words) {
    if (word.find('=') != std::string::npos) {
      overrides.push_back(parse_override(word, word));
    } else if (file.empty()) {
      file = word;
    } else {
      parser.refuse(word, "one file at a time, and " + file + " is given. A key is changed with key=value.");
    }
  }
  if (file.empty()) parser.refuse("FILE", "missing; expected a configuration of Axolotl, LLaMA-Factory or TRL.");
  if (!output.empty()) {
    parser.refuse_special_file("--output", output);
    std::error_code code;
    if (std::filesystem::equivalent(output, file, code)) parser.refuse("--output", "is the file that is converted.");
    if (!overwrite) refuse_to_replace(output);
  }
  const std::string template_file =
      output.empty() ? "" : std::filesystem::path(output).replace_extension(".jinja").string();
  const Conversion conversion = convert_profile(file, tool_of(parser, from), overrides, template_file);
  if (!overwrite && !conversion.chat_template.empty()) refuse_other_template(template_file, conversion.chat_template);
  log_info(table(conversion, file));
  if (const std::string refused =
          section("refused, because the result would be another", conversion.refused, width_of(conversion));
      !refused.empty())
    log_warning(visible_text(refused.substr(0, refused.size() - 1)));  // the log ends the line
  const bool is_refused = !conversion.refused.empty() && !allow_refused;
  if (parser.common().json) print_line(json_line(conversion));
  if (is_refused) {
    const std::size_t count = conversion.refused.size();
    log_error(std::to_string(count) + (count == 1 ? " key is" : " keys are") +
              " refused. Change the file, or leave them out with --allow-refused.");
    return static_cast<int>(ExitCode::kUsage);
  }
  if (!output.empty()) {
    if (!conversion.chat_template.empty()) write_result(template_file, conversion.chat_template);
    write_result(output, conversion.yaml);
    log_info("next: lora-train check " + output);
  } else if (!parser.common().json) {
    print_text(conversion.yaml);
  }
  return 0;
}

}  // namespace lora_train::app
