#include "lora_train/storage/hub_cache.h"

#include <cstdlib>

#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

namespace lora_train::storage {
namespace {

namespace fs = std::filesystem;

bool is_plain(std::string_view part) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  return !part.empty() && part.front() != '.' && part.front() != '-' && part.find("..") == std::string_view::npos &&
         part.find_first_not_of(kAllowed) == std::string_view::npos;
}

/// A branch or tag may contain slashes ("refs/pr/1"); each part must be plain.
bool is_revision(std::string_view text) {
  for (auto slash = text.find('/'); slash != std::string_view::npos; slash = text.find('/')) {
    if (!is_plain(text.substr(0, slash))) return false;
    text.remove_prefix(slash + 1);
  }
  return is_plain(text);
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

fs::path repository_of(const HubId& id) { return hub_cache_folder() / hub_folder_name(id); }

/// The folder of everything from Hugging Face: cache and token.
fs::path hub_home() {
  if (const auto folder = environment("HF_HOME"); !folder.empty()) return expand_home(folder);
  if (const auto folder = environment("XDG_CACHE_HOME"); !folder.empty()) return expand_home(folder) / "huggingface";
  return fs::path(environment("HOME")) / ".cache" / "huggingface";
}

std::string without_line_ends(std::string token) {
  std::erase_if(token, [](char c) { return c == '\r' || c == '\n'; });
  return trimmed(token);
}

}  // namespace

std::optional<HubId> parse_hub_id(std::string_view text, HubKind kind) {
  HubId id;
  id.kind = kind;
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

fs::path hub_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto folder = environment(name); !folder.empty()) return expand_home(folder);
  }
  return hub_home() / "hub";
}

std::string hub_token() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const auto token = without_line_ends(environment(name)); !token.empty()) return token;
  }
  const auto named = environment("HF_TOKEN_PATH");
  const fs::path file = named.empty() ? hub_home() / "token" : expand_home(named);
  return fs::is_regular_file(file) ? without_line_ends(read_file(file)) : "";
}

std::string hub_folder_name(const HubId& id) {
  return fmt::format("{}{}--{}", id.kind == HubKind::kModel ? "models--" : "datasets--", id.organisation, id.name);
}

fs::path find_in_hub_cache(const HubId& id) { return find_snapshot(repository_of(id), id.revision); }

std::string not_in_hub_cache(const HubId& id) {
  const bool is_model = id.kind == HubKind::kModel;
  return fmt::format(
      "not in the local Hugging Face cache ({}). Training never uses the network; download the {} first: lora-train "
      "download {}{}{}",
      repository_of(id).string(), is_model ? "model" : "dataset", id.full_name(),
      id.revision == "main" ? "" : "@" + id.revision, is_model ? "" : " --dataset");
}

}  // namespace lora_train::storage
