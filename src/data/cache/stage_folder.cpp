#include "stage_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/storage/private_folder.h"

namespace lora_train::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAuto = "auto";

/// Empty if the folder is missing or good.
std::string problem_of(const fs::path& folder) {
  const auto is_foreign = [](const struct stat& info) { return info.st_uid != ::geteuid() && info.st_uid != 0; };
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return {};
  if (is_foreign(info)) return "belongs to user " + std::to_string(info.st_uid);
  if (::stat(folder.c_str(), &info) != 0) return "is a link to nothing";
  if (!S_ISDIR(info.st_mode)) return "is not a folder";
  if (is_foreign(info)) return "is a link to a folder of user " + std::to_string(info.st_uid);
  if ((info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0)
    return "is writable for everybody (chmod o-w closes it)";
  return {};
}

}  // namespace

fs::path find_stage_folder(const std::string& stage_dir) {
  // Nobody chose the folder of `auto`: what is wrong with it is a warning, here or when it is made, and the run goes on without.
  if (stage_dir == kAuto) {
    std::error_code error;
    const fs::path temporary = fs::temp_directory_path(error);
    if (!error) return temporary / ("lora-train-stage-" + std::to_string(::geteuid()));
    log_warning("stage_dir: there is no folder for temporary files (TMPDIR, else /tmp): files are read where they are");
    return {};
  }
  const fs::path folder = stage_dir;
  if (const std::string problem = stage_dir.empty() ? "" : problem_of(folder); !problem.empty()) {
    throw ConfigError("stage_dir",
                      folder.string() + " " + problem +
                          ": others could put their data in the place of yours. Name a folder of your own, "
                          "or auto");
  }
  return folder;
}

void make_stage_folder(const std::string& stage_dir, const fs::path& folder) {
  if (stage_dir == kAuto || !fs::exists(folder)) storage::make_private_folder(folder);
}

bool is_own_file(const fs::path& file) {
  struct stat info {};
  return ::lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
}

}  // namespace lora_train::data
