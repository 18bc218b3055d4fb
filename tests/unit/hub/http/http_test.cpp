#include <gtest/gtest.h>

#include "http/retry.h"
#include "lora_train/hub/http/url.h"

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

TEST(Retry, RepeatsWhatMayPass) {
  for (const int status : {408, 429, 500, 502, 503, 504, 529}) EXPECT_TRUE(is_transient(status)) << status;
  for (const int status : {200, 206, 302, 400, 401, 403, 404, 409, 416, 501, 505, 600})
    EXPECT_FALSE(is_transient(status));
}

TEST(Retry, DelaysDoubleUpToHalfAMinuteWithJitter) {
  EXPECT_DOUBLE_EQ(retry_delay(0, 0.5, 0), 0.25);
  EXPECT_DOUBLE_EQ(retry_delay(0, 0.5, 1), 0.5);
  EXPECT_DOUBLE_EQ(retry_delay(3, 0.5, 1), 4);
  EXPECT_DOUBLE_EQ(retry_delay(1000, 0.5, 1), 30);
  EXPECT_DOUBLE_EQ(retry_delay(1000, 0.5, 0), 15);
}

TEST(Retry, RetryAfterIsSecondsOrADate) {
  EXPECT_EQ(parse_retry_after(" 7 ", 0), 7);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 60), 40);
  EXPECT_EQ(parse_retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 200), 0);
  for (const char* none : {"", "soon", "-1", "1.5", "Thu, 01 Jan"}) EXPECT_FALSE(parse_retry_after(none, 0)) << none;
}

TEST(Retry, ContentRangeBegins) {
  EXPECT_EQ(content_range_begin("bytes 100-199/1000"), 100U);
  EXPECT_EQ(content_range_begin("bytes 0-0/*"), 0U);
  for (const char* none : {"", "bytes */1000", "items 0-1/2", "bytes x-1/2", "bytes 12"})
    EXPECT_FALSE(content_range_begin(none));
}

}  // namespace
}  // namespace lora_train::hub
