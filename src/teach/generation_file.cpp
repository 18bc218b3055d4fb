#include "lora_train/teach/generation_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/file_ops.h"
#include "lora_train/base/log.h"

namespace lora_train::teach {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWaysOn = "Give another --output, or delete it together with its .settings.json";

Json parsed(std::string_view text) { return Json::parse(text, nullptr, /*allow_exceptions=*/false); }

/// The complete lines of a text, with their ends.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin) + 1;
    lines.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return lines;
}

/// The prompt that a line answers; nothing if the line is not ours.
std::optional<std::size_t> index_of(const Json& line) {
  if (!line.is_object()) return std::nullopt;
  const auto index = line.find("index");
  if (index == line.end() || !index->is_number_unsigned() || !line.contains("prompt")) return std::nullopt;
  return index->get<std::size_t>();
}

std::vector<std::string> in_order_of_prompts(std::string_view text, std::size_t num_prompts) {
  std::vector<std::string> lines(num_prompts);
  for (const std::string_view line : lines_of(text)) lines[index_of(parsed(line)).value()] = line;
  return lines;
}

}  // namespace

GenerationSettings sampling_settings(const SamplingOptions& sampling) {
  GenerationSettings settings;
  for_each_sampling_option([&](const char* name, auto member, const SamplingRange&) {
    settings.emplace_back(name, Json(sampling.*member).dump());
  });
  settings.emplace_back("seed", sampling.temperature > 0 ? Json(sampling.seed).dump() : "null");
  return settings;
}

GenerationFile::GenerationFile(std::string program, std::filesystem::path path, const GenerationSettings& settings,
                               const std::vector<std::string>& prompts)
    : program_(std::move(program)), path_(std::move(path)), is_done_(prompts.size(), false) {
  open();
  if (!is_regular_) return;
  const std::string text = read_file(path_);
  const std::size_t last_end = text.rfind('\n');
  size_ = last_end == std::string::npos ? 0 : last_end + 1;
  // Reads all of it before changing anything: the file may be someone else's.
  check_torn_line(std::string_view(text).substr(size_));
  if (size_ > 0 && std::filesystem::exists(settings_path())) check_settings(settings);
  read_lines(std::string_view(text).substr(0, size_), prompts);
  if (num_done() > 0) check_settings(settings);
  if (size_ != text.size()) {
    log_warning(path_.string() + ": the last line is incomplete; its prompt is answered again");
    cut_off();
  }
  if (num_done() > 0) return;
  check_settings_file(settings);
  Json object = Json::object();
  for (const auto& [name, value] : settings) object[name] = parsed(value);
  write_file_atomic(settings_path(), object.dump(1) + "\n");
}

void GenerationFile::open() {
  file_ = FileDescriptor(file_ops().open(path_.string(), O_RDWR | O_CREAT | O_APPEND));
  if (!file_.is_open()) fail_with(path_, "cannot open the file for appending");
  is_regular_ = std::filesystem::is_regular_file(path_);
  if (is_regular_ && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw ConfigError(path_.string(), "another process is writing this file. Wait for it, or give another --output");
  }
}

/// A torn line that a killed process left must begin like all our lines.
void GenerationFile::check_torn_line(std::string_view rest) const {
  constexpr std::string_view kBegin = "{\"index\":";
  if (rest.starts_with(kBegin) || kBegin.starts_with(rest)) return;
  throw ConfigError(path_.string(), "was not written by {}: its last line has another form. Give another --output",
                    program_);
}

void GenerationFile::cut_off() const {
  if (file_ops().truncate(file_.get(), size_) != 0) fail_with(path_, "cannot shorten the file");
}

void GenerationFile::read_lines(std::string_view text, const std::vector<std::string>& prompts) {
  std::size_t number = 0;
  for (const std::string_view line : lines_of(text)) {
    const std::string where = fmt::format("{}:{}", path_.string(), ++number);
    const Json object = parsed(line);
    const auto index = index_of(object);
    if (!index) throw ConfigError(where, program_ + " did not write this line. Give another --output");
    if (*index >= prompts.size()) {
      throw ConfigError(where, "answers prompt {}, but the last prompt is now prompt {}. {}", *index + 1,
                        prompts.size(), kWaysOn);
    }
    if (object["prompt"] != parsed(prompts[*index])) {
      throw ConfigError(where, "answers prompt {}, but that prompt has changed since. {}", *index + 1, kWaysOn);
    }
    is_done_[*index] = true;
  }
}

void GenerationFile::check_settings_file(const GenerationSettings& settings) const {
  const PathKind kind = path_kind(settings_path());
  if (kind == PathKind::kNone) return;
  const bool is_ours = kind == PathKind::kFile && parsed(read_file(settings_path())).contains(settings.front().first);
  if (is_ours) return;
  throw ConfigError(settings_path().string(),
                    "was not written by {}, which keeps the settings of the answers under this name. Give another "
                    "--output, or move that file",
                    program_);
}

void GenerationFile::check_settings(const GenerationSettings& settings) const {
  if (!std::filesystem::exists(settings_path())) {
    throw ConfigError(settings_path().string(), "is missing, so the settings of " + path_.string() +
                                                    " are unknown. Give another --output, or delete that file");
  }
  const Json old = parsed(read_file(settings_path()));
  std::string differences;
  for (const auto& [name, value] : settings) {
    const Json before = old.is_object() && old.contains(name) ? old[name] : Json();
    if (before != parsed(value)) differences += fmt::format("\n  {}: {} -> {}", name, before.dump(), value);
  }
  if (differences.empty()) return;
  throw ConfigError(path_.string(), "was written with other settings:{}\nUse the same settings to resume. {}",
                    differences, kWaysOn);
}

std::size_t GenerationFile::num_done() const {
  return static_cast<std::size_t>(std::count(is_done_.begin(), is_done_.end(), true));
}

void GenerationFile::append(std::size_t i, const std::string& line) {
  const std::string whole = line + "\n";
  if (write_all(file_.get(), whole) != whole.size()) {
    const int code = errno;
    if (is_regular_)
      file_ops().truncate(file_.get(),
                          size_);  // removes a torn line; if that fails, the next call cuts it off
    fail_with(path_, "cannot append a line", code);
  }
  size_ += whole.size();
  is_done_[i] = true;
}

std::vector<std::string> GenerationFile::lines() const {
  return in_order_of_prompts(read_file(path_), is_done_.size());
}

void GenerationFile::finish() {
  if (!is_regular_) return;
  const std::string text = read_file(path_);
  std::string sorted;
  for (const std::string& line : in_order_of_prompts(text, is_done_.size())) sorted += line;
  if (sorted != text) return write_file_atomic(path_, sorted);
  if (file_ops().sync(file_.get()) != 0) fail_with(path_, "cannot sync");
}

}  // namespace lora_train::teach
