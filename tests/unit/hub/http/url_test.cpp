#include "lora_train/hub/http/url.h"

#include <gtest/gtest.h>

namespace lora_train::hub {
namespace {

TEST(Url, EncodesWhatIsNoPath) {
  EXPECT_EQ(encode_path("data/a b#1?.json"), "data/a%20b%231%3F.json");
  EXPECT_EQ(encode_part("refs/pr/1"), "refs%2Fpr%2F1");
  EXPECT_EQ(encode_path("\xC3\xA4~._-Z9"), "%C3%A4~._-Z9");
}

TEST(Url, OriginHasSchemeHostAndPort) {
  EXPECT_EQ(origin_of("https://Hub.Example/a/b?c"), "https://hub.example:443");
  EXPECT_EQ(origin_of("http://user:secret@host:8080/x"), "http://host:8080");
  EXPECT_EQ(origin_of("HTTP://[::1]/x"), "http://[::1]:80");
  EXPECT_EQ(origin_of("http://[::1]:81"), "http://[::1]:81");
  for (const char* none : {"", "ftp://host/x", "host/x", "https://", "file:///etc/passwd"})
    EXPECT_EQ(origin_of(none), "");
}

TEST(Url, AtSignInThePathIsNoUser) {
  EXPECT_EQ(origin_of("https://host/a@evil.example/b"), "https://host:443");
  EXPECT_EQ(origin_of("https://host?a@evil.example"), "https://host:443");
}

TEST(Url, IsShownWithoutSecrets) {
  EXPECT_EQ(shown_url("https://user:secret@host/a?X-Signature=1#f"), "https://host/a");
  EXPECT_EQ(shown_url("no url?x"), "no url");
}

TEST(Url, RedirectsNeverLeaveHttpNorTls) {
  EXPECT_TRUE(may_redirect("http://a/", "https://b/"));
  EXPECT_TRUE(may_redirect("http://a/", "http://b/"));
  EXPECT_TRUE(may_redirect("https://a/", "https://b/"));
  EXPECT_FALSE(may_redirect("https://a/", "http://a/"));
  EXPECT_FALSE(may_redirect("http://a/", "file:///etc/passwd"));
  EXPECT_FALSE(may_redirect("http://a/", ""));
}

}  // namespace
}  // namespace lora_train::hub
