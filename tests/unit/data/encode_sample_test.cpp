#include "encode/encode_sample.h"

#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/loaded_tokenizer.h"
#include "support/refusal.h"
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
  EncodedSample encoded(const Sample& sample, LossOn loss_on = LossOn::kAuto) const {
    return encode_sample(sample, {&tokenizer_, &template_, loss_on, 0});
  }
  std::string encode(const Sample& sample, LossOn loss_on) const { return show(encoded(sample, loss_on)); }
  std::string refusal(const Sample& sample, LossOn loss_on = LossOn::kAuto, std::int64_t vocab_size = 0) const {
    return testing_support::refusal<DataError>([&] {
      encode_sample(sample, {&tokenizer_, &template_, loss_on, vocab_size});
    });
  }

  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  const ChatSample chat_{
      {{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}}, 0, {}, {}};
  const ChatSample pair_{{{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}}, 3, {}, {}};
};

TEST_F(EncodeSample, TrainsTheTurnsThatLossOnNames) {
  const std::string assistant = "system:s.user:a.assistant:[b.]user:c.assistant:[d.]";
  EXPECT_EQ(encode(chat_, LossOn::kAuto), assistant);
  EXPECT_EQ(encode(chat_, LossOn::kAssistant), assistant);
  EXPECT_EQ(encode(chat_, LossOn::kLast), "system:s.user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(chat_, LossOn::kAll), "[system:s.user:a.assistant:b.user:c.assistant:d.]");
  EXPECT_EQ(encode(pair_, LossOn::kAuto), "user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(pair_, LossOn::kCompletion), "user:a.assistant:b.user:c.assistant:[d.]");
  EXPECT_EQ(encode(pair_, LossOn::kAssistant), "user:a.assistant:[b.]user:c.assistant:[d.]");
  const ChatSample user_last{{{"assistant", "a"}, {"assistant", "b"}, {"user", "c"}}, 0, {}, {}};
  EXPECT_EQ(encode(user_last, LossOn::kLast), "assistant:a.assistant:[b.]user:c.");
  const ChatSample question{{{"user", "a"}}, 0, {}, {}};
  EXPECT_EQ(encode(question, LossOn::kAuto), "user:a.");
  EXPECT_EQ(encode(question, LossOn::kLast), "user:a.");
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
  EXPECT_EQ(encode(with_weights(chat_, {kTrain, kNone, kSkip}), LossOn::kAll),
            "[system:s.user:a.assistant:]b.[user:c.assistant:d.]");
  EXPECT_EQ(encode(with_weights(chat_, {kNone, kNone, kSkip, kNone, kSkip}), LossOn::kAll),
            "[system:s.user:a.assistant:]b.[user:c.assistant:]d.");
}

TEST_F(EncodeSample, AllTrainsNoTokenThatTouchesAMarkedTurn) {
  LORA_TRAIN_REQUIRE_DATA(folder, "mistral/v3");
  const auto& tokenizer = testing_support::loaded_tokenizer(folder);
  const auto chat_template = tokenizer::ChatTemplate::load(folder);
  const ChatSample chat{{{"user", "a"}, {"assistant", "hello there"}, {"user", "c"}, {"assistant", "d"}}, 0, {}, {}};
  const EncodeOptions options{&tokenizer, chat_template.get(), LossOn::kAll, 0};
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
  const auto expect = [&](const ChatSample& chat, LossOn loss_on, float second, float last, float others) {
    const EncodedSample sample = encoded(chat, loss_on);
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
  EXPECT_TRUE(encoded(with_weights(chat_, {kNone, kNone, kSkip, kNone, kTrain})).weights.empty());
  EXPECT_TRUE(encoded(with_weights(chat_, {kNone, kNone, 0.5F}), LossOn::kLast).weights.empty()) << "not trained";
}

TEST_F(EncodeSample, RefusesWeightsItCannotHonour) {
  const ChatSample trained = with_weights(chat_, {kNone, kTrain}), skipped = with_weights(chat_, {kNone, kSkip}),
                   weighted = with_weights(chat_, {kNone, 0.5F});
  EXPECT_EQ(refusal(trained).find("message 1 (user) is marked as trained"), 0U);
  EXPECT_EQ(refusal(trained, LossOn::kAll), "accepted");
  EXPECT_EQ(refusal(skipped), "accepted");
  EXPECT_EQ(refusal(skipped, LossOn::kAll).find("message 1 (user) is marked as not trained"), 0U);
  EXPECT_EQ(refusal(weighted).find("message 1 (user) is marked as trained"), 0U);
  EXPECT_EQ(refusal(weighted, LossOn::kAll).find("message 1 (user) is marked as not trained, or with a weight"), 0U);
}

TEST_F(EncodeSample, AddsEosToTextAndTrainsItAndBosWhereHuggingFaceDoes) {
  EXPECT_EQ(encode(TextSample{"", "abc"}, LossOn::kAuto), "[abc</s>]");
  EXPECT_EQ(encode(TextSample{"ab", "c"}, LossOn::kAuto), "ab[c</s>]");
  EXPECT_EQ(encode(TextSample{"ab", "c"}, LossOn::kAll), "[abc</s>]");
  EXPECT_EQ(encode(TextSample{"ab", ""}, LossOn::kAuto), "ab[</s>]");
  const ByteTokenizer with_bos(true);
  EXPECT_EQ(show(encode_sample(TextSample{"", "a"}, {&with_bos, nullptr, LossOn::kAuto, 0})), "<s>[a</s>]");
  EXPECT_EQ(show(encode_sample(chat_, {&with_bos, &template_, LossOn::kAuto, 0})).substr(0, 8), "system:s");
}

TEST_F(EncodeSample, TakesLabelsOfPretokenisedExamplesAsTheyAreInsideTheVocabulary) {
  EXPECT_EQ(encode(TokenSample{{97, 98}, {-100, 98}}, LossOn::kAuto), "a[b]");
  EXPECT_EQ(encode(TokenSample{{97, 98}, {-100, 98}}, LossOn::kAll), "[ab]");
  EXPECT_EQ(encode(TokenSample{{97, 98}, {}}, LossOn::kAll), "[ab]");
  EXPECT_THROW(encode(TokenSample{{97, 98}, {}}, LossOn::kAuto), DataError);
  EXPECT_EQ(refusal(TokenSample{{0, 9}, {0, 9}}, LossOn::kAuto, 10), "accepted");
  EXPECT_SAYS(refusal(TokenSample{{0, 10}, {0, 9}}, LossOn::kAuto, 10), "input_ids[1] is 10");
  EXPECT_SAYS(refusal(TokenSample{{0, 9}, {-100, 10}}, LossOn::kAuto, 10), "labels[1] is 10");
  EXPECT_SAYS(refusal(TextSample{"", "a"}, LossOn::kAuto, 257), "input_ids[1] is 257");
}

TEST_F(EncodeSample, GivesTheTemplateEverythingAndReportsWhatItLeavesOutOrRefuses) {
  EXPECT_EQ(refusal(ChatSample{{{"tool", "x"}}, 0, {}, {}}),
            "the chat template refuses the example: plain:1: a chat cannot begin with a tool");
  EXPECT_EQ(encode(ChatSample{{{"assistant", "b"}}, 0, "[T]", "{K}"}, LossOn::kAuto), "[T]{K}assistant:[b.]");
  const ChatSample chat{{{"system", "hidden"}, {"assistant", "b"}}, 0, {}, {}};
  EXPECT_EQ(encoded(chat).not_rendered, "messages[0].content (system)");
  EXPECT_EQ(encoded(chat_).not_rendered, "");
}

TEST_F(EncodeSample, ReportsTrainedAnswersWithoutContent) {
  const auto empty = [&](const Sample& sample, LossOn loss_on = LossOn::kAuto) {
    return encoded(sample, loss_on).empty_answer;
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
  const auto refused = [&](const char* content, std::vector<std::optional<float>> weights = {}) {
    const std::string fields = R"({"role": "assistant", "content": ")" + std::string(content) +
                               R"(", "tool_calls": [{"function": {"name": "search", "arguments": {"q": "x"}}}]})";
    const ChatSample chat{{{"user", "a"}, {"assistant", content, fields}}, 0, {}, {}, std::move(weights)};
    std::string left_out;
    const std::string said = testing_support::refusal<DataError>([&] {
      left_out = encode_sample(chat, {&tokenizer_, plain.get(), LossOn::kAuto, 0}).not_rendered;
    });
    return said == "accepted" ? left_out : said;
  };
  EXPECT_SAYS(refused(""), "messages[1] would be trained as an empty answer: it has tool_calls");
  EXPECT_EQ(refused("b"), "messages[1].tool_calls (assistant)") << "there is something to learn";
  EXPECT_EQ(refused("", {kNone, kSkip}), "messages[1].tool_calls (assistant)") << "it is not trained";
}

TEST_F(EncodeSample, ChecksThatLossOnFitsTheLayoutAndThatNothingIsMissing) {
  const auto check = [&](DatasetType type, LossOn loss_on) {
    check_loss_on(type, {&tokenizer_, &template_, loss_on, 0});
  };
  EXPECT_NO_THROW(check(DatasetType::kMessages, LossOn::kLast));
  EXPECT_NO_THROW(check(DatasetType::kPromptCompletion, LossOn::kCompletion));
  EXPECT_THROW(check(DatasetType::kMessages, LossOn::kCompletion), ConfigError);
  EXPECT_THROW(check(DatasetType::kText, LossOn::kAssistant), ConfigError);
  EXPECT_THROW(check(DatasetType::kPretokenized, LossOn::kLast), ConfigError);
  EXPECT_THROW(check_loss_on(DatasetType::kText, {nullptr, nullptr, LossOn::kAuto, 0}), FormatError);
  EXPECT_THROW(check_loss_on(DatasetType::kMessages, {&tokenizer_, nullptr, LossOn::kAuto, 0}), FormatError);
  EXPECT_NO_THROW(check_loss_on(DatasetType::kPretokenized, {nullptr, nullptr, LossOn::kAuto, 0}));
  EXPECT_THROW(encode_sample(pair_, {&tokenizer_, nullptr, LossOn::kAuto, 0}), FormatError);
}

using Ids = std::vector<std::int32_t>;

EncodedSample with(const std::string& logprobs, EncodedSample out) {
  add_soft_labels(Json::parse(logprobs), TeacherVocabulary(nullptr, 100), out);
  return out;
}

/// Of an example of which 20, which another turn has, and the last three are trained.
EncodedSample with(const std::string& logprobs) {
  return with(logprobs, {{10, 20, 30, 41, 42, 43}, {-100, 20, -100, 41, 42, 43}});
}

TEST(TeacherTokens, BelongToTheLastTrainedTokens) {
  const EncodedSample out = with(R"([
    {"id": 41, "logprob": -0.5, "top_logprobs": [{"id": 41, "logprob": -0.5}, {"id": 7, "logprob": -1}]},
    {"token": "token_id:42", "logprob": -0.25, "top_logprobs": [{"token": "token_id:8", "logprob": -2}, {"id": 500, "logprob": -3}]}])");
  EXPECT_EQ(out.soft_width, 2);
  EXPECT_EQ(out.soft_ids, (Ids{-1, -1, 41, 7, 42, 8, -1, -1}));
  EXPECT_EQ(out.soft_log_probs, (std::vector<float>{0, 0, -0.5, -1, -0.25, -2, 0, 0}));
}

TEST(TeacherTokens, EndWhereTheExampleHasAnotherToken) {
  const EncodedSample out =
      with(R"({"content": [{"id": 41, "logprob": -1}, {"id": 9, "logprob": -1}, {"id": 43, "logprob": -1}]})");
  EXPECT_EQ(out.soft_ids, (Ids{-1, 41, -1, -1}));
  EXPECT_EQ(with(R"([{"id": 9, "logprob": -1}])").soft_width, 0);
  EXPECT_EQ(with("[]").soft_width, 0);
}

TEST(TeacherTokens, NothingPredictsTheFirstTokenOfAnExample) {
  const EncodedSample out = with(R"([{"id": 41, "logprob": -1}, {"id": 42, "logprob": -2}])", {{41, 42}, {41, 42}});
  EXPECT_EQ(out.soft_ids, (Ids{42}));
  EXPECT_EQ(out.soft_log_probs, (std::vector<float>{-2}));
}

TEST(TeacherTokens, RefusesOtherForms) {
  for (const char* text : {"1", R"({"tokens": ["a"]})", R"([{"id": 41}])", R"([{"logprob": -1}])", "[3]",
                           R"([{"id": 41, "logprob": -1, "top_logprobs": 4}])"})
    EXPECT_THROW(with(text), DataError) << text;
}

}  // namespace
}  // namespace lora_train::data
