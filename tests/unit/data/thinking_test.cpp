#include "encode/thinking.h"

#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "encode/encode_sample.h"
#include "support/expect_parts.h"
#include "support/refusal.h"

namespace lora_train::data {
namespace {

/// Writes the variables it is asked for and, of the last turn, or of all with preserve_thinking, a block.
constexpr const char* kSource =
    "{% if enable_thinking is defined %}{{ '[enable ' ~ enable_thinking ~ ']' }}{% endif %}"
    "{% for message in messages %}{{ message.role + ':' }}"
    "{% if message.role == 'assistant' and (preserve_thinking is defined and preserve_thinking or loop.last) %}"
    "{{ '<think>' + (message.reasoning_content or '') + '</think>' }}{% endif %}"
    "{{ message.content + '|' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

tokenizer::Message answer(const std::string& content, Json fields = Json::object()) {
  Json json = {{"role", "assistant"}, {"content", content}};
  json.update(fields);
  return {"assistant", content, json.dump()};
}

ChatSample chat_of(std::vector<tokenizer::Message> answers) {
  ChatSample chat;
  for (tokenizer::Message& message : answers) {
    chat.messages.push_back({"user", "q"});
    chat.messages.push_back(std::move(message));
  }
  return chat;
}

class ThinkingTest : public testing::Test {
 protected:
  EncodedSample encoded(const ChatSample& chat, Thinking thinking) const {
    return encode_sample(chat, {.tokenizer = &tokenizer_, .chat_template = template_.get(), .thinking = thinking});
  }
  /// The text, then the turns with thoughts: kept, dropped, written empty.
  std::string shown(const ChatSample& chat, Thinking thinking) const {
    const EncodedSample sample = encoded(chat, thinking);
    return fmt::format("{} {} {} {}", tokenizer_.decode(sample.ids, false), sample.thoughts.kept,
                       sample.thoughts.dropped, sample.thoughts.empty);
  }
  std::string refusal(const ChatSample& chat) const {
    return testing_support::refusal<DataError>([&] { encoded(chat, Thinking::kKeep); });
  }
  void use(const std::string& source) { template_ = tokenizer::ChatTemplate::parse(source, "t"); }

  ByteTokenizer tokenizer_;
  std::unique_ptr<tokenizer::ChatTemplate> template_ = tokenizer::ChatTemplate::parse(kSource, "t");
  const ChatSample chat_ =
      chat_of({answer("<think>\nA\n</think>\n\na"), answer("b"), answer("c", {{"reasoning_content", "C"}})});
};

TEST_F(ThinkingTest, EachValueGivesItsTextAndCounts) {
  EXPECT_EQ(shown(chat_, Thinking::kTemplate),
            "user:q|assistant:<think>\nA\n</think>\n\na|user:q|assistant:b|user:q|assistant:<think>C</think>c| 2 0 0");
  EXPECT_EQ(shown(chat_, Thinking::kKeep),
            "user:q|assistant:<think>A</think>a|user:q|assistant:<think></think>b|user:q|assistant:<think>C</think>c| "
            "2 0 0");
  const std::string dropped = "user:q|assistant:a|user:q|assistant:b|user:q|assistant:<think></think>c| 0 1 1";
  EXPECT_EQ(shown(chat_, Thinking::kDrop), dropped);
  EXPECT_EQ(shown(chat_, Thinking::kEmpty), "[enable False]" + dropped);
}

TEST_F(ThinkingTest, TheKeyWinsOverTheExamplesVariablesAndKeepsTheOthers) {
  ChatSample chat = chat_;
  chat.kwargs_json = R"({"enable_thinking": true, "preserve_thinking": false, "x": 1})";
  EXPECT_EQ(with_thinking(chat, *template_, Thinking::kEmpty).kwargs_json,
            R"({"enable_thinking":false,"preserve_thinking":false,"x":1})");
  EXPECT_EQ(with_thinking(chat, *template_, Thinking::kKeep).kwargs_json,
            R"({"enable_thinking":true,"preserve_thinking":true,"x":1})");
  EXPECT_EQ(with_thinking(chat, *template_, Thinking::kDrop).kwargs_json, chat.kwargs_json);
  use("{{ messages[0].content }}");
  for (const Thinking thinking : {Thinking::kKeep, Thinking::kEmpty})
    EXPECT_EQ(with_thinking(chat_, *template_, thinking).kwargs_json, "") << "it reads no variable";
}

TEST_F(ThinkingTest, ThoughtsAreAFieldElseTheBlockAtTheStart) {
  const auto last = [&](const tokenizer::Message& message, Thinking thinking) {
    const std::string text = shown(chat_of({message}), thinking);
    return text.substr(std::string("user:q|assistant:").size());
  };
  for (const char* field : {"reasoning_content", "reasoning", "thinking"}) {
    EXPECT_EQ(last(answer("a", {{field, "T"}}), Thinking::kKeep), "<think>T</think>a| 1 0 0") << field;
    EXPECT_EQ(last(answer("a", {{field, "T"}}), Thinking::kDrop), "<think></think>a| 0 0 1") << field;
  }
  EXPECT_EQ(last(answer("T\n</think>\n\na"), Thinking::kDrop), "<think></think>a| 0 0 1") << "opened by a prompt";
  EXPECT_EQ(last(answer("T\n</think>\n\na"), Thinking::kKeep), "<think>T</think>a| 1 0 0");
  EXPECT_EQ(last(answer(" <think>T</think>  a"), Thinking::kDrop), "<think></think>  a| 0 0 1");
  EXPECT_EQ(last(answer("<think>\n\n</think>\n\na"), Thinking::kKeep), "<think></think>a| 0 0 0") << "no thoughts";
  EXPECT_EQ(last(answer("a <think>b</think>"), Thinking::kDrop), "<think></think>a <think>b</think>| 0 0 0");
  EXPECT_EQ(last(answer("<think>b"), Thinking::kDrop), "<think></think><think>b| 0 0 0") << "never closed";
  EXPECT_EQ(last(answer("a", {{"thinking", true}}), Thinking::kDrop), "<think></think>a| 0 0 0");
  ChatSample user{{{"user", "<think>u</think>v"}, answer("a")}, 0, {}, {}};
  EXPECT_EQ(shown(user, Thinking::kDrop), "user:<think>u</think>v|assistant:<think></think>a| 0 0 0");
}

TEST_F(ThinkingTest, KeepRefusesATurnWithoutItsThoughts) {
  template_ = tokenizer::load_chat_template("qwen3", {});
  testing_support::expect_parts(refusal(chat_),
                                {"messages[1] has thoughts (content) that the chat template does not write",
                                 "thinking to template or drop", "chat_template"});
  EXPECT_EQ(refusal(chat_of({answer("a"), answer("b", {{"reasoning", "B"}})})), "accepted");
  EXPECT_EQ(encoded(chat_, Thinking::kTemplate).thoughts.dropped, 1);
  const ChatSample twins = chat_of({answer("<think>A</think>a"), answer("<think>A</think>a")});
  testing_support::expect_parts(refusal(twins), {"messages[1] has thoughts"});
  use("{% for message in messages %}{{ message.content }}{% endfor %}");
  testing_support::expect_parts(refusal(chat_), {"messages[5] has thoughts (reasoning_content)"});
  EXPECT_EQ(shown(twins, Thinking::kKeep), "q<think>A</think>aq<think>A</think>a 2 0 0");
}

TEST_F(ThinkingTest, AnAnswerOfNothingButThoughtsIsEmptyWithoutThem) {
  EXPECT_EQ(encoded(chat_of({answer("<think>T</think>")}), Thinking::kTemplate).empty_answer, "");
  EXPECT_EQ(encoded(chat_of({answer("<think>T</think>")}), Thinking::kDrop).empty_answer, "messages[1]");
}

TEST_F(ThinkingTest, PromptsHaveTheTurnsAsTrained) {
  ChatSample chat = chat_;
  chat.messages.push_back({"user", "q"});
  const auto prompt = [&](Thinking thinking) {
    return render_chat_prompt(chat, {&tokenizer_, template_.get(), false, {}, thinking});
  };
  EXPECT_EQ(prompt(Thinking::kDrop), "user:q|assistant:a|user:q|assistant:b|user:q|assistant:c|user:q|assistant:");
  EXPECT_EQ(prompt(Thinking::kEmpty), "[enable False]" + prompt(Thinking::kDrop));
  template_ = tokenizer::load_chat_template("qwen3", {});
  testing_support::expect_parts(testing_support::refusal<DataError>([&] { prompt(Thinking::kKeep); }),
                                {"messages[1] has thoughts"});
}

}  // namespace
}  // namespace lora_train::data
