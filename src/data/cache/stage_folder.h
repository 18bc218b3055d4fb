// stage_dir: the folder on a local disk that the token cache is copied to. Others may have put files there.
#pragma once

#include <filesystem>
#include <string>

namespace lora_train::data {

/// The folder that stage_dir names, with `auto` as lora-train-stage-<user id> in the temporary folder. Throws ConfigError if it is
/// there and not a folder, or a folder or link of another user (root's are good), or one whose files others may replace.
std::filesystem::path find_stage_folder(const std::string& stage_dir);

/// Creates the folder, for this user only, if it is missing. One that `auto` named must be private. Throws IoError.
void make_stage_folder(const std::string& stage_dir, const std::filesystem::path& folder);

/// False if the file is a link, not a regular file, or written by another user. Throws nothing.
bool is_own_file(const std::filesystem::path& file);

}  // namespace lora_train::data
