// Sends requests to the hub's API and turns its refusals into one sentence each; selects the files needed; uploads; and
// computes the hashes by which the hub names contents.
#pragma once

#include <openssl/sha.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/hub/http/client.h"
#include "lora_train/storage/hub_cache.h"

namespace lora_train::hub {

enum class DigestKind {
  kSha256,  ///< for files in large file storage
  kGitSha1  ///< for files in git: SHA-1 of "blob SIZE\0" and its bytes
};

class Digest {
 public:
  /// `num_bytes`: how many will follow; kGitSha1 hashes the number too.
  Digest(DigestKind kind, std::uint64_t num_bytes);
  void update(std::string_view bytes);
  /// Returns lower-case hexadecimal. Must be the last call.
  std::string hex();

 private:
  DigestKind kind_;
  SHA256_CTX sha256_;
  SHA_CTX sha1_;
};

/// Base64 with padding, in one line.
std::string base64(std::string_view bytes);

/// A file as the hub lists it.
struct RepositoryFile {
  std::string path;  ///< below the root, with "/"; never leads out of it
  std::uint64_t num_bytes = 0;
  std::string etag;  ///< hash of the contents, and their name in the cache
  DigestKind digest = DigestKind::kGitSha1;
};

/// The hub at $HF_ENDPOINT, else https://huggingface.co, with the token of storage::hub_token(). Thread-safe. All
/// functions throw IoError with one sentence for the user: `where` is org/name or the URL.
class Hub {
 public:
  Hub();

  /// A request to `path` of the hub, with the token.
  Request request(const std::string& path, const std::string& method = "GET") const;
  Answer send(const Request& request) { return client_.send(request); }

  /// "api/models/org/name"
  std::string api_path(const storage::HubId& repository) const;
  /// "org/name/resolve/COMMIT/file", for datasets below "datasets/".
  std::string file_path(const storage::HubId& repository, const std::string& commit, const std::string& file) const;
  /// "https://huggingface.co/org/name"
  std::string page(const storage::HubId& repository) const;

  /// The commit that the revision names: 40 hexadecimal digits.
  std::string find_commit(const storage::HubId& repository);
  /// The files of the commit, in the hub's order.
  std::vector<RepositoryFile> list_files(const storage::HubId& repository, const std::string& commit);

  /// The body of an OK answer as a JSON object or list; else throws as refuse(), or an IoError that says what came
  /// instead.
  nlohmann::json require_json(const Answer& answer, const storage::HubId& repository) const;
  /// Throws why the hub refuses and what to do, for an answer that is not OK.
  [[noreturn]] void refuse(const Answer& answer, const storage::HubId& repository) const;

  const std::string& endpoint() const { return endpoint_; }
  bool has_token() const { return !token_.empty(); }

 private:
  [[noreturn]] void fail_list(const storage::HubId& repository, const std::string& found) const;
  std::string reason_of(const Answer& answer, const storage::HubId& repository) const;

  std::string endpoint_, token_;
  double stall_timeout_s_;  ///< $HF_HUB_DOWNLOAD_TIMEOUT
  Client client_;
};

/// " (The hub says: ...)" with its own words about an error; empty if there are none.
std::string words_of(const Answer& answer);

/// True if HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids the network.
bool is_offline();

/// True if a path from the hub may be joined to a folder: relative, without "..", empty parts, backslashes and control
/// characters.
bool is_safe_path(std::string_view path);

/// The URL of rel="next" in a Link header; empty if there is none.
std::string next_link(std::string_view header);

struct NeededFiles {
  std::vector<RepositoryFile> needed, skipped;
};

/// Needed are *.json, *.jinja, *.safetensors, tokenizer files, README and licences in the root, and
/// additional_chat_templates/; not weights in other formats with their indices, nor the second copy that Mistral ships
/// (consolidated*.safetensors next to others). Throws FormatError if there are weights in other formats only.
NeededFiles needed_files(const std::vector<RepositoryFile>& files, const std::string& repository);

struct LargeFile {
  std::filesystem::path file;
  std::uint64_t num_bytes = 0;
  std::string sha256;
};

/// Uploads the files that the store lacks and returns their number of bytes. `count` gets the bytes as they are done;
/// for files that the store has, at once. The files are invisible until a commit names them. Throws IoError.
std::uint64_t upload(Hub& hub, const storage::HubId& repository, const std::string& branch,
                     const std::vector<LargeFile>& files, const std::function<void(std::uint64_t)>& count);

struct UploadPart {
  std::string url;
  std::uint64_t begin = 0, end = 0;
};

/// The parts of a multipart upload by the headers of its action ("chunk_size", and a URL under each number from 1), in
/// order. Throws std::invalid_argument if they do not cover the file.
std::vector<UploadPart> plan_parts(const std::map<std::string, std::string>& headers, std::uint64_t num_bytes);

}  // namespace lora_train::hub
