#include "hub_api.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/hub/http/url.h"

namespace lora_train::hub {

Digest::Digest(DigestKind kind, std::uint64_t num_bytes) : kind_(kind) {
  ::SHA256_Init(&sha256_);
  ::SHA1_Init(&sha1_);
  if (kind == DigestKind::kGitSha1) update(fmt::format("blob {}{}", num_bytes, std::string(1, '\0')));
}

void Digest::update(std::string_view bytes) {
  kind_ == DigestKind::kSha256 ? ::SHA256_Update(&sha256_, bytes.data(), bytes.size())
                               : ::SHA1_Update(&sha1_, bytes.data(), bytes.size());
}

std::string Digest::hex() {
  std::vector<unsigned char> bytes(kind_ == DigestKind::kSha256 ? SHA256_DIGEST_LENGTH : SHA_DIGEST_LENGTH);
  kind_ == DigestKind::kSha256 ? ::SHA256_Final(bytes.data(), &sha256_) : ::SHA1_Final(bytes.data(), &sha1_);
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // and the zero that OpenSSL appends
  const int length =
      ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                        reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

namespace {

using Json = nlohmann::json;

constexpr std::size_t kCommitDigits = 40, kSha256Digits = 64;
constexpr std::size_t kMaxShown = 200;
constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";
constexpr int kMaxPages = 10000;  // of a thousand files each

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_hex(std::string_view text, std::size_t num_digits) {
  return text.size() == num_digits &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_true(const std::string& value) {
  const std::string word = lower_case(value);
  return word == "1" || word == "on" || word == "yes" || word == "true";
}

std::string token_in_use() { return is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN")) ? "" : storage::hub_token(); }

std::string hub_endpoint() {
  std::string endpoint = variable("HF_ENDPOINT");
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (endpoint.empty()) return std::string(kDefaultEndpoint);
  if (origin_of(endpoint).empty())
    throw ConfigError("HF_ENDPOINT", "got {}, expected a URL such as https://huggingface.co.", endpoint);
  return endpoint;
}

double stall_timeout_in_use() {
  const std::string text = variable("HF_HUB_DOWNLOAD_TIMEOUT");
  const double seconds = text.empty() ? Request().stall_timeout_s : std::atof(text.c_str());
  if (seconds < 1) throw ConfigError("HF_HUB_DOWNLOAD_TIMEOUT", "got {}, expected seconds, at least 1.", text);
  return seconds;
}

/// A file of a tree listing; nothing if a part is missing or is not what the hub sends.
std::optional<RepositoryFile> read_file_entry(const Json& entry) {
  const auto text = [](const Json& object, const char* key) {
    return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
  };
  const bool is_large = entry.contains("lfs") && entry["lfs"].is_object();
  const Json& contents = is_large ? entry["lfs"] : entry;
  if (!contents.contains("size") || !contents["size"].is_number_unsigned()) return std::nullopt;
  RepositoryFile file{text(entry, "path"), contents["size"], text(contents, "oid"),
                      is_large ? DigestKind::kSha256 : DigestKind::kGitSha1};
  const bool is_named = is_hex(file.etag, is_large ? kSha256Digits : kCommitDigits);
  return is_safe_path(file.path) && is_named ? std::optional(file) : std::nullopt;
}

}  // namespace

std::string words_of(const Answer& answer) {
  std::string words = answer.header("X-Error-Message");
  if (words.empty()) {
    const Json body = Json::parse(answer.body, nullptr, false);
    if (body.is_object() && body.contains("error") && body["error"].is_string()) words = body["error"];
  }
  words = visible_text(trimmed(words.substr(0, 300)));
  return words.empty() ? "" : fmt::format(" (The hub says: {})", words);
}

bool is_offline() {
  const std::string value = variable("HF_HUB_OFFLINE");
  return is_true(value.empty() ? variable("TRANSFORMERS_OFFLINE") : value);
}

bool is_safe_path(std::string_view path) {
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f' || c == '\\') return false;
  }
  const std::string parts = fmt::format("/{}/", path);
  return std::ranges::none_of(std::array{"//", "/./", "/../"},
                              [&](const char* bad) { return parts.find(bad) != std::string::npos; });
}

std::string next_link(std::string_view header) {
  for (;;) {
    const auto open = header.find('<'), close = header.find('>');
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
    const auto comma = header.find(",", close);
    const auto parameters = header.substr(close, comma == std::string_view::npos ? comma : comma - close);
    if (parameters.find("rel=\"next\"") != std::string_view::npos)
      return std::string(header.substr(open + 1, close - open - 1));
    if (comma == std::string_view::npos) return {};
    header.remove_prefix(comma + 1);
  }
}

Hub::Hub() : endpoint_(hub_endpoint()), token_(token_in_use()), stall_timeout_s_(stall_timeout_in_use()) {}

Request Hub::request(const std::string& path, const std::string& method) const {
  Request request;
  request.method = method;
  request.url = fmt::format("{}/{}", endpoint_, path);
  request.bearer = token_;
  request.stall_timeout_s = stall_timeout_s_;
  return request;
}

std::string Hub::api_path(const storage::HubId& repository) const {
  return (repository.kind == storage::HubKind::kModel ? "api/models/" : "api/datasets/") + repository.full_name();
}

std::string Hub::file_path(const storage::HubId& repository, const std::string& commit, const std::string& file) const {
  return fmt::format("{}{}/resolve/{}/{}", repository.kind == storage::HubKind::kModel ? "" : "datasets/",
                     repository.full_name(), commit, encode_path(file));
}

std::string Hub::page(const storage::HubId& repository) const {
  return endpoint_ + (repository.kind == storage::HubKind::kModel ? "/" : "/datasets/") + repository.full_name();
}

std::string Hub::find_commit(const storage::HubId& repository) {
  const std::string path = fmt::format("{}/revision/{}", api_path(repository), encode_part(repository.revision));
  const Json info = require_json(client_.send(request(path)), repository);
  if (!info.is_object() || !info.contains("sha") || !info["sha"].is_string() ||
      !is_hex(info["sha"].get<std::string>(), kCommitDigits))
    throw IoError(endpoint_, "answers without the commit of " + repository.full_name() +
                                 ", so it does not seem to be a Hugging Face hub. Check HF_ENDPOINT.");
  return info["sha"];
}

std::vector<RepositoryFile> Hub::list_files(const storage::HubId& repository, const std::string& commit) {
  Request page = request(fmt::format("{}/tree/{}?recursive=true", api_path(repository), commit));
  std::vector<RepositoryFile> files;
  std::unordered_set<std::string> paths;
  for (int num_pages = 0; num_pages < kMaxPages; ++num_pages) {
    const Answer answer = client_.send(page);
    const Json entries = require_json(answer, repository);
    if (!entries.is_array()) fail_list(repository, "not a list");
    for (const Json& entry : entries) {
      if (!entry.is_object() || entry.value("type", Json()) != "file") continue;
      const auto file = read_file_entry(entry);
      if (!file) fail_list(repository, visible_text(entry.dump().substr(0, kMaxShown)));
      if (!paths.insert(file->path).second) fail_list(repository, file->path + " twice");
      files.push_back(*file);
    }
    const std::string next = next_link(answer.header("Link"));
    if (next.empty()) return files;
    if (origin_of(next) != origin_of(endpoint_))
      throw IoError(endpoint_, "continues its list of files on another host, {}.", shown_url(next));
    page.url = next;
  }
  throw IoError(endpoint_, "lists the files of {} endlessly.", repository.full_name());
}

void Hub::fail_list(const storage::HubId& repository, const std::string& found) const {
  throw IoError(endpoint_, "lists the files of " + repository.full_name() + " in a way that is not the hub's: " +
                               found + ". Nothing was downloaded. Check HF_ENDPOINT.");
}

Json Hub::require_json(const Answer& answer, const storage::HubId& repository) const {
  if (!answer.is_ok()) refuse(answer, repository);
  Json body = Json::parse(answer.body, nullptr, false);
  if (body.is_discarded() || body.is_primitive())
    throw IoError(shown_url(answer.url),
                  "answers with something that is not JSON, so it does not seem to be a Hugging Face hub. Check "
                  "HF_ENDPOINT, and whether a proxy or a login page answers instead.");
  return body;
}

std::string Hub::reason_of(const Answer& answer, const storage::HubId& repository) const {
  const std::string code = answer.header("X-Error-Code");
  const std::string kind = repository.kind == storage::HubKind::kModel ? "model" : "dataset";
  if (code == "GatedRepo")
    return fmt::format("this {} is gated: request access on {}, and set HF_TOKEN to a token of that account.", kind,
                       page(repository));
  if (code == "RevisionNotFound")
    return fmt::format("the {} has no revision {}; see {}/tree/main.", kind, repository.revision, page(repository));
  const std::string shown = fmt::format("{} answers {}", shown_url(answer.url), answer.status);
  if (origin_of(answer.url) != origin_of(endpoint_) && answer.status < 500 && answer.status != 429)
    return fmt::format("the server that holds its files refuses: {}. Run the command again; it resumes.", shown);
  if (code == "EntryNotFound") return "the hub lists a file that it does not have. Run the command again.";
  if (answer.status == 404 || code == "RepoNotFound")
    return fmt::format(
        "there is no such {} on {}, or it is private: check the name, and set HF_TOKEN to a token that sees it; a "
        "dataset needs --dataset.",
        kind, endpoint_);
  if (answer.status == 401)
    return fmt::format("the hub does not accept the token, or needs one. Check HF_TOKEN; see {}/settings/tokens.",
                       endpoint_);
  if (answer.status == 403)
    return fmt::format("access is denied: HF_TOKEN must be a token with that permission. See {}.", page(repository));
  if (answer.status == 429) {
    const std::string after = answer.header("Retry-After");
    return fmt::format("too many requests{}. Run the command again later; with HF_TOKEN the limit is higher.",
                       after.empty() ? "" : "; the hub asks to wait " + visible_text(after) + " s");
  }
  if (answer.status >= 500) return "the server has failed: " + shown + ". Run the command again later; it resumes.";
  if (answer.status == 416) return "the hub's file is not the one that it lists: " + shown + ". Run the command again.";
  return fmt::format("unexpected answer: {}. Check HF_ENDPOINT.", shown);
}

void Hub::refuse(const Answer& answer, const storage::HubId& repository) const {
  throw IoError(repository.full_name(), reason_of(answer, repository) + words_of(answer));
}

namespace {

bool has_ending(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_in_root(std::string_view path) { return path.find('/') == std::string_view::npos; }

bool is_weights(std::string_view path) { return is_in_root(path) && path.ends_with(".safetensors"); }

bool is_foreign_weights(std::string_view path) {
  return has_ending(path, {".bin", ".pth", ".pt", ".gguf", ".onnx", ".h5", ".msgpack", ".ckpt"});
}

/// The same weights once more, in Mistral's own layout.
bool is_second_copy(std::string_view path) { return path.starts_with("consolidated"); }

bool is_text_file(std::string_view path) {
  if (path.starts_with("additional_chat_templates/")) return path.ends_with(".jinja");
  if (!is_in_root(path)) return false;
  if (path.ends_with(".index.json")) return path.ends_with(".safetensors.index.json");
  const std::string name = lower_case(std::string(path));
  return has_ending(path, {".json", ".jinja", ".model", ".tiktoken"}) || path == "merges.txt" || path == "vocab.txt" ||
         name.starts_with("readme") || name.starts_with("license") || name.starts_with("notice");
}

}  // namespace

NeededFiles needed_files(const std::vector<RepositoryFile>& files, const std::string& repository) {
  const bool has_first_copy = std::ranges::any_of(
      files, [](const RepositoryFile& file) { return is_weights(file.path) && !is_second_copy(file.path); });
  NeededFiles result;
  bool has_weights = false;
  for (const RepositoryFile& file : files) {
    const bool is_copy = has_first_copy && is_second_copy(file.path);
    const bool is_needed = !is_copy && (is_weights(file.path) || is_text_file(file.path));
    has_weights |= is_needed && is_weights(file.path);
    (is_needed ? result.needed : result.skipped).push_back(file);
  }
  const auto foreign =
      std::ranges::find_if(files, [](const RepositoryFile& file) { return is_foreign_weights(file.path); });
  if (!has_weights && foreign != files.end())
    throw FormatError(repository, "has " + foreign->path +
                                      " but no .safetensors files, the only weights that lora-train reads. Nothing was "
                                      "downloaded; --all downloads every file.");
  return result;
}

namespace {

constexpr const char* kLfsType = "application/vnd.git-lfs+json";

/// The batch's answer for one file.
struct UploadAction {
  std::string url, verify_url;
  std::map<std::string, std::string> headers;  ///< of the upload
};

class Uploader {
 public:
  Uploader(Hub& hub, const storage::HubId& repository, const std::function<void(std::uint64_t)>& count)
      : hub_(hub), repository_(repository), count_(count) {}

  /// The answer of the batch for each file, by its hash; an empty URL: the store has it.
  std::map<std::string, UploadAction> ask(const std::string& branch, const std::vector<LargeFile>& files) {
    Json objects = Json::array();
    for (const LargeFile& file : files) objects.push_back({{"oid", file.sha256}, {"size", file.num_bytes}});
    Request request = hub_.request(repository_.full_name() + ".git/info/lfs/objects/batch", "POST");
    request.headers = {{"Accept", kLfsType}, {"Content-Type", kLfsType}};
    request.body = Json({{"operation", "upload"},
                         {"transfers", {"basic", "multipart"}},
                         {"objects", objects},
                         {"hash_algo", "sha256"},
                         {"ref", {{"name", branch}}}})
                       .dump();
    const Json answer = hub_.require_json(hub_.send(request), repository_);
    std::map<std::string, UploadAction> uploads;
    try {
      for (const Json& object : answer.at("objects")) uploads[object.at("oid")] = read_upload(object);
    } catch (const Json::exception&) {
      fail_answer();
    }
    for (const LargeFile& file : files)
      if (!uploads.contains(file.sha256)) fail_answer();
    return uploads;
  }

  void send(const LargeFile& file, const UploadAction& upload) {
    if (upload.headers.contains("chunk_size"))
      send_parts(file, upload);
    else
      put(file, upload.url, 0, file.num_bytes);
    if (upload.verify_url.empty()) return;
    Request request = to_hub(upload.verify_url);
    request.body = Json({{"oid", file.sha256}, {"size", file.num_bytes}}).dump();
    require_ok(hub_.send(request), file);
  }

 private:
  UploadAction read_upload(const Json& object) const {
    if (object.contains("error"))
      throw IoError(repository_.full_name(), "the hub's store refuses a file: {}. Nothing was committed.",
                    visible_text(object["error"].value("message", "no reason given")));
    UploadAction upload;
    if (!object.contains("actions")) return upload;
    const Json& action = object["actions"].at("upload");
    upload.url = action.at("href");
    if (action.contains("header") && action["header"].is_object()) {
      for (const auto& [name, value] : action["header"].items())
        upload.headers[name] = value.is_string() ? value.get<std::string>() : value.dump();
    }
    if (object["actions"].contains("verify")) upload.verify_url = object["actions"]["verify"].at("href");
    return upload;
  }

  /// A request to an address that the hub has named. It gets the token only if that is the hub itself.
  Request to_hub(std::string url) const {
    if (url.starts_with(kDefaultEndpoint)) url = hub_.endpoint() + url.substr(kDefaultEndpoint.size());
    if (origin_of(url).empty()) fail_answer();
    Request request = hub_.request("", "POST");
    request.url = url;
    if (origin_of(url) != origin_of(hub_.endpoint())) request.bearer.clear();
    request.headers = {{"Accept", kLfsType}, {"Content-Type", kLfsType}};
    return request;
  }

  /// Returns the ETag of what was stored.
  std::string put(const LargeFile& file, const std::string& url, std::uint64_t begin, std::uint64_t end) {
    Request request = to_hub(url);
    request.method = "PUT";
    request.bearer.clear();  // the address is signed
    request.headers.clear();
    request.file = {file.file, begin, end - begin};
    const Answer answer = hub_.send(request);
    require_ok(answer, file);
    count_(end - begin);
    return answer.header("ETag");
  }

  void send_parts(const LargeFile& file, const UploadAction& upload) {
    std::vector<UploadPart> parts;
    try {
      parts = plan_parts(upload.headers, file.num_bytes);
    } catch (const std::invalid_argument&) {
      fail_answer();
    }
    Json done = Json::array();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string tag = put(file, parts[i].url, parts[i].begin, parts[i].end);
      if (tag.empty()) fail_answer();
      done.push_back({{"partNumber", i + 1}, {"etag", tag}});
    }
    Request request = to_hub(upload.url);
    request.body = Json({{"oid", file.sha256}, {"parts", done}}).dump();
    require_ok(hub_.send(request), file);
  }

  void require_ok(const Answer& answer, const LargeFile& file) const {
    if (answer.is_ok()) return;
    throw IoError(repository_.full_name(),
                  "the hub's store did not accept {}: {} answers {}. Nothing was committed; run the command again.",
                  file.file.filename().string(), shown_url(answer.url), answer.status);
  }

  [[noreturn]] void fail_answer() const {
    throw IoError(hub_.endpoint(), "gives no valid instructions for uploading files. Nothing was committed.");
  }

  Hub& hub_;
  const storage::HubId& repository_;
  const std::function<void(std::uint64_t)>& count_;
};

}  // namespace

std::vector<UploadPart> plan_parts(const std::map<std::string, std::string>& headers, std::uint64_t num_bytes) {
  const auto chunk =
      headers.contains("chunk_size") ? whole_number<std::uint64_t>(headers.at("chunk_size")) : std::nullopt;
  if (!chunk || *chunk == 0) throw std::invalid_argument("chunk_size");
  std::map<std::uint64_t, std::string> urls;
  for (const auto& [name, value] : headers) {
    if (const auto number = whole_number<std::uint64_t>(name)) urls[*number] = value;
  }
  const std::uint64_t num_parts = (num_bytes + *chunk - 1) / *chunk;
  if (urls.size() != num_parts || urls.empty() || urls.begin()->first != 1 || urls.rbegin()->first != num_parts)
    throw std::invalid_argument("parts");
  std::vector<UploadPart> parts;
  for (const auto& [number, url] : urls)
    parts.push_back({url, (number - 1) * *chunk, std::min(number * *chunk, num_bytes)});
  return parts;
}

std::uint64_t upload(Hub& hub, const storage::HubId& repository, const std::string& branch,
                     const std::vector<LargeFile>& files, const std::function<void(std::uint64_t)>& count) {
  if (files.empty()) return 0;
  Uploader uploader(hub, repository, count);
  const auto uploads = uploader.ask(branch, files);
  std::uint64_t num_uploaded = 0;
  for (const LargeFile& file : files) {
    const UploadAction& upload = uploads.at(file.sha256);
    if (upload.url.empty()) {
      count(file.num_bytes);
      continue;
    }
    uploader.send(file, upload);
    num_uploaded += file.num_bytes;
  }
  return num_uploaded;
}

}  // namespace lora_train::hub
