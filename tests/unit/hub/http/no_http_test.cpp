// The module as a build without libcurl's headers has it: this links without the sources that need libcurl.
#include <gtest/gtest.h>

#include "lora_train/hub/http/client.h"
#include "lora_train/hub/http/url.h"

namespace lora_train::hub {
namespace {

TEST(NoHttp, IsRefusedByNameWhereARequestWouldBeSent) {
  try {
    Client client;
    FAIL() << client.send({.url = "http://127.0.0.1"}).status;
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("install libcurl4-openssl-dev"), std::string::npos) << error.what();
  }
}

TEST(NoHttp, HasWhatNeedsNoNetwork) {
  const Answer answer{.status = 200, .headers = {{"Retry-After", "1"}}};
  EXPECT_EQ(answer.header("retry-after"), "1");
  EXPECT_TRUE(answer.is_ok());
  EXPECT_GE(ClientOptions().num_retries, 0);
}

}  // namespace
}  // namespace lora_train::hub
