#include "token_cache.h"

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "stage_folder.h"

namespace lora_train::data {
namespace {

constexpr std::size_t kPiece = std::size_t{16} << 20;  // bytes copied between two looks for a stop

namespace fs = std::filesystem;

std::shared_ptr<const TokenTable> open_if_good(const fs::path& file, const std::string& key) {
  std::error_code error;
  if (!fs::exists(file, error)) {
    return nullptr;
  }
  try {
    return TokenTable::open(file, key);
  } catch (const Error& problem) {
    log_warning(std::string(problem.what()) + " It is rebuilt.");
    fs::remove(file, error);
    return nullptr;
  }
}

}  // namespace

TokenCache::TokenCache(fs::path folder, std::string stage_dir)
    : folder_(std::move(folder)), stage_dir_(std::move(stage_dir)), stage_folder_(find_stage_folder(stage_dir_)) {}

fs::path TokenCache::file_of(const fs::path& folder, const std::string& key) const {
  return folder / (key + ".tokens");
}

std::shared_ptr<const TokenTable> TokenCache::find(const std::string& key) const {
  return folder_.empty() ? nullptr : open_if_good(file_of(folder_, key), key);
}

TokenTableWriter TokenCache::writer(const std::string& key) const {
  if (folder_.empty()) {
    return {fs::path(), key};
  }
  try {
    fs::create_directories(folder_);
    return {file_of(folder_, key), key};
  } catch (const std::exception& error) {
    log_warning(std::string("the token cache cannot be written; this run keeps its rows in memory: ") + error.what() +
                ". Set dataset_prepared_path to a writable folder");
    return {fs::path(), key};
  }
}

std::shared_ptr<const TokenTable> TokenCache::staged(std::shared_ptr<const TokenTable> table,
                                                     const std::string& key) const {
  if (stage_folder_.empty() || table->path().empty()) {
    return table;
  }
  const fs::path file = file_of(stage_folder_, key);
  try {
    make_stage_folder(stage_dir_, stage_folder_);
    if (auto there = is_own_file(file) ? open_if_good(file, key) : nullptr) {
      log_info("stage_dir: " + file.string() + " exists already");
      return there;
    }
    const std::string_view source = table->bytes();
    const auto room = fs::space(stage_folder_).available;
    if (room < source.size()) {
      throw IoError(stage_folder_.string(), "has " + format_bytes(static_cast<double>(room)) + " free, " +
                                                format_bytes(static_cast<double>(source.size())) + " needed");
    }
    AtomicFileWriter copy(file, source.size());
    for (std::size_t begin = 0; begin < source.size(); begin += kPiece) {
      throw_if_stop_requested();
      copy.write(source.substr(begin, kPiece));
    }
    copy.commit();
    log_info("stage_dir: copied " + format_bytes(static_cast<double>(source.size())) + " to " + file.string());
    return TokenTable::open(file, key);
  } catch (const StopError&) {
    throw;
  } catch (const std::exception& error) {
    log_warning("stage_dir is not used; tokens are read from " + table->path().string() + ": " + error.what());
    return table;
  }
}

}  // namespace lora_train::data
