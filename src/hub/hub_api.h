// What the hub answers: requests to its API, and its refusals as one sentence each.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "digest.h"
#include "lora_train/hub/http/client.h"
#include "lora_train/storage/hub_cache.h"

namespace lora_train::hub {

/// A repository on the hub.
struct Repository {
  storage::HubId id;
  storage::HubKind kind = storage::HubKind::kModel;

  std::string name() const { return id.organisation + "/" + id.name; }
  std::string revision() const { return id.revision.empty() ? "main" : id.revision; }
};

/// A file as the hub lists it.
struct RepositoryFile {
  std::string path;  ///< below the root, with "/"; never leads out of it
  std::uint64_t num_bytes = 0;
  std::string etag;  ///< hash of the contents, and their name in the cache
  DigestKind digest = DigestKind::kGitSha1;
};

/// The hub at $HF_ENDPOINT, else https://huggingface.co, with the token of storage::hub_token(). Thread-safe.
/// All functions throw IoError with a sentence for the person who waits: `where` is org/name or the URL.
class Hub {
 public:
  Hub();

  /// A request to `path` of the hub, with the token.
  Request request(const std::string& path, const std::string& method = "GET") const;
  Answer send(const Request& request) { return client_.send(request); }

  /// "api/models/org/name"
  std::string api_path(const Repository& repository) const;
  /// "org/name/resolve/COMMIT/file", for datasets below "datasets/".
  std::string file_path(const Repository& repository, const std::string& commit, const std::string& file) const;
  /// "https://huggingface.co/org/name"
  std::string page(const Repository& repository) const;

  /// The commit that the revision stands for: 40 hexadecimal digits.
  std::string find_commit(const Repository& repository);
  /// Its files, in the hub's order.
  std::vector<RepositoryFile> list_files(const Repository& repository, const std::string& commit);

  /// The body of a good answer as a JSON object or list; throws refusal() or an IoError that says what came instead.
  nlohmann::json require_json(const Answer& answer, const Repository& repository) const;
  /// Why the hub refuses, and what to do: for an answer that is not good.
  [[noreturn]] void refuse(const Answer& answer, const Repository& repository) const;

  const std::string& endpoint() const { return endpoint_; }
  bool has_token() const { return !token_.empty(); }

 private:
  [[noreturn]] void fail_list(const Repository& repository, const std::string& found) const;
  std::string reason_of(const Answer& answer, const Repository& repository) const;

  std::string endpoint_, token_;
  double stall_timeout_s_;  ///< $HF_HUB_DOWNLOAD_TIMEOUT
  Client client_;
};

/// Whether HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids the network.
bool is_offline();

/// Whether a path from the hub may be joined to a folder: relative, without "..", empty parts, backslashes and control characters.
bool is_safe_path(std::string_view path);

/// The URL of rel="next" in a Link header; empty if there is none.
std::string next_link(std::string_view header);

}  // namespace lora_train::hub
