#include "hub_api.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/hub/http/url.h"

namespace lora_train::hub {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kCommitDigits = 40, kSha256Digits = 64;
constexpr std::size_t kMaxShown = 200;
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
  if (endpoint.empty()) return "https://huggingface.co";
  if (origin_of(endpoint).empty())
    throw ConfigError("HF_ENDPOINT", "got " + endpoint + ", expected a URL such as https://huggingface.co.");
  return endpoint;
}

double stall_timeout_in_use() {
  const std::string text = variable("HF_HUB_DOWNLOAD_TIMEOUT");
  const double seconds = text.empty() ? Request().stall_timeout_s : std::atof(text.c_str());
  if (seconds < 1) throw ConfigError("HF_HUB_DOWNLOAD_TIMEOUT", "got " + text + ", expected seconds, at least 1.");
  return seconds;
}

/// What the hub itself says about an error, shortened; empty if it says nothing.
std::string words_of(const Answer& answer) {
  std::string words = answer.header("X-Error-Message");
  if (words.empty()) {
    const Json body = Json::parse(answer.body, nullptr, false);
    if (body.is_object() && body.contains("error") && body["error"].is_string()) words = body["error"];
  }
  if (words.size() > 300) words.resize(300);
  return visible_text(trimmed(words));
}

/// A file of a tree listing; nothing where a part is missing or is not what the hub sends.
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

bool is_offline() {
  const std::string value = variable("HF_HUB_OFFLINE");
  return is_true(value.empty() ? variable("TRANSFORMERS_OFFLINE") : value);
}

bool is_safe_path(std::string_view path) {
  if (path.empty()) return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f' || c == '\\') return false;
  }
  for (std::size_t begin = 0;;) {
    const auto slash = path.find('/', begin);
    const auto part = path.substr(begin, slash == std::string_view::npos ? slash : slash - begin);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    begin = slash + 1;
  }
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
  request.url = endpoint_ + "/" + path;
  request.bearer = token_;
  request.stall_timeout_s = stall_timeout_s_;
  return request;
}

std::string Hub::api_path(const Repository& repository) const {
  return (repository.kind == storage::HubKind::kModel ? "api/models/" : "api/datasets/") + repository.name();
}

std::string Hub::file_path(const Repository& repository, const std::string& commit, const std::string& file) const {
  return (repository.kind == storage::HubKind::kModel ? "" : "datasets/") + repository.name() + "/resolve/" + commit +
         "/" + encode_path(file);
}

std::string Hub::page(const Repository& repository) const {
  return endpoint_ + (repository.kind == storage::HubKind::kModel ? "/" : "/datasets/") + repository.name();
}

std::string Hub::find_commit(const Repository& repository) {
  const std::string path = api_path(repository) + "/revision/" + encode_part(repository.revision());
  const Json info = require_json(client_.send(request(path)), repository);
  if (!info.is_object() || !info.contains("sha") || !info["sha"].is_string() ||
      !is_hex(info["sha"].get<std::string>(), kCommitDigits))
    throw IoError(endpoint_, "answers without the commit of " + repository.name() +
                                 ", so that it seems to be no Hugging Face hub. Check HF_ENDPOINT.");
  return info["sha"];
}

std::vector<RepositoryFile> Hub::list_files(const Repository& repository, const std::string& commit) {
  Request page = request(api_path(repository) + "/tree/" + commit + "?recursive=true");
  std::vector<RepositoryFile> files;
  std::unordered_set<std::string> paths;
  for (int num_pages = 0; num_pages < kMaxPages; ++num_pages) {
    const Answer answer = client_.send(page);
    const Json entries = require_json(answer, repository);
    if (!entries.is_array()) fail_list(repository, "no list");
    for (const Json& entry : entries) {
      if (!entry.is_object() || entry.value("type", Json()) != "file") continue;
      const auto file = read_file_entry(entry);
      if (!file) fail_list(repository, visible_text(entry.dump().substr(0, kMaxShown)));
      if (!paths.insert(file->path).second) fail_list(repository, "twice " + file->path);
      files.push_back(*file);
    }
    const std::string next = next_link(answer.header("Link"));
    if (next.empty()) return files;
    if (origin_of(next) != origin_of(endpoint_))
      throw IoError(endpoint_, "continues its list of files on another host, " + shown_url(next) + ".");
    page.url = next;
  }
  throw IoError(endpoint_, "lists the files of " + repository.name() + " without an end.");
}

void Hub::fail_list(const Repository& repository, const std::string& found) const {
  throw IoError(endpoint_, "lists the files of " + repository.name() + " in a way that is not the hub's: " + found +
                               ". Nothing was downloaded. Check HF_ENDPOINT.");
}

Json Hub::require_json(const Answer& answer, const Repository& repository) const {
  if (!answer.is_ok()) refuse(answer, repository);
  Json body = Json::parse(answer.body, nullptr, false);
  if (body.is_discarded() || body.is_primitive())
    throw IoError(shown_url(answer.url),
                  "answers with something that is not JSON, so that it seems to be no Hugging Face hub. Check "
                  "HF_ENDPOINT, and whether a proxy or a login page answers in its place.");
  return body;
}

std::string Hub::reason_of(const Answer& answer, const Repository& repository) const {
  const std::string code = answer.header("X-Error-Code");
  const std::string kind = repository.kind == storage::HubKind::kModel ? "model" : "dataset";
  if (code == "GatedRepo")
    return "this " + kind + " is gated: ask for access on " + page(repository) +
           (has_token() ? ", with the account of your token." : ", then set HF_TOKEN to a token of that account.");
  if (code == "RevisionNotFound")
    return "the " + kind + " has no revision " + repository.revision() + "; see " + page(repository) + "/tree/main.";
  const std::string shown = shown_url(answer.url) + " answers " + std::to_string(answer.status);
  if (origin_of(answer.url) != origin_of(endpoint_) && answer.status < 500 && answer.status != 429)
    return "the server that holds its files refuses: " + shown + ". Run the command again; it resumes.";
  if (code == "EntryNotFound") return "the hub lists a file that it does not have. Run the command again.";
  if (answer.status == 404 || code == "RepoNotFound")
    return "there is no such " + kind + " on " + endpoint_ + ", or it is private" +
           (has_token() ? " and your token may not see it" : " (then set HF_TOKEN)") + ". Check the name" +
           (repository.kind == storage::HubKind::kModel ? "; a dataset needs --dataset."
                                                        : "; a model needs no --dataset.");
  if (answer.status == 401)
    return has_token()
               ? "the hub does not accept the token. Check HF_TOKEN or " + endpoint_ + "/settings/tokens."
               : "the " + kind + " does not exist, or needs a token: set HF_TOKEN (" + endpoint_ + "/settings/tokens).";
  if (answer.status == 403)
    return "access is denied" +
           std::string(has_token() ? ": the token lacks the permission. See " : ": set HF_TOKEN. See ") +
           page(repository) + ".";
  if (answer.status == 429) {
    const std::string after = answer.header("Retry-After");
    return "too many requests" +
           (after.empty() ? std::string() : "; the hub asks to wait " + visible_text(after) + " s") +
           ". Run the command again later" + (has_token() ? "." : "; with HF_TOKEN the limit is higher.");
  }
  if (answer.status >= 500) return "the server has failed: " + shown + ". Run the command again later; it resumes.";
  if (answer.status == 416) return "the hub has another file than its list says: " + shown + ". Run the command again.";
  return "unexpected answer: " + shown + ". Check HF_ENDPOINT.";
}

void Hub::refuse(const Answer& answer, const Repository& repository) const {
  const std::string words = words_of(answer);
  throw IoError(repository.name(),
                reason_of(answer, repository) + (words.empty() ? "" : " (The hub says: " + words + ")"));
}

}  // namespace lora_train::hub
