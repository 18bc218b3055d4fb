#include "lora_train/hub/push.h"

#include <nlohmann/json.hpp>

#include "hub_api.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/hub/http/url.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::hub {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kSampleBytes = 512;
constexpr std::size_t kBlockBytes = 1u << 20;

/// A file on its way.
struct Outgoing {
  const PushFile* file = nullptr;
  std::string sha256, git_sha1;
  bool is_large = false;
};

class Push {
 public:
  explicit Push(const PushRequest& request) : request_(request), repository_(request.id) {
    for (const PushFile& file : request.plan.files) total_bytes_ += 2 * file.num_bytes;  // hashed, then uploaded
  }

  PushResult run() {
    if (!hub_.has_token())
      throw IoError(repository_.full_name(), "push needs a token with write permission: create one on " +
                                                 hub_.endpoint() + "/settings/tokens and set HF_TOKEN.");
    hash_files();
    open_repository();
    const std::string parent = open_branch();
    drop_what_is_there(parent);
    result_.url = hub_.page(repository_);
    result_.num_files = std::ssize(uploads_);
    result_.commit = parent;
    if (uploads_.empty()) return result_;
    ask_upload_modes();
    std::vector<LargeFile> large;
    for (const Outgoing& upload : uploads_)
      if (upload.is_large) large.push_back({upload.file->file, upload.file->num_bytes, upload.sha256});
    result_.num_uploaded_bytes =
        upload(hub_, repository_, repository_.revision, large, [this](std::uint64_t n) { count(n); });
    result_.commit = commit(parent);
    return result_;
  }

 private:
  void count(std::uint64_t num_bytes) {
    num_bytes_ += num_bytes;
    if (request_.progress) request_.progress(num_bytes_, total_bytes_);
  }

  void hash_files() {
    for (const PushFile& file : request_.plan.files) {
      Digest sha256(DigestKind::kSha256, file.num_bytes), sha1(DigestKind::kGitSha1, file.num_bytes);
      if (file.text) {
        sha256.update(*file.text);
        sha1.update(*file.text);
      } else {
        FileReader reader(file.file);
        std::string block(kBlockBytes, '\0');
        while (const std::size_t size = reader.read(block.data(), block.size())) {
          throw_if_stop_requested();
          sha256.update({block.data(), size});
          sha1.update({block.data(), size});
          count(size);
        }
      }
      uploads_.push_back({&file, sha256.hex(), sha1.hex()});
    }
  }

  std::string of_branch(const char* action) const {
    return fmt::format("{}/{}/{}", hub_.api_path(repository_), action, encode_part(repository_.revision));
  }

  Request post(const std::string& path, const Json& body) const {
    Request request = hub_.request(path, "POST");
    request.headers = {{"Content-Type", "application/json"}};
    request.body = body.dump();
    return request;
  }

  /// Finds or creates the repository; it must be as private as requested.
  void open_repository() {
    Answer found = hub_.send(hub_.request(hub_.api_path(repository_)));
    if (found.status == 404 || found.header("X-Error-Code") == "RepoNotFound") {
      create_repository();
      found = hub_.send(hub_.request(hub_.api_path(repository_)));
      if (found.status == 404)
        throw IoError(repository_.full_name(),
                      "the name is taken by a repository that your token cannot see. Choose another name, or use a "
                      "token of its owner.");
    }
    const Json info = hub_.require_json(found, repository_);
    const bool is_private = info.is_object() && info.value("private", Json()) == Json(true);
    if (!is_private && !request_.is_public)
      throw IoError(repository_.full_name(),
                    std::string(result_.is_new ? "the hub made the repository public" : "the repository is public") +
                        ", so everyone would see the files. Nothing was uploaded; pass --public if you mean that.");
    if (is_private && request_.is_public && !result_.is_new)
      log_warning(repository_.full_name() + " is private and stays private; make it public in its settings on the hub");
  }

  void create_repository() {
    const Json body = {{"name", repository_.name},
                       {"organization", repository_.organisation},
                       {"type", "model"},
                       {"visibility", request_.is_public ? "public" : "private"}};
    const Answer answer = hub_.send(post("api/repos/create", body));
    if (answer.status == 409)  // by an earlier try whose answer was lost, or by another process
      return;
    if (answer.status == 403)
      throw IoError(repository_.full_name(),
                    "the token may not create a repository there: it needs write permission for " +
                        repository_.organisation + ". See " + hub_.endpoint() + "/settings/tokens.");
    hub_.require_json(answer, repository_);
    result_.is_new = true;
  }

  /// The newest commit of the branch, which is created from main if it is missing.
  std::string open_branch() {
    const Answer found = hub_.send(hub_.request(of_branch("revision")));
    if (found.header("X-Error-Code") == "RevisionNotFound" && repository_.revision != "main") {
      const auto made = hub_.send(post(of_branch("branch"), Json::object()));
      if (!made.is_ok() && made.status != 409) hub_.refuse(made, repository_);
    }
    return hub_.find_commit(repository_);
  }

  void drop_what_is_there(const std::string& commit) {
    std::map<std::string, std::string> there;
    for (const RepositoryFile& file : hub_.list_files(repository_, commit)) there[file.path] = file.etag;
    std::erase_if(uploads_, [&](const Outgoing& upload) {
      const auto found = there.find(upload.file->path);
      const bool is_there =
          found != there.end() && (found->second == upload.sha256 || found->second == upload.git_sha1);
      if (is_there) count(upload.file->num_bytes);
      return is_there;
    });
  }

  /// Asks the hub which files are large: it decides by name, size and first bytes.
  void ask_upload_modes() {
    Json files = Json::array();
    for (const Outgoing& upload : uploads_) {
      const PushFile& file = *upload.file;
      const std::string sample = file.text ? file.text->substr(0, kSampleBytes) : read_start(file.file, kSampleBytes);
      files.push_back({{"path", file.path}, {"sample", base64(sample)}, {"size", file.num_bytes}});
    }
    const Json answer = hub_.require_json(hub_.send(post(of_branch("preupload"), {{"files", files}})), repository_);
    std::map<std::string, std::string> modes;
    try {
      for (const Json& file : answer.at("files")) modes[file.at("path")] = file.at("uploadMode");
    } catch (const Json::exception&) {
      modes.clear();
    }
    for (Outgoing& upload : uploads_) {
      const std::string mode = modes[upload.file->path];
      if (mode != "lfs" && mode != "regular")
        throw IoError(hub_.endpoint(), "does not say how to upload {}. Nothing was committed.", upload.file->path);
      upload.is_large = mode == "lfs" && upload.file->num_bytes > 0 && !upload.file->text;
    }
  }

  std::string commit_body(const std::string& parent) {
    std::string lines =
        Json({{"key", "header"},
              {"value", {{"summary", request_.message}, {"description", ""}, {"parentCommit", parent}}}})
            .dump() +
        "\n";
    for (const Outgoing& upload : uploads_) {
      const PushFile& file = *upload.file;
      Json line;
      if (upload.is_large) {
        line = {{"key", "lfsFile"},
                {"value", {{"path", file.path}, {"algo", "sha256"}, {"oid", upload.sha256}, {"size", file.num_bytes}}}};
      } else {
        const std::string bytes = file.text ? *file.text : read_file(file.file);
        line = {{"key", "file"}, {"value", {{"path", file.path}, {"encoding", "base64"}, {"content", base64(bytes)}}}};
        count(file.num_bytes);
      }
      lines += line.dump() + "\n";
    }
    return lines;
  }

  /// The one request that others see. It is not repeated blindly: if its answer is lost, the branch shows whether it
  /// worked.
  std::string commit(const std::string& parent) {
    Request request = hub_.request(of_branch("commit"), "POST");
    request.headers = {{"Content-Type", "application/x-ndjson"}};
    request.body = commit_body(parent);
    request.is_repeatable = false;
    try {
      const Answer answer = hub_.send(request);
      if (answer.status == 409 || answer.status == 412)
        throw IoError(repository_.full_name(),
                      "someone else changed the repository in the meantime. Nothing was committed; run the command "
                      "again.");
      if (answer.is_ok()) return hub_.find_commit(repository_);
      if (answer.status < 500)
        throw IoError(repository_.full_name(),
                      "the hub refuses the commit with status {}. The repository is unchanged.{}", answer.status,
                      words_of(answer));
    } catch (const TransferError& error) {
      log_info("the answer to the commit was lost ({}); asking the hub whether it worked", error.message());
    }
    const std::string last = newest();
    if (last == parent)
      throw IoError(repository_.full_name(),
                    "the hub did not make the commit. The repository is unchanged; run the command again, and it "
                    "uploads only what the hub lacks.");
    return last;
  }

  /// The newest commit of a branch after the answer to a commit was lost.
  std::string newest() {
    try {
      return hub_.find_commit(repository_);
    } catch (const IoError& error) {
      throw IoError(repository_.full_name(),
                    "the connection was lost during the commit, which may have worked. Look at " +
                        hub_.page(repository_) + "/commits/" + repository_.revision + " (" + error.message() + ")");
    }
  }

  const PushRequest& request_;
  const storage::HubId& repository_;
  Hub hub_;
  std::vector<Outgoing> uploads_;
  PushResult result_;
  std::uint64_t num_bytes_ = 0, total_bytes_ = 0;
};

namespace fs = std::filesystem;

constexpr const char* kTemplates = "additional_chat_templates";

bool is_model(const fs::path& folder) { return fs::exists(folder / storage::kConfigFile); }

/// The result of a run, or the folder itself.
fs::path find_result(const fs::path& given) {
  if (!fs::is_directory(given))
    throw FormatError(given.string(), "no such folder; expected an adapter, a model, or the output_dir of a run.");
  if (storage::holds_adapter(given) || is_model(given)) return given;
  if (storage::holds_adapter(given / storage::kAdapterFolder)) return given / storage::kAdapterFolder;
  if (is_model(given / storage::kModelFolder)) return given / storage::kModelFolder;
  throw FormatError(
      given.string(),
      "is not an adapter (adapter_config.json), a model (config.json) or a run with a result (adapter/ or model/).");
}

/// Files of a checkpoint of ours, which a user of the adapter does not need.
bool is_of_checkpoint(std::string_view name) {
  return name == storage::kOptimizerFile || name == storage::kStateFile || name == storage::kManifestFile ||
         name == storage::kMarkerFile;
}

/// A result's card names its own folder in lines to paste; for readers on the hub that is org/name.
std::string card_for_hub(std::string card, const std::string& name) {
  constexpr std::string_view kBefore = "PeftModel.from_pretrained(base, \"";
  const auto begin = card.find(kBefore);
  if (begin == std::string::npos) return card;
  const auto end = card.find('"', begin + kBefore.size());
  if (end == std::string::npos) return card;
  const std::string folder = card.substr(begin + kBefore.size(), end - begin - kBefore.size());
  if (folder.empty()) return card;
  for (auto at = card.find(folder); at != std::string::npos; at = card.find(folder, at + name.size()))
    card.replace(at, folder.size(), name);
  return card;
}

PushFile file_to_push(const fs::path& file, const std::string& path, const std::string& name) {
  PushFile pushed{.path = path, .file = file, .num_bytes = fs::file_size(file)};
  if (path == storage::kCardFile) {
    pushed.text = card_for_hub(read_file(file), name);
    pushed.num_bytes = pushed.text->size();
  }
  return pushed;
}

}  // namespace

PushResult push(const PushRequest& request) {
  if (is_offline()) throw IoError("HF_HUB_OFFLINE", "forbids the network. Unset it to push.");
  return Push(request).run();
}

PushPlan plan_push(const fs::path& given, const std::string& name) {
  PushPlan plan;
  plan.folder = find_result(given);
  for (const std::string& entry : list_folder(plan.folder)) {
    const fs::path path = plan.folder / entry;
    if (fs::is_regular_file(path) && entry.front() != '.' && !is_of_checkpoint(entry)) {
      plan.files.push_back(file_to_push(path, entry, name));
      plan.has_card |= entry == storage::kCardFile;
    } else if (fs::is_directory(path) && entry == kTemplates) {
      for (const std::string& inner : list_folder(path))
        if (fs::is_regular_file(path / inner))
          plan.files.push_back(file_to_push(path / inner, fmt::format("{}/{}", entry, inner), name));
    } else {
      plan.skipped.push_back(entry);
    }
  }
  return plan;
}

}  // namespace lora_train::hub
