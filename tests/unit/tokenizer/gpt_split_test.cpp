// The hand-written split against PCRE2 running the pattern that it stands for.
#include "tokenizer/split/gpt_split.h"

#include <gtest/gtest.h>

#include <random>

#include "lora_train/base/utf8.h"
#include "lora_train/tokenizer/split/text_pattern.h"
#include "support/refusal.h"
#include "tokenizer/split/regex.h"

namespace lora_train::tokenizer {
namespace {

const std::string kHead = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
const std::string kTail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kWithMarks =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kPatterns[] = {kHead + R"(\p{N})" + kTail, kHead + R"(\p{N}{1,3})" + kTail, kWithMarks};

using Ends = std::vector<std::size_t>;

Ends ends_of(const GptSplit& split, std::string_view text) {
  Ends ends;
  for (std::size_t at = 0; at < text.size();) ends.push_back(at = split.piece_end(text, at));
  return ends;
}

Ends ends_of(const Regex& regex, std::string_view text) {
  Ends ends;
  std::vector<Stretch> stretches;
  regex.split(text, stretches);
  for (const Stretch& stretch : stretches) {
    EXPECT_TRUE(stretch.is_match) << "the pattern leaves nothing out";
    ends.push_back(stretch.end);
  }
  return ends;
}

// Characters that the pattern treats in different ways, ASCII and not.
const std::u32string kInteresting =
    U"aZsStTdDmMrReEvVlL'’09 "
    U".,!\n\r\t\v\f\u00A0\u0085\u2028\u3000\u017Fſ中あé\u0301½٣Ⅷ🙂_-"
    U"\u200B\u180E\u0302\u093E\uFE0F\U000E0100\U00020000\U000E0001";

TEST(GptSplit, CutsLikeThePatternThatItRecognises) {
  for (const std::string& other : {kHead + R"(\p{N}{1,2})" + kTail, kPatterns[0] + " ", std::string()}) {
    EXPECT_FALSE(GptSplit::recognise(other)) << other;
  }
  std::mt19937 random(11);
  for (const std::string& pattern : kPatterns) {
    const auto split = GptSplit::recognise(pattern);
    ASSERT_TRUE(split) << pattern;
    const Regex regex(pattern, "test");
    for (int i = 0; i < 20000; ++i) {
      std::string text;
      for (auto length = random() % 12 + 1; length > 0; --length)
        append_utf8(text, kInteresting[random() % kInteresting.size()]);
      ASSERT_EQ(ends_of(*split, text), ends_of(regex, text)) << text;
    }
  }
}

// Every code point alone: so that no class of the table differs from PCRE2's.
TEST(GptSplit, ClassesOfAllCodePointsArePcre2sOfUnicode16) {
  const std::pair<const char*, CharClass> classes[] = {{"\\p{L}", CharClass::kLetter},
                                                       {"\\p{N}", CharClass::kNumber},
                                                       {"\\p{M}", CharClass::kMark},
                                                       {"\\s", CharClass::kSpace}};
  std::vector<CharClass> want(0x110000, CharClass::kOther);
  want['\r'] = want['\n'] = CharClass::kNewline;
  std::string all;
  for (std::uint32_t code = 0; code < 0x110000; ++code) {
    if (code < 0xD800 || code > 0xDFFF) append_utf8(all, code);
  }
  for (const auto& [pattern, cls] : classes) {
    std::vector<Stretch> stretches;
    Regex(pattern, "test").split(all, stretches);
    for (const Stretch& stretch : stretches) {
      const std::uint32_t code = utf8_char(all, stretch.begin).code_point;
      if (stretch.is_match && code != '\r' && code != '\n') want[code] = cls;
    }
  }
  int wrong = 0;
  for (std::uint32_t code = 0; code < 0x110000; ++code) wrong += CharClasses::instance().of(code) == want[code] ? 0 : 1;
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(want[0x31350], CharClass::kLetter) << "CJK extension H, Unicode 15";
  EXPECT_EQ(want[0x1C89], CharClass::kLetter) << "Unicode 16";
  EXPECT_EQ(want[0x1E4F0], CharClass::kNumber) << "Unicode 15";
  EXPECT_EQ(want[0x180E], CharClass::kOther) << "no white space since Unicode 6.3";
}

TEST(TextPattern, GivesTheFirstGroupThatTookPart) {
  const TextPattern gsm8k("#### (-?[0-9.,]+)", "--exact-match");
  EXPECT_EQ(gsm8k.find("so 3 and 4\n#### -1,234.5\n#### 7"), "-1,234.5");
  EXPECT_EQ(gsm8k.find("1234"), std::nullopt);
  const TextPattern either("(yes)|(no)", "--exact-match");
  EXPECT_EQ(either.find("oh no"), "no");
  EXPECT_EQ(TextPattern("([a-z]+)=([0-9]+)", "x").find("a=1"), "a");
}

TEST(TextPattern, GivesTheWholeMatchWithoutGroups) {
  EXPECT_EQ(TextPattern("[0-9]+", "x").find("a 12 b 34"), "12");
  EXPECT_EQ(TextPattern(R"((?s).*\b([0-9]+))", "x").find("a 12\nb 34 c"), "34");
  EXPECT_EQ(TextPattern(R"(\w+)", "x").find("¿été?"), "été");
  EXPECT_EQ(TextPattern("^b", "x").find("a\nb"), std::nullopt);
  EXPECT_EQ(TextPattern("x*", "x").find("y"), "");
}

TEST(TextPattern, RefusesWhatIsNoPatternAndGivesUpOnEndlessOnes) {
  const std::string said = testing_support::refusal<ConfigError>([] { TextPattern("(", "--exact-match"); });
  EXPECT_EQ(said.find("--exact-match: "), 0U) << said;
  EXPECT_THROW(TextPattern("\xff", "x"), ConfigError);
  EXPECT_THROW(TextPattern("(a+)+$", "x").find(std::string(2000, 'a') + "b"), ConfigError);
}

}  // namespace
}  // namespace lora_train::tokenizer
