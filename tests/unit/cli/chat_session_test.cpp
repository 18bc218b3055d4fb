#include "chat/chat_session.h"

#include <gtest/gtest.h>

#include <csignal>
#include <deque>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "support/expect_parts.h"
#include "support/refusal.h"
#include "unit/data/byte_tokenizer.h"

namespace lora_train::cli {
namespace {

using data::ByteTokenizer;
using data::PlainTemplate;
using Kind = ChatLine::Kind;
using testing_support::expect_parts;

std::string refusal(const std::string& line) {
  return testing_support::refusal<ConfigError>([&] { parse_chat_line(line); });
}

TEST(ChatLine, IsAMessageUnlessItBeginsWithASlash) {
  for (const char* text : {"hello", "what is /reset?", "  /reset", "a\n/reset"}) {
    EXPECT_EQ(parse_chat_line(text).kind, Kind::kMessage) << text;
    EXPECT_EQ(parse_chat_line(text).text, text);
  }
  EXPECT_EQ(parse_chat_line(" /etc/hosts: what is it?").text, "/etc/hosts: what is it?");
}

TEST(ChatLine, IsACommandWithItsText) {
  const std::pair<const char*, ChatLine> lines[] = {
      {"/help", {Kind::kHelp}},
      {"/reset ", {Kind::kReset}},
      {"/adapter", {Kind::kAdapter}},
      {"/adapter  off", {Kind::kAdapter, "off"}},
      {"/adapter on ", {Kind::kAdapter, "on"}},
      {"/system", {Kind::kSystem}},
      {"/system  Be brief.\nAnswer in French. ", {Kind::kSystem, "Be brief.\nAnswer in French."}},
      {"/exit", {Kind::kExit}},
      {"/quit", {Kind::kExit}}};
  for (const auto& [line, expected] : lines) {
    EXPECT_EQ(parse_chat_line(line).kind, expected.kind) << line;
    EXPECT_EQ(parse_chat_line(line).text, expected.text) << line;
  }
}

TEST(ChatLine, RefusesWhatIsNoCommandAndHelpNamesThem) {
  EXPECT_EQ(
      refusal("/rest"),
      "/rest: unknown command. Did you mean \"/reset\"? /help lists them. A message that begins with \"/\" needs a "
      "space before it.");
  EXPECT_EQ(refusal("/etc/hosts ok?").find("/etc/hosts: unknown command. /help"), 0U);
  EXPECT_EQ(refusal("/reset now"), "/reset: takes no argument; got \"now\".");
  EXPECT_EQ(refusal("/adapter maybe"), "/adapter: got \"maybe\", expected on or off.");
  expect_parts(chat_help(), {"/help", "/reset", "/adapter off|on", "/system TEXT", "/exit", "Ctrl-C", "Ctrl-D"});
}

class Talk : public testing::Test {
 protected:
  std::string ask(const std::string& text) { return tokenizer_.decode(dialogue_.ask(text, "here").ids, true); }
  std::string refusal(const std::string& text) {
    return testing_support::refusal<DataError>([&] { ask(text); });
  }

  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  Dialogue dialogue_{tokenizer_, &template_, 40};
};

TEST_F(Talk, ASystemMessageComesFirstAndSurvivesAResetAndAnEmptyAnswer) {
  dialogue_.set_system("s", "here");
  EXPECT_EQ(ask("a"), "system:s.user:a.");
  dialogue_.answer("b");
  EXPECT_EQ(dialogue_.num_turns(), 1U);
  dialogue_.reset();
  EXPECT_EQ(ask("c"), "system:s.user:c.");
  dialogue_.answer("");  // takes the question back
  EXPECT_EQ(dialogue_.num_turns(), 0U);
  dialogue_.set_system("", "here");
  EXPECT_EQ(ask("d"), "user:d.");
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
  Dialogue dialogue(tokenizer_, &chat_template, 40);
  EXPECT_THROW(dialogue.set_system("s", "here"), DataError);
  EXPECT_EQ(tokenizer_.decode(dialogue.ask("a", "").ids, true), "user:a.");
}

/// Says its lines, and raises a signal where a line is one.
class Lines : public LineReader {
 public:
  Lines(std::deque<std::string> lines, bool is_interactive)
      : lines_(std::move(lines)), is_interactive_(is_interactive) {}
  std::optional<std::string> read(const std::string& prompt) override {
    prompts += prompt;
    if (lines_.empty()) return std::nullopt;
    const std::string line = lines_.front();
    lines_.pop_front();
    if (line != "^C") return line;
    std::raise(SIGINT);
    return std::nullopt;
  }
  void remember(const std::string& message) override { history += message + "|"; }
  bool is_interactive() const override { return is_interactive_; }

  std::string prompts, history;

 private:
  std::deque<std::string> lines_;
  bool is_interactive_;
};

class Session : public testing::Test {
 protected:
  /// What the model is asked, turn by turn, ending with "." where all is said. Every answer is "ok".
  std::string run(std::deque<std::string> lines, bool is_interactive = true) {
    Lines reader(std::move(lines), is_interactive);
    Dialogue dialogue(tokenizer_, &template_, 60);
    ChatSession session(reader, dialogue, tokenizer_,
                        {.answers = {{ByteTokenizer::kEos}, {}}, .max_new_tokens = 50, .has_adapter = true});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    std::string asked;
    try {
      session.on_start(60);
      while (const auto prompt = session.next(/*may_wait=*/true)) {
        asked += (prompt->adapter ? "base " : "tuned ") + tokenizer_.decode(prompt->ids, true) + "|";
        answer(session, prompt->max_new_tokens);
      }
      asked += "end";
    } catch (const Error& error) {
      asked += error.what();
    }
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    prompts_ = reader.prompts;
    history_ = reader.history;
    return asked;
  }

  void answer(ChatSession& session, std::int64_t most) {
    std::int64_t num_new = 0;
    for (const char c : answer_) {
      if (c == '^') std::raise(SIGINT);
      if (!session.on_token(0, {static_cast<unsigned char>(c)})) return session.on_done(0, false);
      if (++num_new == most) return session.on_done(0, true);
    }
    session.on_token(0, {ByteTokenizer::kEos});
    session.on_done(0, false);
  }

  const StopRequests stop_requests_;
  ByteTokenizer tokenizer_;
  PlainTemplate template_;
  std::string answer_ = "ok", out_, err_, prompts_, history_;
};

TEST_F(Session, SaysEveryTurnAgainUntilReset) {
  EXPECT_EQ(run({"a", "", "b", "/reset", "c"}), "tuned user:a.|tuned user:a.assistant:ok.user:b.|tuned user:c.|end");
  EXPECT_EQ(out_, "ok\nok\nok\n");
  expect_parts(err_, {"The conversation is forgotten."});
}

TEST_F(Session, TheAdapterAndTheSystemMessageChange) {
  EXPECT_EQ(run({"/adapter off", "a", "/adapter on", "/reset", "b", "/exit", "c"}), "base user:a.|tuned user:b.|end");
  EXPECT_EQ(prompts_, "> (base) > (base) > > > > ");
  EXPECT_EQ(run({"/system s", "a", "/reset", "/system", "b"}), "tuned system:s.user:a.|tuned user:b.|end");
}

TEST_F(Session, ABackslashContinuesALine) {
  EXPECT_EQ(run({"a\\", "b\\", "c", "d\\"}), "tuned user:a\nb\nc.|tuned user:a\nb\nc.assistant:ok.user:d.|end");
  EXPECT_EQ(prompts_, "> ... ... > ... > ");
  EXPECT_EQ(history_, "a\nb\nc|d|");
}

TEST_F(Session, CtrlCClearsAMessageThatIsContinuedAndElseEndsTheChat) {
  EXPECT_EQ(run({"a\\", "^C", "b", "^C", "c"}), "tuned user:b.|end");
}

TEST_F(Session, CtrlCStopsAnAnswerAndWhatIsThereStays) {
  answer_ = "o^k";
  EXPECT_EQ(run({"a", "b"}), "tuned user:a.|tuned user:a.assistant:o^.user:b.|end");
  expect_parts(err_, {"(stopped)"});
  EXPECT_EQ(run({"a", "b"}, /*is_interactive=*/false), "tuned user:a.|end");
}

TEST_F(Session, APersonSeesAMistakeAndGoesOnAndAScriptEnds) {
  EXPECT_EQ(run({"/rest", "a"}), "tuned user:a.|end");
  EXPECT_EQ(err_.find("\nerror: /rest: unknown command. Did you mean \"/reset\"?"), 0U) << err_;
  EXPECT_EQ(run({"a", "/adapter perhaps", "b"}, false),
            "tuned user:a.|stdin:2: /adapter: got \"perhaps\", expected on or off.");
  EXPECT_EQ(run({"ab\xFFz"}, false), "stdin:1: the message is not UTF-8 at byte 3");
  EXPECT_EQ(run({"", std::string(60, 'x')}, false),
            "stdin:2: the message has 66 tokens, and the context of 60 leaves no room for an answer. Shorten it.");
}

TEST_F(Session, AnAnswerThatIsCutSaysWhyAndNoneTakesTheMessageBack) {
  answer_ = std::string(60, 'y');
  run({"a"});
  EXPECT_EQ(out_, std::string(50, 'y') + "\n");
  expect_parts(err_, {"(cut after 50 tokens: --max-new-tokens)"});
  run({"a234567890"});
  EXPECT_EQ(out_, std::string(44, 'y') + "\n");
  expect_parts(err_, {"(cut: the context of 60 tokens is full. /reset forgets the conversation)"});
  answer_ = "";
  EXPECT_EQ(run({"a", "b"}), "tuned user:a.|tuned user:b.|end");
  expect_parts(err_, {"(no answer: the message is dropped)"});
}

}  // namespace
}  // namespace lora_train::cli
