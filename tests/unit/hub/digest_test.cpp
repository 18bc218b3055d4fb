#include <gtest/gtest.h>

#include "hub_api.h"

namespace lora_train::hub {
namespace {

TEST(Digest, Sha256OfTheStandard) {
  Digest digest(DigestKind::kSha256, 3);
  digest.update("a");
  digest.update("bc");
  EXPECT_EQ(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Digest, GitSha1IsWhatGitHashObjectPrints) {
  EXPECT_EQ(Digest(DigestKind::kGitSha1, 0).hex(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  Digest digest(DigestKind::kGitSha1, 6);
  digest.update("hello\n");
  EXPECT_EQ(digest.hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
}

}  // namespace
}  // namespace lora_train::hub
