// The template interpreter: Python's results, spans, limits, and messages.
#include "lora_train/tokenizer/chat/chat_template.h"

#include <gtest/gtest.h>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"
#include "support/temporary_folder.h"
#include "support/test_data.h"

namespace lora_train::tokenizer {
namespace {

using testing_support::TemporaryFolder;

const std::vector<Message> kChat = {
    {"system", "Be brief."},
    {"user", " Hi \xC3\xA9\n"},
    {"assistant", "Hello!"},
    {"user", "Bye"},
    {"assistant", "",
     R"({"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"x": 1, "y": [true, null, 2.0, "<\u00e9>"]}}]})"}};

std::string render(const std::string& source, const RenderOptions& options = {}) {
  return ChatTemplate::parse(source, "t.jinja")->render(kChat, options).text;
}

struct Expression {
  const char* source;
  const char* result;
};

// expressions.inc is made by make_expressions.py from jinja2, set up as transformers does.
TEST(ChatTemplate, ExpressionsGiveWhatJinjaGives) {
  const Expression cases[] = {
#include "expressions.inc"
  };
  for (const auto& [source, result] : cases) {
    try {
      EXPECT_EQ(render(source), result) << source;
    } catch (const Error& error) {
      ADD_FAILURE() << source << ": " << error.what();
    }
  }
}

std::vector<std::string> spans_of(const std::string& source) {
  const RenderedChat chat = ChatTemplate::parse(source, "t.jinja")->render(kChat);
  std::vector<std::string> spans;
  for (std::size_t i = 0; i < chat.spans.size(); ++i) {
    const auto [begin, end] = chat.spans[i];
    spans.push_back(std::to_string(chat.span_message[i]) + ":" + chat.text.substr(begin, end - begin));
  }
  return spans;
}

using Spans = std::vector<std::string>;

TEST(ChatTemplate, SpansOfChatMlRunToTheEndToken) {
  EXPECT_EQ(spans_of("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"),
            (Spans{"2:Hello!<|im_end|>", "4:<|im_end|>"}));
}

TEST(ChatTemplate, SpansOfLlamaHeaders) {
  EXPECT_EQ(spans_of("{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + "
                     "m['content'] | trim + "
                     "'<|eot_id|>' }}{% endfor %}"),
            (Spans{"2:Hello!<|eot_id|>", "4:<|eot_id|>"}));
}

TEST(ChatTemplate, SpansOfTurnsWithoutRole) {
  EXPECT_EQ(
      spans_of("{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
               "{% else %} {{ m.content }}</s> {% endif %}{% endfor %}"),
      (Spans{"2:Hello!</s>", "4:</s>"}));
}

TEST(ChatTemplate, SpansOfLiteralRolesAndThinkBlocks) {
  EXPECT_EQ(spans_of("{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n<think>\n\n</think>\n\n{{ "
                     "m.content }}<|end|>\n"
                     "{% endif %}{% endfor %}"),
            (Spans{"2:<think>\n\n</think>\n\nHello!<|end|>", "4:<think>\n\n</think>\n\n<|end|>"}));
}

TEST(ChatTemplate, ContentNeverBelongsToAHeader) {
  const std::vector<Message> chat = {{"assistant", "\nassistant\n<|im_end|>\n"}};
  const auto got = ChatTemplate::parse(
                       "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", "t")
                       ->render(chat);
  ASSERT_EQ(got.spans.size(), 1U);
  EXPECT_EQ(got.text.substr(got.spans[0].first, got.spans[0].second - got.spans[0].first),
            "\nassistant\n<|im_end|>\n<|im_end|>");
}

TEST(ChatTemplate, GenerationTagsDecideWhenThereAreAny) {
  EXPECT_EQ(
      spans_of("{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"),
      (Spans{"0:Be brief.", "1: Hi \xC3\xA9\n", "2:Hello!", "3:Bye"}));
}

TEST(ChatTemplate, TellsWhichContentsWereDropped) {
  const auto chat =
      ChatTemplate::parse("{% for m in messages[1:] %}{{ m.content | trim }}{% endfor %}", "t")->render(kChat);
  std::vector<std::string> dropped;
  for (const Omission& omission : chat.omissions) {
    dropped.push_back(std::to_string(omission.message) + omission.field + (omission.is_partial ? "?" : ""));
  }
  EXPECT_EQ(dropped, (std::vector<std::string>{"0content", "4tool_calls"}));
}

TEST(ChatTemplate, TellsWhenToolsWereDropped) {
  const RenderOptions tools{.tools_json =
                                R"([{"type": "function", "function": {"name": "now"}}, {"name": "add", "x": "now"}])"};
  const auto omitted = [&](const std::string& source) {
    const std::vector<Message> chat = {
        {"user", "What time is it? now or add?"},
        {"assistant", "", R"({"role": "assistant", "tool_calls": [{"function": {"name": "now"}}]})"}};
    const auto omissions = ChatTemplate::parse(source +
                                                   "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ "
                                                   "m.tool_calls | tojson }}{% endif %}{% endfor %}",
                                               "t")
                               ->render(chat, tools)
                               .omissions;
    if (omissions.empty()) return std::string("none");
    return omissions[0].field + std::to_string(omissions[0].message) + (omissions[0].is_partial ? " in part" : "");
  };
  EXPECT_EQ(omitted(""), "tools-1");
  EXPECT_EQ(omitted("{{ tools | tojson }}"), "none");
  EXPECT_EQ(omitted("{% for t in tools %}{{ (t.function or t).name }} {% endfor %}"), "none");
  EXPECT_EQ(omitted("{{ tools[1].name }}"), "tools-1 in part");
}

TEST(ChatTemplate, TypeAndIdOfToolCallsMayBeLeftOut) {
  const auto omitted = [](const char* call) {
    const std::string json = R"({"role": "assistant", "content": "", "tool_calls": [)" + std::string(call) + "]}";
    const std::vector<Message> chat = {{"assistant", "", json}};
    return ChatTemplate::parse("{{ messages[0].tool_calls[0].function | tojson }}", "t")->render(chat).omissions.size();
  };
  EXPECT_EQ(omitted(R"({"type": "function", "id": "call_1", "function": {"name": "f", "arguments": {"x": "y"}}})"), 0U);
  EXPECT_EQ(omitted(R"({"note": "lost", "function": {"name": "f", "arguments": {"x": "y"}}})"), 1U);
  // Arguments of these names are no part of the wrapping.
  const std::vector<Message> chat = {
      {"assistant", "", R"({"role": "assistant", "tool_calls": [{"id": "a", "function": {"id": "b"}}]})"}};
  EXPECT_EQ(ChatTemplate::parse("", "t")->render(chat).omissions.size(), 1U);
}

TEST(ChatTemplate, WhiteSpaceControl) {
  EXPECT_EQ(render("a  {%- if true %}  b  {%- endif -%}  c"), "a  bc");
  EXPECT_EQ(render("  {% if true %}\nx\n  {% endif %}\ny"), "x\ny");
  EXPECT_EQ(render("  {%+ if true +%}\nx{% endif %}"), "  \nx");
  EXPECT_EQ(render("a {# note #}\nb\n"), "a b");
  EXPECT_EQ(render("a\r\nb {{- ' c' -}} \n d\n\n"), "a\nb cd\n");
}

TEST(ChatTemplate, WhatIsNotBuiltIsNoFaultOfTheExample) {
  for (const char* source :
       {"{{ dict([['a', 1]]) }}", "{{ dict('') }}", "{{ namespace([]) }}", "{{ 1e999 }}", "{{ '{:{}}'.format(1, 2) }}",
        "{{ '{:>{w}}'.format(1, w=2) }}", "{{ '{:.}'.format(1.5) }}"}) {
    try {
      render(source);
      ADD_FAILURE() << "accepted: " << source;
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find("not supported"), std::string::npos) << error.what();
    }
  }
}

struct Refusal {
  const char* source;
  const char* where;
  const char* message;
};

template <class Kind>
void expect_refused(const Refusal& refusal) {
  try {
    render(refusal.source);
    ADD_FAILURE() << "accepted: " << refusal.source;
  } catch (const Kind& error) {
    EXPECT_EQ(error.where(), refusal.where) << refusal.source;
    EXPECT_NE(error.message().find(refusal.message), std::string::npos) << error.what();
  }
}

TEST(ChatTemplate, TemplatesThatDoNotParseNameTheLine) {
  const std::string deep = std::string(200, '(') + "1" + std::string(200, ')'), chain = "{{ 1" + [] {
    std::string s;
    for (int i = 0; i < 5000; ++i) s += "+1";
    return s;
  }() + " }}";
  const std::string nested = "{{ " + deep + " }}";
  const Refusal cases[] = {{"a\n{% if x %}b", "t.jinja:2", "endif"},
                           {"{{ a", "t.jinja:1", "not closed"},
                           {"{{ 'a }}", "t.jinja:1", "not closed"},
                           {"{# a", "t.jinja:1", "not closed"},
                           {"\n\n{% include 'x' %}", "t.jinja:3", "{% include %} is not supported"},
                           {"{{ x | nofilter }}", "t.jinja:1", "filter \"nofilter\" is not supported"},
                           {"a\n{{ 'a'.swapcase() }}", "t.jinja:2", "str.swapcase() is not supported"},
                           {"{{ '%*d' % (3, 4) }}", "t.jinja:1", "not supported"},
                           {"{{ x is notest }}", "t.jinja:1", "test \"notest\""},
                           {"{{ 1 + }}", "t.jinja:1", "expected an expression"},
                           {"{% endfor %}", "t.jinja:1", "endfor"},
                           {"{{ ) }}", "t.jinja:1", "unexpected"},
                           {"{{ a ! b }}", "t.jinja:1", "unexpected character"},
                           {"{% for x y %}{% endfor %}", "t.jinja:1", "expected \"in\""},
                           {"{% break %}", "t.jinja:1", "outside a loop"},
                           {"{{ 99999999999999999999 }}", "t.jinja:1", "too large"},
                           {nested.c_str(), "t.jinja:1", "64 levels"},
                           {chain.c_str(), "t.jinja:1", "400"},
                           {"{{ a[1:2:3:4] }}", "t.jinja:1", "three parts"},
                           {"{{ f(a=1, 2) }}", "t.jinja:1", "positional"},
                           {"{{ f(*a, *b) }}", "t.jinja:1", "* twice"},
                           {"{{ f(**a, b) }}", "t.jinja:1", "follows **"},
                           {"{{ f(a=1, a=2) }}", "t.jinja:1", "repeated"}};
  for (const Refusal& refusal : cases) expect_refused<FormatError>(refusal);
}

TEST(ChatTemplate, ChatsThatATemplateRefusesNameItsLine) {
  const Refusal cases[] = {
      {"\n{{ raise_exception('only two turns') }}", "t.jinja:2", "only two turns"},
      {"{{ nothing.x }}", "t.jinja:1", "'nothing' is undefined"},
      {"{{ 'a' + messages[0].name }}", "t.jinja:1", "'name' is undefined"},
      {"{{ 1 + 'a' }}", "t.jinja:1", "unsupported operand"},
      {"{{ 1 / 0 }}", "t.jinja:1", "division by zero"},
      {"{{ 1 // 0 }}", "t.jinja:1", "division by zero"},
      {"{{ 1 % 0 }}", "t.jinja:1", "division by zero"},
      {"{{ 'a key of forty characters, no end: %(k5' % {} }}", "t.jinja:1", "incomplete format key"},
      {"{{ 'a' < 1 }}", "t.jinja:1", "comparison"},
      {"{% for x in 5 %}{% endfor %}", "t.jinja:1", "not iterable"},
      {"{{ nope() }}", "t.jinja:1", "undefined"},
      {"{{ 'a'() }}", "t.jinja:1", "not callable"},
      {"{{ range(none) }}", "t.jinja:1", "integers"},
      {"{{ range(1, none) }}", "t.jinja:1", "integers"},
      {"{{ range(1, 5, none) }}", "t.jinja:1", "integers"},
      {"{{ range(stop=3) }}", "t.jinja:1", "1 to 3 arguments"},
      {"{{ range() }}", "t.jinja:1", "1 to 3 arguments"},
      {"{{ 'a'.split('') }}", "t.jinja:1", "empty separator"},
      {"{{ messages.append(1) }}", "t.jinja:1", "append"},
      {"{% set messages.x = 1 %}", "t.jinja:1", "non-namespace"},
      {"{% for a, b in [[1]] %}{% endfor %}", "t.jinja:1", "unpack"}};
  for (const Refusal& refusal : cases) expect_refused<DataError>(refusal);
}

TEST(ChatTemplate, BombsAreStopped) {
  const Refusal cases[] = {
      {"{{ 'a' * 999999999 }}", "t.jinja:1", "16 MiB"},
      {"{% for i in range(99999) %}{{ 'aaaaaaaa' * 100 }}{% endfor %}", "t.jinja:1", "16 MiB"},
      {"{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% set x = i %}{% endfor %}", "t.jinja:1",
       "steps"},
      {"{{ range(9999999) }}", "t.jinja:1", "100,000"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "t.jinja:1", "32 levels"},
      {"{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}", "t.jinja:1",
       "100 levels"},
      {"{% set ns = namespace(x=1) %}{% set ns.x = ns %}", "t.jinja:1", "namespace"},
      {"{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "t.jinja:1",
       "16 MiB"}};
  for (const Refusal& refusal : cases) expect_refused<FormatError>(refusal);
}

TEST(ChatTemplate, FailingRowsNameWhatIsWrong) {
  const auto chat_template = ChatTemplate::parse("{{ messages[0].x }}", "t");
  const std::vector<Message> broken = {{"user", "a", "{"}};
  EXPECT_THROW(chat_template->render(broken), DataError);
  const std::vector<Message> deep = {{"user", "a", "{\"x\":" + std::string(5000, '[') + std::string(5000, ']') + "}"}};
  EXPECT_THROW(chat_template->render(deep), DataError);
  EXPECT_THROW(chat_template->render(kChat, {.tools_json = "{}"}), DataError);
}

TEST(ChatTemplate, IsFoundInItsFileThenInTheConfig) {
  const TemporaryFolder folder;
  EXPECT_THROW(ChatTemplate::load(folder.path()), FormatError);
  testing_support::write_text(folder / "tokenizer_config.json",
                              R"({"chat_template": "one {{ bos_token }}", "bos_token": "<s>"})");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(kChat).text, "one <s>");
  testing_support::write_text(
      folder / "tokenizer_config.json",
      R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "two"}]})");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(kChat).text, "two");
  testing_support::write_text(folder / "tokenizer_config.json",
                              R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_THROW(ChatTemplate::load(folder.path()), FormatError);
  testing_support::write_text(folder / "chat_template.jinja", "three");
  EXPECT_EQ(ChatTemplate::load(folder.path())->source(), "three");
}

TEST(EndOfTurn, IsTheTokenBehindTheAnswer) {
  LORA_TRAIN_REQUIRE_DATA(qwen, "qwen2.5");
  LORA_TRAIN_REQUIRE_DATA(mistral, "mistral/v3");
  const auto end_of = [](const ChatTemplate& chat_template, const std::filesystem::path& folder) {
    const auto tokenizer = Tokenizer::load(folder);
    const auto id = end_of_turn(chat_template, *tokenizer).id;
    return id ? tokenizer->id_to_token(*id) : std::string("none");
  };
  EXPECT_EQ(end_of(*ChatTemplate::load(qwen), qwen), "<|im_end|>");
  EXPECT_EQ(end_of(*ChatTemplate::load(mistral), mistral), "</s>");
  EXPECT_EQ(
      end_of(*ChatTemplate::parse("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "t"), mistral),
      "none");
  EXPECT_EQ(end_of(*ChatTemplate::parse("{{ raise_exception('no') }}", "t"), mistral), "none");
}

TEST(TrainedTokens, AnyTouchingByteCounts) {
  const std::vector<ByteRange> offsets = {{0, 2}, {2, 4}, {4, 6}, {6, 6}, {6, 9}, {6, 9}, {9, 10}, {10, 12}};
  const std::vector<ByteRange> spans = {{3, 4}, {7, 8}, {11, 20}};
  EXPECT_EQ(trained_tokens(offsets, spans), (std::vector<std::uint8_t>{0, 1, 0, 0, 1, 1, 0, 1}));
}

TEST(ChatTemplate, SeesAStopRequestInsideALoop) {
  const StopRequests requests;
  const auto loops =
      ChatTemplate::parse("{% for a in range(100) %}{% for b in range(100) %}{% endfor %}{% endfor %}", "t.jinja");
  set_max_time(0);
  EXPECT_THROW(loops->render(kChat), StopError);
  EXPECT_THROW(ChatTemplate::parse(loops->source(), "t.jinja"), StopError);
}

// Looking for the content in what was rendered is linear: finding it by trial would take hours.
TEST(ChatTemplate, LooksForLeftOutContentInLinearTime) {
  const std::vector<Message> messages = {{"user", std::string(8 << 20, 'a')},
                                         {"assistant", std::string(4 << 20, 'a') + "b"}};
  const auto chat_template =
      ChatTemplate::parse("{% for m in messages %}{{ m.content | replace('b', '') }}{% endfor %}", "t.jinja");
  const RenderedChat chat = chat_template->render(messages);
  ASSERT_EQ(chat.omissions.size(), 1U);
  EXPECT_EQ(chat.omissions[0].field, "content");
}

}  // namespace
}  // namespace lora_train::tokenizer
