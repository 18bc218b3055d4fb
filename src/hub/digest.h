// The hashes by which the hub names contents, and base64.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lora_train::hub {

enum class DigestKind {
  kSha256,  ///< of files in large file storage
  kGitSha1  ///< of a file in git: SHA-1 of "blob SIZE\0" and its bytes
};

class Digest {
 public:
  /// `num_bytes`: how many will come; kGitSha1 hashes the number too.
  Digest(DigestKind kind, std::uint64_t num_bytes);
  ~Digest();
  void update(std::string_view bytes);
  /// In lower-case hexadecimal. The last call.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// With padding, in one line.
std::string base64(std::string_view bytes);

}  // namespace lora_train::hub
