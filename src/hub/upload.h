// Large files into the hub's store, by git-lfs's batch protocol with the transfers basic and multipart.
// Source: https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hub_api.h"

namespace lora_train::hub {

struct LargeFile {
  std::filesystem::path file;
  std::uint64_t num_bytes = 0;
  std::string sha256;
};

/// Uploads those that the store lacks; returns how many bytes that were. `count` gets the bytes as they are done, those that the store
/// has at once. Nobody sees the files before a commit names them. Throws IoError.
std::uint64_t upload(Hub& hub, const Repository& repository, const std::string& branch,
                     const std::vector<LargeFile>& files, const std::function<void(std::uint64_t)>& count);

struct UploadPart {
  std::string url;
  std::uint64_t begin = 0, end = 0;
};

/// The parts of a multipart upload by the headers of its action ("chunk_size", and a URL under each number from 1), in order. Throws
/// std::invalid_argument if they do not cover the file.
std::vector<UploadPart> plan_parts(const std::map<std::string, std::string>& headers, std::uint64_t num_bytes);

}  // namespace lora_train::hub
