#include <gtest/gtest.h>

#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::tokenizer {
namespace {

// An example is the same in every epoch and after a resume, whatever the day.
TEST(TemplateTime, IsThatOfTheRun) {
  const auto chat_template = ChatTemplate::parse("{{ strftime_now('%Y-%m-%d') }}|{{ messages[0].content }}", "t");
  const Message message{"user", "x"};
  set_template_time(1'000'000'000);  // 2001-09-09 in every time zone but the westernmost
  const std::string fixed = chat_template->render({&message, 1}).text;
  EXPECT_EQ(fixed.substr(0, 8), "2001-09-");
  EXPECT_EQ(template_time(), 1'000'000'000);
  set_template_time(-1);
  EXPECT_GT(template_time(), 1'700'000'000);
  EXPECT_NE(chat_template->render({&message, 1}).text, fixed);
}

}  // namespace
}  // namespace lora_train::tokenizer
