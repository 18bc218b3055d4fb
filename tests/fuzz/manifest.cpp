// manifest.json and trainer_state.json of a checkpoint. The manifest vouches for itself with a hash, which no mutation
// gets right: so it is also looked at with the hash set right, as if somebody had forged it.
#include "run_folder/manifest.h"

#include <nlohmann/json.hpp>

#include "fuzz/refusal.h"
#include "lora_train/base/hash.h"
#include "lora_train/storage/run_names.h"
#include "support/memory_file_ops.h"
#include "support/small_checkpoint.h"

namespace {

using namespace lora_train;              // NOLINT: the names under test
using namespace lora_train::run_folder;  // NOLINT
using fuzz::require;
using nlohmann::json;

constexpr const char* kFolder = "/out/checkpoint-5";

/// A whole checkpoint in memory, of which manifest and state are replaced for each input.
class Disk {
 public:
  Disk() {
    set_file_ops(&ops_);
    ops_.make_folder("/out");
    run_folder::save("/out", testing_support::SmallCheckpoint(5, 16).contents());
    manifest = *bytes(storage::kManifestFile);
    state = *bytes(storage::kStateFile);
  }
  std::string* bytes(const char* name) { return ops_.bytes(std::string(kFolder) + "/" + name); }

  std::string manifest, state;  ///< as they were written

 private:
  testing_support::MemoryFileOps ops_;
};

/// `text` with the hash of the state file and its own set right; empty when it is no JSON object.
std::string forged(std::string_view text, const std::string& state) {
  const auto not_deep = [](int depth, json::parse_event_t, json&) { return depth < 32; };
  json object = json::parse(text, not_deep, /*allow_exceptions=*/false);
  if (!object.is_object()) return {};
  if (object.contains("files") && object["files"].is_object() && object["files"].contains(storage::kStateFile)) {
    object["files"][storage::kStateFile] = {{"bytes", state.size()}, {"xxh128", hash128_hex(state)}};
  }
  object.erase("xxh128");
  object["xxh128"] = hash128_hex(object.dump());
  return object.dump(2) + "\n";
}

void check_manifest(Disk& disk, const std::string& text, const std::string& state) {
  *disk.bytes(storage::kManifestFile) = text;
  *disk.bytes(storage::kStateFile) = state;
  Manifest manifest;
  const bool is_manifest = fuzz::accepts([&] { manifest = parse_manifest(text, storage::kManifestFile); });
  require(!is_manifest || to_json(manifest) == text, "a manifest that is written otherwise");
  Description description;
  const bool is_described = fuzz::accepts([&] { description = describe(kFolder); });
  if (!verify(kFolder).empty()) return;
  require(is_manifest && is_described, "a checkpoint that verifies without a manifest");
  require(description.state.step == manifest.step && description.fingerprints == manifest.fingerprints,
          "a description of another checkpoint");
  require(
      manifest.files.contains(storage::kStateFile) && manifest.files.at(storage::kStateFile).hash == hash128_hex(state),
      "a state that nobody vouches for");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Disk disk;
  const auto parts = fuzz::split(data, size, 2);
  const std::string state = parts[1].empty() ? disk.state : std::string(parts[1]);
  check_manifest(disk, std::string(parts[0]), state);
  if (const std::string text = forged(parts[0], state); !text.empty()) check_manifest(disk, text, state);
  if (!parts[1].empty()) check_manifest(disk, forged(disk.manifest, state), state);
  return 0;
}
