// The template interpreter: Python's results, spans, limits, and messages.
#include "lora_train/tokenizer/chat/chat_template.h"

#include <gtest/gtest.h>

#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "support/loaded_tokenizer.h"
#include "support/refusal.h"
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

// expressions.inc is made by make_expressions.py from jinja2, set up as transformers does.
TEST(ChatTemplate, ExpressionsGiveWhatJinjaGives) {
  const std::pair<const char*, const char*> cases[] = {
#include "expressions.inc"
  };
  for (const auto& [source, result] : cases) {
    SCOPED_TRACE(source);
    EXPECT_NO_THROW(EXPECT_EQ(render(source), result));
  }
}

using Spans = std::vector<std::string>;

Spans spans_of(const std::string& source, const std::vector<Message>& messages = kChat) {
  const RenderedChat chat = ChatTemplate::parse(source, "t.jinja")->render(messages);
  Spans spans;
  for (std::size_t i = 0; i < chat.spans.size(); ++i) {
    const auto [begin, end] = chat.spans[i];
    spans.push_back(std::to_string(chat.span_message[i]) + ":" + chat.text.substr(begin, end - begin));
  }
  return spans;
}

TEST(ChatTemplate, SpansRunFromTheContentToTheEndToken) {
  const std::vector<std::pair<const char*, Spans>> cases = {
      {"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
       {"2:Hello!<|im_end|>", "4:<|im_end|>"}},
      {"{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + "
       "m['content'] | trim + '<|eot_id|>' }}{% endfor %}",
       {"2:Hello!<|eot_id|>", "4:<|eot_id|>"}},
      {"{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
       "{% else %} {{ m.content }}</s> {% endif %}{% endfor %}",
       {"2:Hello!</s>", "4:</s>"}},
      {"{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\n<think>\n\n</think>\n\n{{ m.content }}"
       "<|end|>\n{% endif %}{% endfor %}",
       {"2:<think>\n\n</think>\n\nHello!<|end|>", "4:<think>\n\n</think>\n\n<|end|>"}},
      // Generation tags decide when there are any.
      {"{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}",
       {"0:Be brief.", "1: Hi \xC3\xA9\n", "2:Hello!", "3:Bye"}}};
  for (const auto& [source, spans] : cases) EXPECT_EQ(spans_of(source), spans) << source;
  EXPECT_EQ(spans_of(cases[0].first, {{"assistant", "\nassistant\n<|im_end|>\n"}}),
            Spans{"0:\nassistant\n<|im_end|>\n<|im_end|>"})
      << "content never belongs to a header";
}

// Of each omission its message and field, and "?" where only a part is left out.
std::vector<std::string> omitted(const std::string& source, const std::vector<Message>& chat = kChat,
                                 const RenderOptions& options = {}) {
  std::vector<std::string> out;
  for (const Omission& omission : ChatTemplate::parse(source, "t")->render(chat, options).omissions) {
    out.push_back(std::to_string(omission.message) + omission.field + (omission.is_partial ? "?" : ""));
  }
  return out;
}

TEST(ChatTemplate, TellsWhichContentsAndToolsWereDropped) {
  EXPECT_EQ(omitted("{% for m in messages[1:] %}{{ m.content | trim }}{% endfor %}"),
            (std::vector<std::string>{"0content", "4tool_calls"}));
  const RenderOptions tools{.tools_json =
                                R"([{"type": "function", "function": {"name": "now"}}, {"name": "add", "x": "now"}])"};
  const auto tools_omitted = [&](const std::string& source) {
    const std::vector<Message> chat = {
        {"user", "What time is it? now or add?"},
        {"assistant", "", R"({"role": "assistant", "tool_calls": [{"function": {"name": "now"}}]})"}};
    const char* messages =
        "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}";
    return join(omitted(source + messages, chat, tools));
  };
  EXPECT_EQ(tools_omitted(""), "-1tools");
  EXPECT_EQ(tools_omitted("{{ tools | tojson }}"), "");
  EXPECT_EQ(tools_omitted("{% for t in tools %}{{ (t.function or t).name }} {% endfor %}"), "");
  EXPECT_EQ(tools_omitted("{{ tools[1].name }}"), "-1tools?");
}

TEST(ChatTemplate, TypeAndIdOfToolCallsMayBeLeftOut) {
  const auto num_omitted = [](const std::string& source, const std::string& call) {
    return omitted(source, {{"assistant", "", R"({"role": "assistant", "content": "", "tool_calls": [)" + call + "]}"}})
        .size();
  };
  const char* function = "{{ messages[0].tool_calls[0].function | tojson }}";
  EXPECT_EQ(num_omitted(function,
                        R"({"type": "function", "id": "call_1", "function": {"name": "f", "arguments": {"x": "y"}}})"),
            0U);
  EXPECT_EQ(num_omitted(function, R"({"note": "lost", "function": {"name": "f", "arguments": {"x": "y"}}})"), 1U);
  EXPECT_EQ(num_omitted("", R"({"id": "a", "function": {"id": "b"}})"), 1U) << "no part of the wrapping";
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
    EXPECT_SAYS(testing_support::refusal<FormatError>([&] { render(source); }), "not supported");
  }
}

struct Refusal {
  const char *source, *message;
  int line = 1;
};

template <class Kind>
void expect_refused(const std::vector<Refusal>& refusals) {
  for (const auto& [source, message, line] : refusals) {
    const std::string said = testing_support::refusal<Kind>([s = source] { render(s); });
    SCOPED_TRACE(std::string(source).substr(0, 100));
    EXPECT_EQ(said.find("t.jinja:" + std::to_string(line) + ": "), 0U) << said;
    EXPECT_SAYS(said, message);
  }
}

TEST(ChatTemplate, TemplatesThatDoNotParseNameTheLine) {
  const std::string nested = "{{ " + std::string(200, '(') + "1" + std::string(200, ')') + " }}";
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i) chain += "+1";
  chain += " }}";
  expect_refused<FormatError>({{"a\n{% if x %}b", "endif", 2},
                               {"{{ a", "not closed"},
                               {"{{ 'a }}", "not closed"},
                               {"{# a", "not closed"},
                               {"\n\n{% include 'x' %}", "{% include %} is not supported", 3},
                               {"{{ x | nofilter }}", "filter \"nofilter\" is not supported"},
                               {"a\n{{ 'a'.swapcase() }}", "str.swapcase() is not supported", 2},
                               {"{{ '%*d' % (3, 4) }}", "not supported"},
                               {"{{ x is notest }}", "test \"notest\""},
                               {"{{ 1 + }}", "expected an expression"},
                               {"{% endfor %}", "endfor"},
                               {"{{ ) }}", "unexpected"},
                               {"{{ a ! b }}", "unexpected character"},
                               {"{% for x y %}{% endfor %}", "expected \"in\""},
                               {"{% break %}", "outside a loop"},
                               {"{{ 99999999999999999999 }}", "too large"},
                               {nested.c_str(), "64 levels"},
                               {chain.c_str(), "400"},
                               {"{{ a[1:2:3:4] }}", "three parts"},
                               {"{{ f(a=1, 2) }}", "positional"},
                               {"{{ f(*a, *b) }}", "* twice"},
                               {"{{ f(**a, b) }}", "follows **"},
                               {"{{ f(a=1, a=2) }}", "repeated"}});
}

TEST(ChatTemplate, ChatsThatATemplateRefusesNameItsLine) {
  expect_refused<DataError>({{"\n{{ raise_exception('only two turns') }}", "only two turns", 2},
                             {"{{ nothing.x }}", "'nothing' is undefined"},
                             {"{{ 'a' + messages[0].name }}", "'name' is undefined"},
                             {"{{ 1 + 'a' }}", "unsupported operand"},
                             {"{{ 1 / 0 }}", "division by zero"},
                             {"{{ 1 // 0 }}", "division by zero"},
                             {"{{ 1 % 0 }}", "division by zero"},
                             {"{{ 'a key of forty characters, no end: %(k5' % {} }}", "incomplete format key"},
                             {"{{ 'a' < 1 }}", "comparison"},
                             {"{% for x in 5 %}{% endfor %}", "not iterable"},
                             {"{{ nope() }}", "undefined"},
                             {"{{ 'a'() }}", "not callable"},
                             {"{{ range(none) }}", "integers"},
                             {"{{ range(1, none) }}", "integers"},
                             {"{{ range(1, 5, none) }}", "integers"},
                             {"{{ range(stop=3) }}", "1 to 3 arguments"},
                             {"{{ range() }}", "1 to 3 arguments"},
                             {"{{ 'a'.split('') }}", "empty separator"},
                             {"{{ messages.append(1) }}", "append"},
                             {"{% set messages.x = 1 %}", "non-namespace"},
                             {"{% for a, b in [[1]] %}{% endfor %}", "unpack"}});
}

TEST(ChatTemplate, BombsAreStopped) {
  expect_refused<FormatError>(
      {{"{{ 'a' * 999999999 }}", "16 MiB"},
       {"{% for i in range(99999) %}{{ 'aaaaaaaa' * 100 }}{% endfor %}", "16 MiB"},
       {"{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% set x = i %}{% endfor %}", "steps"},
       {"{{ range(9999999) }}", "100,000"},
       {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "32 levels"},
       {"{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}", "100 levels"},
       {"{% set ns = namespace(x=1) %}{% set ns.x = ns %}", "namespace"},
       {"{% set ns = namespace(x=1) %}\n{% set ns.x = [ns] %}", "namespace", 2},
       {"{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "16 MiB"}});
}

TEST(ChatTemplate, RefusesBrokenFieldsOfARow) {
  const auto chat_template = ChatTemplate::parse("{{ messages[0].x }}", "t");
  for (const std::string& json :
       {std::string("{"), "{\"x\":" + std::string(5000, '[') + std::string(5000, ']') + "}"}) {
    EXPECT_THROW(chat_template->render(std::vector<Message>{{"user", "a", json}}), DataError);
  }
  EXPECT_THROW(chat_template->render(kChat, {.tools_json = "{}"}), DataError);
}

TEST(ChatTemplate, IsFoundInItsFileThenInTheConfig) {
  const TemporaryFolder folder;
  EXPECT_THROW(ChatTemplate::load(folder.path()), FormatError);
  const auto with_config = [&](const char* config) {
    testing_support::write_text(folder / "tokenizer_config.json", config);
    return ChatTemplate::load(folder.path());
  };
  EXPECT_EQ(with_config(R"({"chat_template": "one {{ bos_token }}", "bos_token": "<s>"})")->render(kChat).text,
            "one <s>");
  EXPECT_EQ(
      with_config(R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "2"}]})")
          ->source(),
      "2");
  EXPECT_THROW(with_config(R"({"chat_template": [{"name": "rag", "template": "r"}]})"), FormatError);
  testing_support::write_text(folder / "chat_template.jinja", "three");
  EXPECT_EQ(ChatTemplate::load(folder.path())->source(), "three");
}

TEST(EndOfTurn, IsTheTokenBehindTheAnswer) {
  LORA_TRAIN_REQUIRE_DATA(qwen, "qwen2.5");
  LORA_TRAIN_REQUIRE_DATA(mistral, "mistral/v3");
  const auto end_of = [](const ChatTemplate& chat_template, const std::filesystem::path& folder) {
    const Tokenizer& tokenizer = testing_support::loaded_tokenizer(folder);
    const auto id = end_of_turn(chat_template, tokenizer).id;
    return id ? tokenizer.id_to_token(*id) : std::string("none");
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
TEST(ChatTemplate, TellsWhichPartsOfAContentWereDropped) {
  const std::vector<Message> chat = {
      {"user", "",
       R"({"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]})"}};
  const std::string parts = "{% for p in messages[0].content%s %}{{ p.text }}{% endfor %}";
  const auto with = [&](const std::string& which) { return std::string(parts).replace(parts.find("%s"), 2, which); };
  EXPECT_EQ(omitted(with(""), chat), std::vector<std::string>{});
  EXPECT_EQ(omitted(with("[1:]"), chat), std::vector<std::string>{"0content?"});
  EXPECT_EQ(omitted(with("[2:]"), chat), std::vector<std::string>{"0content"});
}

TEST(ChatTemplate, LooksForLeftOutContentInLinearTime) {
  const std::vector<Message> messages = {{"user", std::string(8 << 20, 'a')},
                                         {"assistant", std::string(4 << 20, 'a') + "b"}};
  EXPECT_EQ(omitted("{% for m in messages %}{{ m.content | replace('b', '') }}{% endfor %}", messages),
            std::vector<std::string>{"1content?"});
}

// An example is the same in every epoch and after a resume, whatever the day.
TEST(TemplateDay, IsFixedAtNoon) {
  const auto chat_template = ChatTemplate::parse("{{ strftime_now('%d %b %Y %H:%M') }}|{{ messages[0].content }}", "t");
  const Message message{"user", "x"};
  chat_template->set_day("2024-02-29");
  EXPECT_EQ(chat_template->render({&message, 1}).text, "29 Feb 2024 12:00|x");
  EXPECT_EQ(chat_template->day(), "2024-02-29");
  chat_template->set_day("");
  EXPECT_NE(chat_template->render({&message, 1}).text, "29 Feb 2024 12:00|x");
  EXPECT_EQ(chat_template->day(), local_day(std::time(nullptr)));
}

TEST(TemplateDay, IsThatOfTheTemplateForTools) {
  const TemporaryFolder folder;
  write_file_atomic(folder / "chat_template.jinja", "{{ messages[0].content }}");
  std::filesystem::create_directory(folder / "additional_chat_templates");
  write_file_atomic(folder / "additional_chat_templates/tool_use.jinja", "{{ strftime_now('%Y') }}");
  const auto chat_template = ChatTemplate::load(folder.path());
  chat_template->set_day("2001-09-09");
  EXPECT_EQ(chat_template->day(), "2001-09-09");
  const Message message{"user", "x"};
  EXPECT_EQ(chat_template->for_tools().render({&message, 1}).text, "2001");
  EXPECT_EQ(ChatTemplate::parse("{{ messages[0].content }}", "t")->day(), "");
}

}  // namespace
}  // namespace lora_train::tokenizer
