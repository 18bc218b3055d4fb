#include <gtest/gtest.h>

#include "chat/chat_session.h"
#include "lora_train/base/error.h"
#include "unit/data/byte_tokenizer.h"

namespace lora_train::cli {
namespace {

using data::ByteTokenizer;
using data::PlainTemplate;

class Talk : public testing::Test {
 protected:
  std::string ask(const std::string& text) { return tokenizer_.decode(dialogue_.ask(text, "here").ids, true); }
  std::string refusal(const std::string& text) {
    try {
      ask(text);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  Dialogue dialogue_{tokenizer_, template_, 40};
};

TEST_F(Talk, APromptHasAllTurnsBeforeIt) {
  EXPECT_EQ(ask("a"), "user:a.");
  dialogue_.answer("b");
  EXPECT_EQ(ask("c"), "user:a.assistant:b.user:c.");
  dialogue_.answer("d");
  EXPECT_EQ(dialogue_.num_turns(), 2U);
  dialogue_.reset();
  EXPECT_EQ(ask("e"), "user:e.");
}

TEST_F(Talk, ASystemMessageComesFirstAndSurvivesAReset) {
  dialogue_.set_system("s", "here");
  EXPECT_EQ(ask("a"), "system:s.user:a.");
  dialogue_.answer("b");
  dialogue_.reset();
  EXPECT_EQ(ask("c"), "system:s.user:c.");
  dialogue_.answer("");
  dialogue_.set_system("", "here");
  EXPECT_EQ(ask("d"), "user:d.");
}

TEST_F(Talk, AnEmptyAnswerTakesTheQuestionBack) {
  ask("a");
  dialogue_.answer("");
  EXPECT_EQ(dialogue_.num_turns(), 0U);
  EXPECT_EQ(ask("b"), "user:b.");
}

TEST_F(Talk, AFullContextSaysWhatToDoAndForgetsNothing) {
  EXPECT_EQ(refusal(std::string(40, 'x')),
            "here: the message has 46 tokens, and the context of 40 leaves no room for an answer. Shorten it.");
  const data::Prompt prompt = dialogue_.ask("a", "here");
  EXPECT_EQ(dialogue_.room(prompt), 40 - 7);
  dialogue_.answer("bcdef");
  EXPECT_EQ(refusal("01234567890"),
            "here: the conversation has 40 tokens, and the context of 40 leaves no room for an answer. /reset forgets "
            "the conversation.");
  EXPECT_EQ(ask("g"), "user:a.assistant:bcdef.user:g.");
}

/// As Gemma's.
class NoSystem : public PlainTemplate {
  tokenizer::RenderedChat render(std::span<const tokenizer::Message> messages,
                                 const tokenizer::RenderOptions& options) const override {
    if (messages[0].role == "system") throw DataError("plain:1", "System role not supported");
    return PlainTemplate::render(messages, options);
  }
};

TEST_F(Talk, ATemplateWithoutSystemMessagesRefusesOneAtOnce) {
  const NoSystem chat_template;
  Dialogue dialogue(tokenizer_, chat_template, 40);
  EXPECT_THROW(dialogue.set_system("s", "here"), DataError);
  EXPECT_EQ(tokenizer_.decode(dialogue.ask("a", "").ids, true), "user:a.");
}

}  // namespace
}  // namespace lora_train::cli
