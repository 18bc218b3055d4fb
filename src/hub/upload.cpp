#include "upload.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/hub/http/url.h"

namespace lora_train::hub {
namespace {

using Json = nlohmann::json;

constexpr const char* kLfsType = "application/vnd.git-lfs+json";
constexpr const char* kDefaultEndpoint = "https://huggingface.co";

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// What the batch answers for one file.
struct UploadAction {
  std::string url, verify_url;
  std::map<std::string, std::string> headers;  ///< of the upload
};

class Uploader {
 public:
  Uploader(Hub& hub, const Repository& repository, const std::function<void(std::uint64_t)>& count)
      : hub_(hub), repository_(repository), count_(count) {}

  /// The answer of the batch for each file, by its hash; an empty URL: the store has it.
  std::map<std::string, UploadAction> ask(const std::string& branch, const std::vector<LargeFile>& files) {
    Json objects = Json::array();
    for (const LargeFile& file : files) objects.push_back({{"oid", file.sha256}, {"size", file.num_bytes}});
    Request request = hub_.request(repository_.name() + ".git/info/lfs/objects/batch", "POST");
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
      throw IoError(repository_.name(), "the hub's store refuses a file: " +
                                            visible_text(object["error"].value("message", "without a reason")) +
                                            ". Nothing was committed.");
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
    if (url.starts_with(kDefaultEndpoint))
      url = hub_.endpoint() + url.substr(std::string_view(kDefaultEndpoint).size());
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
    throw IoError(repository_.name(), "the hub's store did not take " + file.file.filename().string() + ": " +
                                          shown_url(answer.url) + " answers " + std::to_string(answer.status) +
                                          ". Nothing was committed; run the command again.");
  }

  [[noreturn]] void fail_answer() const {
    throw IoError(
        hub_.endpoint(),
        "answers in a way that is not the hub's where it should say how to upload files. Nothing was committed.");
  }

  Hub& hub_;
  const Repository& repository_;
  const std::function<void(std::uint64_t)>& count_;
};

}  // namespace

std::vector<UploadPart> plan_parts(const std::map<std::string, std::string>& headers, std::uint64_t num_bytes) {
  const auto chunk = headers.contains("chunk_size") ? number_of(headers.at("chunk_size")) : std::nullopt;
  if (!chunk || *chunk == 0) throw std::invalid_argument("chunk_size");
  std::map<std::uint64_t, std::string> urls;
  for (const auto& [name, value] : headers) {
    if (const auto number = number_of(name)) urls[*number] = value;
  }
  const std::uint64_t num_parts = (num_bytes + *chunk - 1) / *chunk;
  if (urls.size() != num_parts || urls.empty() || urls.begin()->first != 1 || urls.rbegin()->first != num_parts)
    throw std::invalid_argument("parts");
  std::vector<UploadPart> parts;
  for (const auto& [number, url] : urls)
    parts.push_back({url, (number - 1) * *chunk, std::min(number * *chunk, num_bytes)});
  return parts;
}

std::uint64_t upload(Hub& hub, const Repository& repository, const std::string& branch,
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
