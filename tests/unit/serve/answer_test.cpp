#include "lora_train/serve/answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "unit/data/byte_tokenizer.h"

namespace lora_train::serve {
namespace {

using data::ByteTokenizer;
using nlohmann::json;

class Answered : public testing::Test {
 protected:
  Answer& start(std::size_t num_prompts = 1) {
    request_.model = "m";
    answer_ = std::make_unique<Answer>(request_, model_, std::vector<data::Prompt>(num_prompts, {"", "", {1, 2, 3}}),
                                       "id-1", 12);
    return *answer_;
  }
  /// Tokens of the text, and the end token, as long as the answer wants them.
  void say(std::size_t choice, const std::string& text, bool is_cut = false) {
    for (const char byte : text) {
      if (!answer_->on_token(choice, {static_cast<unsigned char>(byte), -0.5, {{'x', -0.25}}}))
        return answer_->on_done(choice, false);
    }
    if (!is_cut) answer_->on_token(choice, {ByteTokenizer::kEos});
    answer_->on_done(choice, is_cut);
  }
  std::string sent() {
    std::string bytes(100000, '\0');
    bytes.resize(answer_->outbox.read(bytes.data(), bytes.size(), [] {}));
    return bytes;
  }
  /// The events of a stream; the last one is [DONE].
  std::vector<json> events() {
    std::vector<json> list;
    const std::string bytes = sent();
    for (std::size_t begin = 0; begin < bytes.size();) {
      const std::size_t end = bytes.find("\n\n", begin);
      const std::string data = bytes.substr(begin + 6, end - begin - 6);
      EXPECT_EQ(bytes.substr(begin, 6), "data: ");
      list.push_back(data == "[DONE]" ? json(data) : json::parse(data));
      begin = end + 2;
    }
    return list;
  }

  ByteTokenizer tokenizer_;
  ServedModel model_{"m", &tokenizer_, nullptr, {ByteTokenizer::kEos}, 258, {}};
  ApiRequest request_;
  std::unique_ptr<Answer> answer_;
};

TEST_F(Answered, IsWholeOnceAllChoicesAre) {
  request_.n = 2;
  start();
  say(1, "second", /*is_cut=*/true);
  EXPECT_FALSE(answer_->outbox.is_finished());
  say(0, "first");
  ASSERT_TRUE(answer_->outbox.is_finished());
  const json whole = json::parse(sent());
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "first");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(whole["choices"][1]["message"]["content"], "second");
  EXPECT_EQ(whole["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"], json::parse(R"({"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15})"));
}

TEST_F(Answered, EndsBeforeAStopString) {
  request_.stop = {"lo w"};
  start();
  say(0, "hello world");
  const json whole = json::parse(sent());
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "hel");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
}

TEST_F(Answered, StreamsPiecesThatAreWholeCharacters) {
  request_.streams = request_.include_usage = true;
  start();
  say(0, "a\xC3\xA9");
  const std::vector<json> got = events();
  ASSERT_EQ(got.size(), 5U);
  EXPECT_EQ(got[0]["choices"][0]["delta"], json::parse(R"({"role": "assistant", "content": "a"})"));
  EXPECT_EQ(got[1]["choices"][0]["delta"], json::parse("{\"content\": \"\xC3\xA9\"}"));
  EXPECT_EQ(got[2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(got[3]["usage"]["completion_tokens"], 4);
  EXPECT_EQ(got[4], "[DONE]");
  start();
  say(0, "");
  EXPECT_EQ(events()[0]["choices"][0]["delta"]["role"], "assistant");
}

TEST_F(Answered, CarriesLogProbabilitiesOfAllTokensItSends) {
  request_.is_chat = false;
  request_.num_top = 1;
  start();
  say(0, "ab");
  EXPECT_EQ(
      json::parse(sent())["choices"][0]["logprobs"],
      json::parse(
          R"({"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.5], "top_logprobs": [{"x": -0.25}, {"x": -0.25}], "text_offset": [0, 1]})"));
}

TEST_F(Answered, WantsNoMoreOnceItsClientHasGone) {
  start();
  EXPECT_TRUE(answer_->on_token(0, {'a'}));
  answer_->outbox.cancel();
  EXPECT_FALSE(answer_->on_token(0, {'b'}));
}

TEST_F(Answered, ReportsAFailureInItsOwnForm) {
  start();
  answer_->on_failure(500, "not finite");
  EXPECT_EQ(answer_->outbox.status(), 500);
  EXPECT_EQ(json::parse(sent())["error"]["message"], "not finite");
  request_.streams = true;
  start();
  answer_->on_failure(500, "not finite");
  EXPECT_EQ(events()[0]["error"]["type"], "server_error");
}

TEST_F(Answered, AsksForEachChoiceWithItsPromptAndDraws) {
  request_.n = 2;
  request_.sampling.seed = 5;
  model_.adapter = 1;
  const Answer& answer = start(2);
  ASSERT_EQ(answer.num_choices(), 4U);
  const generate::Prompt asked = answer.ask(3, 8);
  EXPECT_EQ(asked.index, 3);
  EXPECT_EQ(asked.sampling.seed, 5U);
  EXPECT_EQ(asked.adapter, 1);
  EXPECT_EQ(asked.max_new_tokens, 8);
  EXPECT_EQ(asked.ids, (std::vector<std::int32_t>{1, 2, 3}));
}

struct Reader {
  Reader() {
    outbox.set_resume([this] { ++num_resumed; });
  }
  std::string read(std::size_t most = 100) {
    std::string bytes(most, '\0');
    bytes.resize(outbox.read(bytes.data(), most, [this] { ++num_suspended; }));
    return bytes;
  }
  Outbox outbox;
  int num_suspended = 0, num_resumed = 0;
};

TEST(Outbox, SuspendsAReaderUntilThereAreBytes) {
  Reader reader;
  EXPECT_EQ(reader.read(), "");
  EXPECT_EQ(reader.num_suspended, 1);
  reader.outbox.write("abc");
  reader.outbox.write("d");
  EXPECT_EQ(reader.num_resumed, 1) << "it is awake already";
  EXPECT_EQ(reader.read(3), "abc");
  EXPECT_EQ(reader.read(), "d");
  reader.outbox.finish(200);
  EXPECT_EQ(reader.read(), "");
  EXPECT_EQ(reader.num_suspended, 1) << "nothing more comes";
}

TEST(Outbox, WakesAReaderThatIsGivenUp) {
  Reader reader;
  EXPECT_FALSE(reader.outbox.is_whole_or([&] { ++reader.num_suspended; }));
  reader.outbox.cancel();
  EXPECT_EQ(reader.num_resumed, 1);
  EXPECT_TRUE(reader.outbox.is_whole_or([] {}));
  reader.outbox.write("late");
  EXPECT_EQ(reader.read(), "");
}

TEST(Outbox, NeverWakesAReaderThatHasLeft) {
  Reader reader;
  reader.read();
  reader.outbox.abandon();
  reader.outbox.write("late");
  reader.outbox.finish(200);
  EXPECT_EQ(reader.num_resumed, 0);
  EXPECT_TRUE(reader.outbox.is_cancelled());
}

TEST(Outbox, KeepsTheFirstStatus) {
  Outbox outbox;
  outbox.finish(500);
  outbox.finish(200);
  EXPECT_EQ(outbox.status(), 500);
}

}  // namespace
}  // namespace lora_train::serve
