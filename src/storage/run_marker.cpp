#include "lora_train/storage/run_marker.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::storage {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kMaxBytes = 4096;  // someone else's run.json may have any size

std::string new_run_id() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", device());
  return id;
}

}  // namespace

std::optional<RunMarker> read_marker(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kMarkerFile;
  if (path_kind(file) != PathKind::kFile) return std::nullopt;
  const json object = json::parse(read_start(file, kMaxBytes), nullptr, /*allow_exceptions=*/false);
  const auto value = [&](const char* key) { return object.is_object() ? object.value(key, json()) : json(); };
  if (value("made_by") != kMadeBy || !value("run_id").is_string()) return std::nullopt;
  if (!value("started_at").is_number_integer() || !value("began_with_overwrite").is_boolean()) return std::nullopt;
  return RunMarker{value("run_id").get<std::string>(), value("started_at").get<std::int64_t>(),
                   value("began_with_overwrite").get<bool>()};
}

bool is_output_of_run(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return (is_run_name(name) || name.starts_with(kCheckpointPrefix)) && read_marker(path.parent_path()).has_value();
}

void write_new_marker(const std::filesystem::path& folder, bool began_with_overwrite) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const nlohmann::ordered_json object = {{"made_by", kMadeBy},
                                         {"version", kVersion},
                                         {"run_id", new_run_id()},
                                         {"started_at", std::chrono::duration_cast<std::chrono::seconds>(now).count()},
                                         {"began_with_overwrite", began_with_overwrite}};
  write_file_atomic(folder / kMarkerFile, object.dump(2) + "\n");
}

}  // namespace lora_train::storage
