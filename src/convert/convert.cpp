#include "lora_train/convert/convert.h"

#include <algorithm>

#include "converter.h"
#include "detect.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/value/value.h"

namespace lora_train {
namespace {

constexpr ForeignTool kTools[] = {ForeignTool::kAxolotl, ForeignTool::kLlamaFactory, ForeignTool::kTrl};

bool has_key(const std::vector<std::string>& keys, const std::string& name) {
  return std::binary_search(keys.begin(), keys.end(), name);
}

[[noreturn]] void ask(const std::filesystem::path& file, const std::string& what) {
  throw ConfigError(file.string(),
                    what + " Which tool is it of? Say --from axolotl, --from llamafactory or --from trl.");
}

/// The tool whose own keys stand in `source`, and some of them.
std::pair<ForeignTool, std::string> recognise(const std::filesystem::path& file, const Value& source) {
  constexpr std::size_t kShown = 4;
  auto found = possible_tools(source);
  for (auto& [tool, evidence] : found) {
    if (evidence.size() > kShown) evidence.resize(kShown);
  }
  if (found.empty()) ask(file, "no key of this file belongs to one tool alone.");
  if (found.size() > 1 &&
      evidence_for(found[1].first, source).size() * 3 > evidence_for(found[0].first, source).size()) {
    ask(file, "has keys of " + title_of(found[0].first) + " (" + join(found[0].second) + ") and of " +
                  title_of(found[1].first) + " (" + join(found[1].second) + ").");
  }
  return {found[0].first, join(found[0].second)};
}

/// As the tool's own command line does: `learning_rate=1e-4`, `datasets[0].path=x`.
void set_in_source(Value& source, const Override& setting) {
  const auto steps = parse_setting_path(setting.path);
  if (!steps)
    throw ConfigError(setting.where, "is not a place in a file. Expected key=value, key.name=v or key[0].name=v.");
  const Value value = parse_yaml(setting.value, {setting.where, 0});
  const std::string problem = set_at(source, *steps, 0, value);
  if (!problem.empty()) throw ConfigError(setting.where, problem);
}

constexpr const char* kMadeBy = "# Made by lora-train convert from ";
constexpr const char* kHash = "# Hash of the rest, by which convert knows a file that was edited: ";

std::string short_hash(std::string_view body) { return hash128_hex(body).substr(0, 16); }

// A name that is ours, too, is read as ours.
bool is_ours(const std::string& name) { return find_field(name) || find_alias(name); }

}  // namespace

std::string title_of(ForeignTool tool) {
  switch (tool) {
    case ForeignTool::kAxolotl: return "Axolotl 0.19.0";
    case ForeignTool::kLlamaFactory: return "LLaMA-Factory 0.9.5";
    case ForeignTool::kTrl: break;
  }
  return "TRL 1.16.0";
}

void convert_with(ForeignTool tool, Converter& converter) {
  switch (tool) {
    case ForeignTool::kAxolotl: return convert_axolotl(converter);
    case ForeignTool::kLlamaFactory: return convert_llamafactory(converter);
    case ForeignTool::kTrl: break;
  }
  convert_trl(converter);
}

std::string with_conversion_header(const std::filesystem::path& source, ForeignTool tool, const std::string& body) {
  return kMadeBy + source.filename().string() + " (" + product_name(tool) + ").\n" + kHash + short_hash(body) + "\n" +
         body;
}

ConvertedFile kind_of_converted(std::string_view text) {
  if (!text.starts_with(kMadeBy)) return ConvertedFile::kForeign;
  const std::size_t hash = text.find('\n') + 1;  // of npos: 0, where no hash stands
  if (!text.substr(hash).starts_with(kHash)) return ConvertedFile::kEdited;
  const std::size_t body = text.find('\n', hash);
  if (body == text.npos) return ConvertedFile::kEdited;
  const std::size_t digits = hash + std::string_view(kHash).size();
  return text.substr(digits, body - digits) == short_hash(text.substr(body + 1)) ? ConvertedFile::kUnedited
                                                                                 : ConvertedFile::kEdited;
}

std::string source_of_converted(std::string_view text) {
  const std::string_view header = text.substr(0, text.find('\n'));
  const std::size_t end = header.rfind(" (");
  if (!header.starts_with(kMadeBy) || end == header.npos) return {};
  const std::size_t begin = std::string_view(kMadeBy).size();
  return std::string(header.substr(begin, end - begin));
}

Conversion convert_profile(const std::filesystem::path& file, std::optional<ForeignTool> tool,
                           const ConvertOptions& options) {
  if (lower_case(file.extension().string()) == ".py") {
    throw ConfigError(file.string(),
                      "is a Python script, and only configuration files are converted. Write a profile by the table "
                      "\"From a Python script\" of docs/convert.md.");
  }
  const std::string text = read_file(file);
  Value source = parse_yaml(text, {file.string(), 0});
  if (!source.is_map()) throw ConfigError(file.string(), "is no map of keys to values. Expected a configuration file.");
  if (kind_of_converted(text) != ConvertedFile::kForeign || is_profile(source)) {
    throw ConfigError(file.string(), "is a profile of lora-train already. To look at it: " +
                                         shell_line({"lora-train", "check", file.string()}) + ".");
  }
  if (const std::string keys = script_keys(source); !keys.empty() && !tool) {
    throw ConfigError(file.string(), "is the configuration of a script (" + keys +
                                         "), of which each names its keys as it likes. Write a profile by the table "
                                         "\"From a Python script\" of docs/convert.md.");
  }
  for (const Override& setting : options.overrides) set_in_source(source, setting);
  std::string recognised_by;
  if (!tool) std::tie(tool, recognised_by) = recognise(file, source);
  if (const auto instead = instead_of_training(source)) throw ConfigError(file.string(), *instead);
  Converter converter(*tool, source, file, options);
  convert_with(*tool, converter);
  Conversion conversion = converter.finish();
  conversion.recognised_by = recognised_by;
  return conversion;
}

const std::vector<std::string>& foreign_keys_of(ForeignTool tool) {
  static const std::vector<std::string> all[] = {axolotl_keys().all(), llamafactory_keys().all(), trl_keys().all()};
  return all[static_cast<std::size_t>(tool)];
}

bool is_foreign_key(const std::string& name) {
  return !is_ours(name) &&
         std::ranges::any_of(kTools, [&](ForeignTool tool) { return has_key(foreign_keys_of(tool), name); });
}

}  // namespace lora_train
