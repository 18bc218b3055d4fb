#include "lora_train/storage/resolve_model.h"

#include <cstdlib>
#include <optional>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/storage/model_file.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

struct HubId {
  std::string organisation, name, revision;
};

bool is_plain(std::string_view part) {
  if (part.empty() || part.front() == '.' || part.front() == '-' || part.find("..") != std::string_view::npos)
    return false;
  for (const char c : part) {
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!is_word && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

/// A branch or tag may contain slashes ("refs/pr/1"); each part must be plain.
bool is_revision(std::string_view text) {
  for (std::size_t begin = 0;;) {
    const auto slash = text.find('/', begin);
    if (!is_plain(text.substr(begin, slash == std::string_view::npos ? slash : slash - begin))) return false;
    if (slash == std::string_view::npos) return true;
    begin = slash + 1;
  }
}

/// Parses "org/name[@revision]"; empty for any other text.
std::optional<HubId> parse_hub_id(std::string_view text) {
  HubId id;
  const auto at = text.find('@');
  if (at != std::string_view::npos) {
    id.revision = text.substr(at + 1);
    if (!is_revision(id.revision)) return std::nullopt;
    text = text.substr(0, at);
  }
  const auto slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  id.organisation = text.substr(0, slash);
  id.name = text.substr(slash + 1);
  if (!is_plain(id.organisation) || !is_plain(id.name)) return std::nullopt;
  return id;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path expand_home(const std::string& path) {
  if (path == "~" || path.rfind("~/", 0) == 0) return environment("HOME") + path.substr(1);
  return path;
}

/// The snapshot folder of a branch, a tag or a commit; empty if the cache has none.
fs::path find_snapshot(const fs::path& repository, const std::string& revision) {
  const fs::path reference = repository / "refs" / revision;
  std::string commit = revision;
  if (fs::is_regular_file(reference)) {
    commit = read_file(reference);
    while (!commit.empty() && static_cast<unsigned char>(commit.back()) <= ' ') commit.pop_back();
  }
  if (!is_plain(commit)) return {};
  const fs::path snapshot = repository / "snapshots" / commit;
  return fs::is_directory(snapshot) ? snapshot : fs::path();
}

/// Whether we read files of this kind; we touch no others in the folder.
bool is_read(const fs::path& file) {
  const fs::path kind = file.extension();
  return kind == ".json" || kind == ".jinja" || kind == ".model" || kind == ".safetensors";
}

/// Reading a pipe or a device in place of a tokenizer or template would never end.
void refuse_pipes(const fs::path& folder) {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (is_read(entry.path()) && !entry.is_directory(code)) require_regular_file(entry.path());
  }
}

}  // namespace

fs::path hub_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto folder = environment(name); !folder.empty()) return expand_home(folder);
  }
  if (const auto folder = environment("HF_HOME"); !folder.empty()) return expand_home(folder) / "hub";
  if (const auto folder = environment("XDG_CACHE_HOME"); !folder.empty())
    return expand_home(folder) / "huggingface" / "hub";
  return fs::path(environment("HOME")) / ".cache" / "huggingface" / "hub";
}

ResolvedModel resolve_model(const std::string& path_or_id) {
  const fs::path path = path_or_id;
  if (fs::is_directory(path)) {
    refuse_pipes(path);
    return {path, ""};
  }
  if (fs::exists(path)) {
    throw FormatError(path_or_id,
                      "is a file; expected the folder of a Hugging Face model (config.json, weights, tokenizer)");
  }
  const auto id = parse_hub_id(path_or_id);
  if (!id)
    throw FormatError(path_or_id, "no such folder, and not a Hugging Face Hub name of the form org/name[@revision]");

  const std::string name = id->organisation + "/" + id->name;
  const fs::path repository = hub_cache_folder() / ("models--" + id->organisation + "--" + id->name);
  const fs::path snapshot = find_snapshot(repository, id->revision.empty() ? "main" : id->revision);
  if (snapshot.empty()) {
    throw FormatError(path_or_id, "no such folder, and not in the local Hugging Face cache (" + repository.string() +
                                      "). lora-train never uses the network; download the model first: hf download " +
                                      name + (id->revision.empty() ? "" : " --revision " + id->revision));
  }
  return {snapshot, name};
}

}  // namespace lora_train::storage
