#include "chat/chat_session.h"

#include <gtest/gtest.h>

#include <csignal>
#include <deque>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "unit/data/byte_tokenizer.h"

namespace lora_train::cli {
namespace {

using data::ByteTokenizer;
using data::PlainTemplate;

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
    Dialogue dialogue(tokenizer_, template_, 60);
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
  EXPECT_NE(err_.find("The conversation is forgotten."), std::string::npos) << err_;
}

TEST_F(Session, TheBaseAnswersUntilTheAdapterIsOn) {
  EXPECT_EQ(run({"/adapter off", "a", "/adapter on", "/reset", "b", "/exit", "c"}), "base user:a.|tuned user:b.|end");
  EXPECT_EQ(prompts_, "> (base) > (base) > > > > ");
}

TEST_F(Session, TheSystemMessageChanges) {
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
  EXPECT_NE(err_.find("(stopped)"), std::string::npos) << err_;
  answer_ = "o^k";
  EXPECT_EQ(run({"a", "b"}, /*is_interactive=*/false), "tuned user:a.|end");
}

TEST_F(Session, APersonSeesAMistakeAndGoesOn) {
  EXPECT_EQ(run({"/rest", "a"}), "tuned user:a.|end");
  EXPECT_EQ(err_.find("\nerror: /rest: unknown command. Did you mean \"/reset\"?"), 0U) << err_;
}

TEST_F(Session, AMistakeEndsAScript) {
  EXPECT_EQ(run({"a", "/adapter perhaps", "b"}, false),
            "tuned user:a.|stdin:2: /adapter: got \"perhaps\", expected on or off.");
  EXPECT_EQ(run({"ab\xFFz"}, false), "stdin:1: the message is not UTF-8 at byte 3");
  EXPECT_EQ(run({"", std::string(60, 'x')}, false),
            "stdin:2: the message has 66 tokens, and the context of 60 leaves no room for an answer. Shorten it.");
}

TEST_F(Session, AnAnswerThatIsCutSaysWhy) {
  answer_ = std::string(60, 'y');
  run({"a"});
  EXPECT_EQ(out_, std::string(50, 'y') + "\n");
  EXPECT_NE(err_.find("(cut after 50 tokens: --max-new-tokens)"), std::string::npos) << err_;
  run({"a234567890"});
  EXPECT_EQ(out_, std::string(44, 'y') + "\n");
  EXPECT_NE(err_.find("(cut: the context of 60 tokens is full. /reset forgets the conversation)"), std::string::npos)
      << err_;
}

TEST_F(Session, NoAnswerTakesTheMessageBack) {
  answer_ = "";
  EXPECT_EQ(run({"a", "b"}), "tuned user:a.|tuned user:b.|end");
  EXPECT_NE(err_.find("(no answer: the message is dropped)"), std::string::npos) << err_;
}

}  // namespace
}  // namespace lora_train::cli
