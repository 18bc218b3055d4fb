#include <gtest/gtest.h>

#include "chat/chat_session.h"
#include "lora_train/base/error.h"

namespace lora_train::cli {
namespace {

using Kind = ChatLine::Kind;

std::string refusal(const std::string& line) {
  try {
    parse_chat_line(line);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
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

TEST(ChatLine, RefusesWhatIsNoCommand) {
  EXPECT_EQ(
      refusal("/rest"),
      "/rest: unknown command. Did you mean \"/reset\"? /help lists them. A message that begins with \"/\" needs a "
      "space before it.");
  EXPECT_EQ(refusal("/etc/hosts ok?").find("/etc/hosts: unknown command. /help"), 0U);
  EXPECT_EQ(refusal("/reset now"), "/reset: takes no argument; got \"now\".");
  EXPECT_EQ(refusal("/adapter maybe"), "/adapter: got \"maybe\", expected on or off.");
}

TEST(ChatLine, HelpNamesEveryCommand) {
  for (const char* command : {"/help", "/reset", "/adapter off|on", "/system TEXT", "/exit", "Ctrl-C", "Ctrl-D"}) {
    EXPECT_NE(chat_help().find(command), std::string::npos) << command;
  }
}

}  // namespace
}  // namespace lora_train::cli
