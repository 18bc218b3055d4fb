#include "manifest.h"

#include <limits>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/record_fields.h"

template <>
constexpr auto lora_train::record_fields<lora_train::run_folder::Fingerprints>() {
  using F = run_folder::Fingerprints;
  return std::tuple{field("chat_template", &F::chat_template), field("data", &F::data), field("model", &F::model),
                    field("profile", &F::profile), field("tokenizer", &F::tokenizer)};
}

namespace lora_train::run_folder {
namespace {

using nlohmann::json;

constexpr int kVersion = 2;

Manifest from_object(const json& object, const std::string& where) {
  Manifest manifest;
  manifest.step = whole_number(object, "step", where);
  manifest.world_size = whole_number(object, "world_size", where);
  get_fields(object.at("fingerprints"), manifest.fingerprints);
  for (const auto& [name, file] : object.at("files").items()) {
    if (const char* reason = why_not_file_name(name)) {
      throw FormatError(where, "names the file {}, which {}", json(name).dump(), reason);
    }
    const auto num_bytes = static_cast<std::size_t>(whole_number(file, "bytes", where));
    manifest.files[name] = {num_bytes, file.at("xxh128").get<std::string>()};
  }
  return manifest;
}

}  // namespace

json parse_json(const std::string& text, const std::string& where) {
  constexpr int kMaxDepth = 16;
  return json::parse(text, [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) throw FormatError(where, "has values nested deeper than 16 levels");
    return true;
  });
}

std::int64_t whole_number(const json& object, const char* key, const std::string& where) {
  const json& value = object.at(key);
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits = value.is_number_unsigned() && value.get<std::uint64_t>() <= kLargest;
  if (!fits) throw FormatError(where, "{} is {}; expected a whole number, 0 or more", key, value.dump());
  return value.get<std::int64_t>();
}

std::string to_json(const Manifest& manifest) {
  json files = json::object(), prints;
  for (const auto& [name, file] : manifest.files) files[name] = {{"bytes", file.num_bytes}, {"xxh128", file.hash}};
  put_fields(prints, manifest.fingerprints);
  json object = {{"files", files},
                 {"fingerprints", prints},
                 {"step", manifest.step},
                 {"version", kVersion},
                 {"world_size", manifest.world_size}};
  object["xxh128"] = hash128_hex(object.dump());
  return object.dump(2) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& where) {
  try {
    const json object = parse_json(text, where);
    if (object.at("version") != kVersion) {
      throw FormatError(where, "has version {}; this program reads version {}", object.at("version").dump(), kVersion);
    }
    Manifest manifest = from_object(object, where);
    if (to_json(manifest) != text) throw FormatError(where, "was changed after it was written");
    return manifest;
  } catch (const json::exception&) {
    throw FormatError(where, "is not a manifest");
  }
}

}  // namespace lora_train::run_folder
