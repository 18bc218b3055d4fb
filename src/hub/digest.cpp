#include "digest.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include "lora_train/base/text.h"

namespace lora_train::hub {

struct Digest::State {
  DigestKind kind;
  SHA256_CTX sha256;
  SHA_CTX sha1;
};

Digest::Digest(DigestKind kind, std::uint64_t num_bytes) : state_(std::make_unique<State>()) {
  state_->kind = kind;
  ::SHA256_Init(&state_->sha256);
  ::SHA1_Init(&state_->sha1);
  if (kind == DigestKind::kGitSha1) update("blob " + std::to_string(num_bytes) + std::string(1, '\0'));
}

Digest::~Digest() = default;

void Digest::update(std::string_view bytes) {
  if (state_->kind == DigestKind::kSha256)
    ::SHA256_Update(&state_->sha256, bytes.data(), bytes.size());
  else
    ::SHA1_Update(&state_->sha1, bytes.data(), bytes.size());
}

std::string Digest::hex() {
  unsigned char bytes[SHA256_DIGEST_LENGTH];
  const bool is_sha256 = state_->kind == DigestKind::kSha256;
  is_sha256 ? ::SHA256_Final(bytes, &state_->sha256) : ::SHA1_Final(bytes, &state_->sha1);
  std::string text;
  for (int i = 0; i < (is_sha256 ? SHA256_DIGEST_LENGTH : SHA_DIGEST_LENGTH); ++i)
    text += string_printf("%02x", bytes[i]);
  return text;
}

std::string base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // and the zero that OpenSSL appends
  const int length =
      ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                        reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

}  // namespace lora_train::hub
