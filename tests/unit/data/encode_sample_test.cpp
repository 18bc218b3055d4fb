#include "data/encode_sample.h"

#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "lora_train/base/error.h"
#include "lora_train/tokenizer/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/test_data.h"

namespace lora_train::data {
namespace {

// The text of a row with its trained stretches in brackets.
std::string show(const EncodedSample& sample) {
  std::string out;
  bool is_open = false;
  for (std::size_t i = 0; i <= sample.ids.size(); ++i) {
    const bool is_trained = i < sample.ids.size() && sample.labels[i] != -100;
    out += is_trained == is_open ? "" : is_trained ? "[" : "]";
    is_open = is_trained;
    if (i < sample.ids.size()) {
      EXPECT_TRUE(!is_trained || sample.labels[i] == sample.ids[i]);
      out += ByteTokenizer().decode(std::span(sample.ids).subspan(i, 1), false);
    }
  }
  return out;
}

class EncodeSample : public testing::Test {
 protected:
  std::string encode(const Sample& sample, LossOn loss_on) const {
    return show(encode_sample(sample, {&tokenizer_, &template_, loss_on, 0}));
  }

  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  const ChatSample chat_{
      {{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}}, 0, {}, {}};
  const ChatSample pair_{{{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}}, 3, {}, {}};
};

TEST_F(EncodeSample, TrainsAssistantTurnsOfChats) {
  EXPECT_EQ(encode(chat_, LossOn::kAuto), "system:s.user:a.assistant:[b.]user:c.assistant:[d.]");
  EXPECT_EQ(encode(chat_, LossOn::kAssistant), "system:s.user:a.assistant:[b.]user:c.assistant:[d.]");
}

TEST_F(EncodeSample, TrainsTheLastTurnOrAll) {
  EXPECT_EQ(encode(chat_, LossOn::kLast), "system:s.user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(chat_, LossOn::kAll), "[system:s.user:a.assistant:b.user:c.assistant:d.]");
}

TEST_F(EncodeSample, LastMeansTheLastAssistantTurnWhereverItStands) {
  const ChatSample chat{{{"assistant", "a"}, {"assistant", "b"}, {"user", "c"}}, 0, {}, {}};
  EXPECT_EQ(encode(chat, LossOn::kLast), "assistant:a.assistant:[b.]user:c.");
}

TEST_F(EncodeSample, TrainsOnlyTheCompletionOfMessageLists) {
  EXPECT_EQ(encode(pair_, LossOn::kAuto), "user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(pair_, LossOn::kCompletion), "user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(pair_, LossOn::kAssistant), "user:a.assistant:[b.]user:c.assistant:[d.]");
}

TEST_F(EncodeSample, ChatWithoutAnAssistantTurnTrainsNothing) {
  const ChatSample chat{{{"user", "a"}}, 0, {}, {}};
  for (const LossOn loss_on : {LossOn::kAuto, LossOn::kLast}) {
    EXPECT_EQ(encode(chat, loss_on), "user:a.");
  }
}

ChatSample with_marks(ChatSample chat, std::vector<TurnMark> marks) {
  chat.marks = std::move(marks);
  return chat;
}

TEST_F(EncodeSample, MarkedTurnsAreNotTrained) {
  using enum TurnMark;
  const ChatSample first = with_marks(chat_, {kNone, kSkip, kSkip, kNone, kTrain});
  const ChatSample last = with_marks(chat_, {kNone, kNone, kTrain, kNone, kSkip});
  EXPECT_EQ(encode(first, LossOn::kAuto), "system:s.user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(last, LossOn::kAssistant), "system:s.user:a.assistant:[b.]user:c.assistant:d.");
  EXPECT_EQ(encode(first, LossOn::kLast), "system:s.user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(last, LossOn::kLast), "system:s.user:a.assistant:b.user:c.assistant:d.");
  EXPECT_EQ(encode(with_marks(pair_, {kNone, kTrain, kNone, kSkip}), LossOn::kCompletion),
            "user:a.assistant:b.user:c.assistant:d.");
  EXPECT_EQ(encode(with_marks(pair_, {kNone, kTrain}), LossOn::kAuto), "user:a.assistant:b.user:c.assistant:[d.]");
}

TEST_F(EncodeSample, AllLeavesMarkedTurnsOut) {
  using enum TurnMark;
  EXPECT_EQ(encode(with_marks(chat_, {kTrain, kNone, kSkip, kNone, kNone}), LossOn::kAll),
            "[system:s.user:a.assistant:]b.[user:c.assistant:d.]");
  EXPECT_EQ(encode(with_marks(chat_, {kNone, kNone, kSkip, kNone, kSkip}), LossOn::kAll),
            "[system:s.user:a.assistant:]b.[user:c.assistant:]d.");
}

TEST_F(EncodeSample, AllTrainsNoTokenThatTouchesAMarkedTurn) {
  LORA_TRAIN_REQUIRE_DATA(folder, "mistral/v3");
  const auto tokenizer = tokenizer::Tokenizer::load(folder);
  const auto chat_template = tokenizer::ChatTemplate::load(folder);
  const ChatSample chat{{{"user", "a"}, {"assistant", "hello there"}, {"user", "c"}, {"assistant", "d"}}, 0, {}, {}};
  const EncodeOptions options{tokenizer.get(), chat_template.get(), LossOn::kAll, 0};
  const ChatSample marked = with_marks(chat, {TurnMark::kNone, TurnMark::kSkip, TurnMark::kNone, TurnMark::kNone});
  EncodeOptions only_turns = options;
  only_turns.loss_on = LossOn::kAssistant;
  const ChatSample others = with_marks(chat, {TurnMark::kNone, TurnMark::kNone, TurnMark::kNone, TurnMark::kSkip});
  const auto all = encode_sample(marked, options).labels, turn = encode_sample(others, only_turns).labels;
  ASSERT_EQ(all.size(), turn.size());
  std::size_t num_skipped = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_NE(all[i] == -100, turn[i] == -100) << "token " << i << ": of the marked turn and trained, or neither";
    num_skipped += all[i] == -100 ? 1 : 0;
  }
  EXPECT_GE(num_skipped, 3U);
}

TEST_F(EncodeSample, RefusesMarksItCannotHonour) {
  using enum TurnMark;
  const auto refusal = [&](const ChatSample& chat, LossOn loss_on) -> std::string {
    try {
      encode(chat, loss_on);
    } catch (const DataError& error) {
      return error.message();
    }
    return "accepted";
  };
  const ChatSample user_trained = with_marks(chat_, {kNone, kTrain}), user_skipped = with_marks(chat_, {kNone, kSkip});
  EXPECT_EQ(refusal(user_trained, LossOn::kAuto).find("message 1 (user) is marked to be trained"), 0U);
  EXPECT_EQ(refusal(user_trained, LossOn::kAll), "accepted");
  EXPECT_EQ(refusal(user_skipped, LossOn::kAuto), "accepted");
  EXPECT_EQ(refusal(user_skipped, LossOn::kAll).find("message 1 (user) is marked not to be trained"), 0U);
}

TEST_F(EncodeSample, AddsEosToTextAndTrainsIt) {
  EXPECT_EQ(encode(TextSample{"", "abc"}, LossOn::kAuto), "[abc</s>]");
  EXPECT_EQ(encode(TextSample{"ab", "c"}, LossOn::kAuto), "ab[c</s>]");
  EXPECT_EQ(encode(TextSample{"ab", "c"}, LossOn::kAll), "[abc</s>]");
  EXPECT_EQ(encode(TextSample{"ab", ""}, LossOn::kAuto), "ab[</s>]");
}

TEST_F(EncodeSample, AddsBosWhereHuggingFaceDoes) {
  const ByteTokenizer with_bos(true);
  EXPECT_EQ(show(encode_sample(TextSample{"", "a"}, {&with_bos, nullptr, LossOn::kAuto, 0})), "<s>[a</s>]");
  EXPECT_EQ(show(encode_sample(chat_, {&with_bos, &template_, LossOn::kAuto, 0})).substr(0, 8), "system:s");
}

TEST_F(EncodeSample, TakesLabelsOfPretokenisedRowsAsTheyAre) {
  EXPECT_EQ(encode(TokenSample{{97, 98}, {-100, 98}}, LossOn::kAuto), "a[b]");
  EXPECT_EQ(encode(TokenSample{{97, 98}, {-100, 98}}, LossOn::kAll), "[ab]");
  EXPECT_EQ(encode(TokenSample{{97, 98}, {}}, LossOn::kAll), "[ab]");
  EXPECT_THROW(encode(TokenSample{{97, 98}, {}}, LossOn::kAuto), DataError);
}

TEST_F(EncodeSample, RefusesIdsAndLabelsOutsideTheVocabulary) {
  const auto refusal = [&](const Sample& sample, std::int64_t vocab_size) -> std::string {
    try {
      encode_sample(sample, {&tokenizer_, nullptr, LossOn::kAuto, vocab_size});
    } catch (const DataError& error) {
      return error.message();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal(TokenSample{{0, 9}, {0, 9}}, 10), "accepted");
  EXPECT_NE(refusal(TokenSample{{0, 10}, {0, 9}}, 10).find("input_ids[1] is 10"), std::string::npos);
  EXPECT_NE(refusal(TokenSample{{0, 9}, {-100, 10}}, 10).find("labels[1] is 10"), std::string::npos);
  EXPECT_NE(refusal(TextSample{"", "a"}, 257).find("input_ids[1] is 257"), std::string::npos);
}

TEST_F(EncodeSample, ReportsContentThatTheTemplateLeavesOut) {
  const ChatSample chat{{{"system", "hidden"}, {"assistant", "b"}}, 0, {}, {}};
  EXPECT_EQ(encode_sample(chat, {&tokenizer_, &template_, LossOn::kAuto, 0}).not_rendered,
            "messages[0].content (system)");
  EXPECT_EQ(encode_sample(chat_, {&tokenizer_, &template_, LossOn::kAuto, 0}).not_rendered, "");
}

TEST_F(EncodeSample, CarriesToolsAndVariablesToTheTemplate) {
  const ChatSample chat{{{"assistant", "b"}}, 0, "[T]", "{K}"};
  EXPECT_EQ(encode(chat, LossOn::kAuto), "[T]{K}assistant:[b.]");
}

TEST_F(EncodeSample, TemplateRefusalIsADataError) {
  try {
    encode(ChatSample{{{"tool", "x"}}, 0, {}, {}}, LossOn::kAuto);
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_EQ(error.where(), "");
    EXPECT_NE(error.message().find("plain:1: a chat cannot begin with a tool"), std::string::npos);
  }
}

TEST_F(EncodeSample, ChecksThatLossOnFitsTheLayout) {
  const auto check = [&](DatasetType type, LossOn loss_on) {
    check_loss_on(type, {&tokenizer_, &template_, loss_on, 0});
  };
  EXPECT_NO_THROW(check(DatasetType::kMessages, LossOn::kLast));
  EXPECT_NO_THROW(check(DatasetType::kPromptCompletion, LossOn::kCompletion));
  EXPECT_THROW(check(DatasetType::kMessages, LossOn::kCompletion), ConfigError);
  EXPECT_THROW(check(DatasetType::kText, LossOn::kAssistant), ConfigError);
  EXPECT_THROW(check(DatasetType::kPretokenized, LossOn::kLast), ConfigError);
}

TEST_F(EncodeSample, SaysWhatIsMissing) {
  EXPECT_THROW(check_loss_on(DatasetType::kText, {nullptr, nullptr, LossOn::kAuto, 0}), FormatError);
  EXPECT_THROW(check_loss_on(DatasetType::kMessages, {&tokenizer_, nullptr, LossOn::kAuto, 0}), FormatError);
  EXPECT_NO_THROW(check_loss_on(DatasetType::kPretokenized, {nullptr, nullptr, LossOn::kAuto, 0}));
  EXPECT_THROW(encode_sample(pair_, {&tokenizer_, nullptr, LossOn::kAuto, 0}), FormatError);
}

}  // namespace
}  // namespace lora_train::data
