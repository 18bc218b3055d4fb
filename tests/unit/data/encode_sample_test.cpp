#include "encode/encode_sample.h"

#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "lora_train/base/error.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/test_data.h"

namespace lora_train::data {
namespace {

// The text of an example with its trained stretches in brackets.
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

constexpr std::optional<float> kNone = std::nullopt, kSkip = 0, kTrain = 1;

ChatSample with_weights(ChatSample chat, std::vector<std::optional<float>> weights) {
  chat.weights = std::move(weights);
  return chat;
}

TEST_F(EncodeSample, MarkedTurnsAreNotTrained) {
  const ChatSample first = with_weights(chat_, {kNone, kSkip, kSkip, kNone, kTrain});
  const ChatSample last = with_weights(chat_, {kNone, kNone, kTrain, kNone, kSkip});
  EXPECT_EQ(encode(first, LossOn::kAuto), "system:s.user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(last, LossOn::kAssistant), "system:s.user:a.assistant:[b.]user:c.assistant:d.");
  EXPECT_EQ(encode(first, LossOn::kLast), "system:s.user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(last, LossOn::kLast), "system:s.user:a.assistant:b.user:c.assistant:d.");
  EXPECT_EQ(encode(with_weights(pair_, {kNone, kTrain, kNone, kSkip}), LossOn::kCompletion),
            "user:a.assistant:b.user:c.assistant:d.");
  EXPECT_EQ(encode(with_weights(pair_, {kNone, kTrain}), LossOn::kAuto), "user:a.assistant:b.user:c.assistant:[d.]");
}

TEST_F(EncodeSample, AllLeavesMarkedTurnsOut) {
  EXPECT_EQ(encode(with_weights(chat_, {kTrain, kNone, kSkip, kNone, kNone}), LossOn::kAll),
            "[system:s.user:a.assistant:]b.[user:c.assistant:d.]");
  EXPECT_EQ(encode(with_weights(chat_, {kNone, kNone, kSkip, kNone, kSkip}), LossOn::kAll),
            "[system:s.user:a.assistant:]b.[user:c.assistant:]d.");
}

TEST_F(EncodeSample, AllTrainsNoTokenThatTouchesAMarkedTurn) {
  LORA_TRAIN_REQUIRE_DATA(folder, "mistral/v3");
  const auto tokenizer = tokenizer::Tokenizer::load(folder);
  const auto chat_template = tokenizer::ChatTemplate::load(folder);
  const ChatSample chat{{{"user", "a"}, {"assistant", "hello there"}, {"user", "c"}, {"assistant", "d"}}, 0, {}, {}};
  const EncodeOptions options{tokenizer.get(), chat_template.get(), LossOn::kAll, 0};
  const ChatSample marked = with_weights(chat, {kNone, kSkip, kNone, kNone});
  EncodeOptions only_turns = options;
  only_turns.loss_on = LossOn::kAssistant;
  const ChatSample others = with_weights(chat, {kNone, kNone, kNone, kSkip});
  const auto all = encode_sample(marked, options).labels, turn = encode_sample(others, only_turns).labels;
  ASSERT_EQ(all.size(), turn.size());
  std::size_t num_skipped = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_NE(all[i] == -100, turn[i] == -100) << "token " << i << ": of the marked turn and trained, or neither";
    num_skipped += all[i] == -100 ? 1 : 0;
  }
  EXPECT_GE(num_skipped, 3U);
}

TEST_F(EncodeSample, TokensOfATurnHaveItsWeight) {
  const auto weights_of = [&](const ChatSample& chat, LossOn loss_on) {
    return encode_sample(chat, {&tokenizer_, &template_, loss_on, 0}).weights;
  };
  const auto expect = [&](const ChatSample& chat, LossOn loss_on, float second, float last, float others) {
    const EncodedSample sample = encode_sample(chat, {&tokenizer_, &template_, loss_on, 0});
    ASSERT_EQ(sample.weights.size(), sample.ids.size());
    const std::size_t second_turn = std::string("system:s.user:a.assistant:").size();
    const std::size_t last_turn = std::string("system:s.user:a.assistant:b.user:c.assistant:").size();
    for (std::size_t i = 0; i < sample.ids.size(); ++i) {
      const bool is_second = i >= second_turn && i < second_turn + 2, is_last = i >= last_turn && i < last_turn + 2;
      EXPECT_EQ(sample.weights[i], is_second ? second : is_last ? last : others) << i;
      EXPECT_EQ(sample.weights[i] == 0, sample.labels[i] == kIgnoredLabel) << i;
    }
  };
  const ChatSample both = with_weights(chat_, {kNone, kNone, 0.25F, kNone, 3});
  expect(both, LossOn::kAuto, 0.25F, 3, 0);
  expect(both, LossOn::kLast, 0, 3, 0);
  expect(both, LossOn::kAll, 0.25F, 3, 1);
  expect(with_weights(chat_, {kNone, kNone, 0.25F, kNone, kTrain}), LossOn::kAssistant, 0.25F, 1, 0);
  expect(with_weights(chat_, {kNone, kNone, kSkip, kNone, 2}), LossOn::kAssistant, 0, 2, 0);
  EXPECT_TRUE(weights_of(with_weights(chat_, {kNone, kNone, kSkip, kNone, kTrain}), LossOn::kAuto).empty());
  EXPECT_TRUE(weights_of(with_weights(chat_, {kNone, kNone, 0.5F}), LossOn::kLast).empty())
      << "a turn that is not trained";
}

TEST_F(EncodeSample, RefusesWeightsItCannotHonour) {
  const auto refusal = [&](const ChatSample& chat, LossOn loss_on) -> std::string {
    try {
      encode(chat, loss_on);
    } catch (const DataError& error) {
      return error.message();
    }
    return "accepted";
  };
  const ChatSample user_trained = with_weights(chat_, {kNone, kTrain}),
                   user_skipped = with_weights(chat_, {kNone, kSkip});
  EXPECT_EQ(refusal(user_trained, LossOn::kAuto).find("message 1 (user) is marked as trained"), 0U);
  EXPECT_EQ(refusal(user_trained, LossOn::kAll), "accepted");
  EXPECT_EQ(refusal(user_skipped, LossOn::kAuto), "accepted");
  EXPECT_EQ(refusal(user_skipped, LossOn::kAll).find("message 1 (user) is marked as not trained"), 0U);
  const ChatSample user_weighted = with_weights(chat_, {kNone, 0.5F});
  EXPECT_EQ(refusal(user_weighted, LossOn::kAuto).find("message 1 (user) is marked as trained"), 0U);
  EXPECT_EQ(refusal(user_weighted, LossOn::kAll).find("message 1 (user) is marked as not trained, or with a weight"),
            0U);
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

TEST_F(EncodeSample, TakesLabelsOfPretokenisedExamplesAsTheyAre) {
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

TEST_F(EncodeSample, ReportsTrainedAnswersWithoutContent) {
  const auto empty = [&](const Sample& sample, LossOn loss_on = LossOn::kAuto) {
    return encode_sample(sample, {&tokenizer_, &template_, loss_on, 0}).empty_answer;
  };
  const tokenizer::Message user{"user", ""}, blank{"assistant", " \n"}, answer{"assistant", "b"};
  const auto with = [](const char* fields) {
    return tokenizer::Message{"assistant", "", std::string(R"({"role": "assistant", "content": "")") + fields + "}"};
  };
  EXPECT_EQ(empty(ChatSample{{user, answer}, 0, {}, {}}), "");
  EXPECT_EQ(empty(ChatSample{{user, answer, user, blank}, 0, {}, {}}), "messages[3]");
  EXPECT_EQ(empty(ChatSample{{user, with("")}, 0, {}, {}}), "messages[1]");
  EXPECT_EQ(empty(ChatSample{{user, with(R"(, "tool_calls": [], "reasoning": " ")")}, 0, {}, {}}), "messages[1]");
  EXPECT_EQ(empty(ChatSample{{user, with(R"(, "tool_calls": [{"name": "f"}])")}, 0, {}, {}}), "");
  EXPECT_EQ(empty(ChatSample{{user, with(R"(, "reasoning_content": "so")")}, 0, {}, {}}), "");
  const ChatSample first_is_empty{{blank, answer}, 0, {}, {}};
  EXPECT_EQ(empty(first_is_empty), "messages[0]");
  EXPECT_EQ(empty(first_is_empty, LossOn::kLast), "") << "it is not trained";
  EXPECT_EQ(empty(with_weights(first_is_empty, {kSkip, kNone})), "");
  EXPECT_EQ(empty(TextSample{"a", " "}), "completion");
  EXPECT_EQ(empty(TextSample{"a", "b"}), "");
  EXPECT_EQ(empty(TextSample{"", ""}), "") << "a text, no answer";
}

TEST_F(EncodeSample, RefusesATrainedAnswerOfWhichTheTemplateWritesNothing) {
  const auto plain =
      tokenizer::ChatTemplate::parse("{% for m in messages %}{{ m.role }}:{{ m.content }}.{% endfor %}", "plain", {});
  const auto refusal = [&](const char* content, std::vector<std::optional<float>> weights = {}) -> std::string {
    const std::string fields = R"({"role": "assistant", "content": ")" + std::string(content) +
                               R"(", "tool_calls": [{"function": {"name": "search", "arguments": {"q": "x"}}}]})";
    const ChatSample chat{{{"user", "a"}, {"assistant", content, fields}}, 0, {}, {}, std::move(weights)};
    try {
      return encode_sample(chat, {&tokenizer_, plain.get(), LossOn::kAuto, 0}).not_rendered;
    } catch (const DataError& error) {
      return error.message();
    }
  };
  EXPECT_NE(refusal("").find("messages[1] would be trained as an empty answer: it has tool_calls"), std::string::npos);
  EXPECT_EQ(refusal("b"), "messages[1].tool_calls (assistant)") << "there is something to learn";
  EXPECT_EQ(refusal("", {kNone, kSkip}), "messages[1].tool_calls (assistant)") << "it is not trained";
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
