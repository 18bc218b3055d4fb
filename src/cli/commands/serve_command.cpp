// lora-train serve: an OpenAI-compatible server for a model and its adapters.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/generation_flags.h"
#include "flags/open_model.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/serve/http_server.h"
#include "output/answers.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKeyVariable = "LORA_TRAIN_API_KEY";

struct ServeFlags {
  std::vector<std::string> adapters;
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::int64_t max_new_tokens = 1024;
  std::size_t queue = 64;
  bool allow_other_base = false, raw = false;
};

void add_serve_flags(CommandParser& parser, ServeFlags& flags) {
  parser.add_list("--adapter", flags.adapters, "[NAME=]DIR",
                  "PEFT folder, or output_dir of a run, and the name by which clients choose it (default: the run's "
                  "name); repeatable");
  add_allow_other_base(parser, flags.allow_other_base);
  add_raw(parser, flags.raw);
  parser.add("--host", flags.host, "HOST",
             "address to listen on (default 127.0.0.1: only this machine); one that other machines can reach needs "
             "a key in $" +
                 std::string(kKeyVariable));
  parser.add_integer("--port", flags.port, 0, 65535, "port to listen on (default 8000); 0 takes a free one");
  parser.add_integer("--max-new-tokens", flags.max_new_tokens, 1, kMaxNewTokens,
                     "maximum number of tokens per answer if the request sets none (default 1024)");
  parser.add_integer("--queue", flags.queue, 1, 100000,
                     "number of answers that may wait for the model (default 64); requests beyond that get 503");
}

/// NAME=DIR or DIR. A "=" after a "/" belongs to the folder: runs/lr=1e-4.
lora::NamedAdapter parse_adapter(const CommandParser& parser, const std::string& given) {
  const std::size_t equals = given.find('=');
  const bool has_name = equals != std::string::npos && given.find('/') > equals;
  const std::string folder = has_name ? given.substr(equals + 1) : given;
  const std::string name = has_name ? given.substr(0, equals) : "";
  if (folder.empty() || (has_name && name.empty()))
    parser.refuse("--adapter", fmt::format("got \"{}\"; expected DIR or NAME=DIR.", given));
  const std::string found = find_adapter(folder);
  return {has_name ? name : name_of_run(found), found};
}

std::string name_of_base(const std::string& path) {
  std::error_code code;
  if (!fs::is_directory(path, code)) return path;
  return fs::weakly_canonical(path).filename().string();
}

/// The served models, and what the engine loads for them.
class Serving {
 public:
  Serving(const CommandParser& parser, const ServeFlags& flags, const ProfileFlags& profile_flags)
      : parser_(parser), raw_(flags.raw) {
    for (const auto& given : flags.adapters) request_.several.push_back(parse_adapter(parser, given));
    std::string first = request_.several.empty() ? "" : request_.several.front().folder.string();
    const LoadedProfile loaded = load_with_adapter(profile_flags, first);
    request_.profile = loaded.profile;
    const ModelSection& section = request_.profile.model;
    const bool is_alone = has_token_rows();
    if (!is_alone) {
      const bool has_others = !request_.several.empty();
      add(name_of_base(section.path), open_to_answer(section, "", false),
          has_others ? std::optional(generate::kNoAdapter) : std::nullopt);
    }
    for (std::size_t i = 0; i < request_.several.size(); ++i) {
      const auto& [name, folder] = request_.several[i];
      add(name, open_to_answer(section, folder.string(), flags.allow_other_base),
          is_alone ? std::nullopt : std::optional(static_cast<std::int64_t>(i)));
    }
    if (is_alone) {
      request_.adapter = request_.several.front().folder;
      request_.several.clear();
    }
  }

  const evaluate::GenerateRequest& request() const { return request_; }

  const std::vector<serve::ServedModel>& models() const { return models_; }

 private:
  /// True if the only adapter has trained token rows, which requests for other models could not leave out.
  bool has_token_rows() const {
    for (const auto& [name, folder] : request_.several) {
      if (lora::read_adapter_config(folder).token_rows.empty()) continue;
      if (request_.several.size() == 1) return true;
      throw ConfigError("--adapter " + name,
                        folder.string() +
                            " has new tokens, so it must be served alone. Give it as the only --adapter, or merge it "
                            "and serve the merged folder.");
    }
    return false;
  }

  void add(const std::string& name, lora::ModelFiles files, std::optional<std::int64_t> adapter) {
    if (std::ranges::count(models_, name, &serve::ServedModel::name) > 0) {
      parser_.refuse("--adapter", fmt::format("two models have the name \"{}\"; give NAME=DIR.", name));
    }
    const auto* const tokenizer = files.tokenizer.get();
    const auto* const chat_template = files.chat_template.get();
    const auto vocab_size = std::max(static_cast<std::int32_t>(files.config.vocab_size), tokenizer->vocab_size());
    models_.push_back({name, tokenizer, chat_template, tokenizer::stop_token_ids(*tokenizer, chat_template), vocab_size,
                       adapter, takes_raw_prompts(parser_, raw_, "", files)});
    files_.push_back(std::move(files));
  }

  const CommandParser& parser_;
  const bool raw_;
  evaluate::GenerateRequest request_;
  std::vector<serve::ServedModel> models_;
  std::vector<lora::ModelFiles> files_;  ///< the files that requests for them need
};

std::string key_from_environment() {
  const char* const key = std::getenv(kKeyVariable);
  return key == nullptr ? "" : key;
}

/// A line to try, with the model named last, which is the trained one.
std::string curl_line(const std::string& url, const serve::ServedModel& model, bool has_key) {
  using Json = nlohmann::ordered_json;
  const bool is_chat = model.chat_template != nullptr && !model.is_raw;
  Json body = {{"model", model.name}};
  if (is_chat) {
    body["messages"] = Json::array({Json{{"role", "user"}, {"content", "Hello"}}});
  } else {
    body["prompt"] = "Hello";
  }
  return fmt::format("curl {}{} -H 'Content-Type: application/json'{} -d {}", url,
                     is_chat ? "/v1/chat/completions" : "/v1/completions",
                     has_key ? fmt::format(" -H \"Authorization: Bearer ${}\"", kKeyVariable) : "",
                     shell_line({body.dump()}));
}

void announce(const std::string& url, const std::vector<serve::ServedModel>& models, bool has_key, bool as_json) {
  std::vector<std::string> names;
  for (const auto& model : models) names.push_back(model.name);
  log_info("serving {}/v1 (models: {}; {})", url, join(names),
           has_key ? std::string("with the key in $") + kKeyVariable : std::string("no key needed"));
  log_info("try: " + curl_line(url, models.back(), has_key));
  if (as_json) print_text(nlohmann::ordered_json{{"url", url}, {"models", names}, {"has_key", has_key}}.dump() + "\n");
}

/// From the loaded weights to the last answer.
void run_server(const Serving& serving, const serve::ListeningSocket& socket, const ServeFlags& flags, bool as_json) {
  const std::string key = key_from_environment();
  const std::vector<serve::ServedModel>& models = serving.models();
  serve::RequestBoard board(flags.queue);
  serve::Service service({models, key, flags.max_new_tokens}, board);
  serve::HttpServer server(service, socket);
  std::optional<serve::Drain> drain;
  board.when_started = [&] {
    server.start();
    drain.emplace(server, board);
    announce(socket.url(), models, !key.empty(), as_json);
  };
  log_totals([&] { return load_engine().serve(serving.request(), board); });
  if (drain) drain->finish();
}

}  // namespace

int run_serve(const std::vector<std::string>& arguments) {
  keep_stop_requests();
  CommandParser parser("serve", "Serves a model and its adapters to any client of OpenAI's API.");
  const ProfileFlags profile_flags(parser, {kModelFlag, kTemplateFlag});
  ServeFlags flags;
  add_serve_flags(parser, flags);
  if (!parser.parse(arguments)) return 0;
  if (const std::string missing = serve::missing_http_library(); !missing.empty()) throw ConfigError("serve", missing);
  const Serving serving(parser, flags, profile_flags);
  const serve::ListeningSocket socket(flags.host, flags.port);
  if (!socket.is_loopback() && key_from_environment().empty()) {
    parser.refuse("--host", fmt::format("{} can be reached by other machines: put a key into ${} first.", flags.host,
                                        kKeyVariable));
  }
  run_server(serving, socket, flags, parser.common().json);
  return 0;
}

}  // namespace lora_train::cli
