#include <gtest/gtest.h>

#include "data/read/example_format.h"
#include "lora_train/base/error.h"

namespace lora_train::data {
namespace {

TEST(FieldMap, LeavesUnreadWhatItHasNoNameFor) {
  const char* example =
      R"({"system": "s", "messages": [{"role": "user", "content": "a", "weight": 3},
          {"role": "assistant", "content": "b", "train": "no", "train_detail": [], "weight": -1}], "tools": 1})";
  const FieldMap map = {{"train", ""}, {"weight", ""}, {"tools", ""}, {"system", ""}};
  const auto sample =
      std::get<ChatSample>(parse_example(parse_json_example(example).value, DatasetType::kMessages, map));
  EXPECT_EQ(sample.messages.size(), 2u);
  EXPECT_EQ(sample.weights, (std::vector<std::optional<float>>{std::nullopt, std::nullopt}));
  EXPECT_EQ(sample.tools_json, "");
  EXPECT_NO_THROW(check_field_map(map));
  try {
    check_field_map({{"messages", ""}});
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message(),
              "\"messages\" is null; only these can be left unread: train, weight, system, input, history, tools, "
              "chat_template_kwargs");
  }
}

}  // namespace
}  // namespace lora_train::data
