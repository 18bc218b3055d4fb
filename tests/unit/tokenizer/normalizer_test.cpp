#include "tokenizer/json/normalizer.h"

#include <gtest/gtest.h>

namespace lora_train::tokenizer {
namespace {

std::string normalized(const char* form, const std::string& text) {
  const Json json = {{"type", form}};
  NormalizedText result(text, 0, text.size());
  load_normalizer(JsonPlace(json, "test"))(result);
  return std::string(result.text());
}

TEST(Normalizer, ComposesAndReorders) {
  EXPECT_EQ(normalized("NFC", "abc e\u0301x"), "abc \u00E9x");
  EXPECT_EQ(normalized("NFC", "\u4E2D\u6587e\u0301\u4E2D"), "\u4E2D\u6587\u00E9\u4E2D");
  EXPECT_EQ(normalized("NFC", "a\u0345\u0301"), "\u00E1\u0345") << "marks by combining class, then composed";
  EXPECT_EQ(normalized("NFC", "\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(normalized("NFD", "x\u00E9"), "xe\u0301");
  EXPECT_EQ(normalized("NFKC", "\uFB01"), "fi");
}

TEST(Normalizer, SortsLongRunsOfMarksInReasonableTime) {
  std::string text = "a", low, high;
  for (int i = 0; i < 200000; ++i) {
    text += "\u0345\u0323";  // classes 240 and 220
    low += "\u0323";
    high += "\u0345";
  }
  EXPECT_TRUE(normalized("NFD", text) == "a" + low + high);
}

// Expected values from tokenizers 0.23.3, whose normaliser knows Unicode 9.
TEST(Normalizer, LeavesAloneWhatCameAfterUnicode9) {
  for (const char* text : {"a\u0345\u07FD", "a\u07FD\u0323", "\U00011935\U00011930"})
    EXPECT_EQ(normalized("NFC", text), text);
  EXPECT_EQ(normalized("NFC", "e\u07FD\u0345\u0323"), "e\u07FD\u0323\u0345")
      << "later marks are sorted among themselves";
  EXPECT_EQ(normalized("NFD", "\U00011938"), "\U00011938");
}

}  // namespace
}  // namespace lora_train::tokenizer
