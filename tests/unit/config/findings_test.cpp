#include "lora_train/config/value/findings.h"

#include <gtest/gtest.h>

namespace lora_train {
namespace {

template <class Kind>
std::string message_of(const Findings& findings) {
  try {
    findings.throw_mistakes();
  } catch (const Kind& error) {
    return error.what();
  }
  return {};
}

TEST(Findings, AreSortedByFileAndLineAndThoseWithoutAPlaceComeLast) {
  Findings findings;
  EXPECT_NO_THROW(findings.throw_mistakes());
  findings.mistake({}, "d", "wrong.");
  findings.mistake({"b.yaml", 9}, "a", "wrong.");
  findings.mistake({"a.yaml", 1}, "c", "wrong.");
  findings.mistake({"b.yaml", 2}, "b", "wrong.");
  findings.mistake({"b.yaml", 2}, "b", "wrong in another way.");
  findings.hint("Read more.");
  findings.hint("Read more.");
  EXPECT_EQ(message_of<ConfigError>(findings),
            "b.yaml:2: b: wrong.\nb.yaml:9: a: wrong.\na.yaml:1: c: wrong.\nd: wrong.\nRead more.");
}

TEST(Findings, OfOneKindEndWithItsCodeAndOfSeveralAsAUsageError) {
  Findings findings;
  findings.mistake({"a", 1}, "model", "not there.", ExitCode::kFormat);
  EXPECT_EQ(message_of<FormatError>(findings), "a:1: model: not there.");
  findings.mistake({"a", 2}, "datasets[0].path", "not there.", ExitCode::kData);
  EXPECT_EQ(message_of<ConfigError>(findings), "a:1: model: not there.\na:2: datasets[0].path: not there.");
}

TEST(Findings, ConcernAKeyAndWhatIsInside) {
  Findings findings;
  findings.mistake({}, "datasets[1].weight", "wrong.");
  EXPECT_TRUE(findings.is_wrong("datasets"));
  EXPECT_TRUE(findings.is_wrong("datasets[1]"));
  EXPECT_TRUE(findings.is_wrong("datasets[1].weight"));
  EXPECT_FALSE(findings.is_wrong("datasets[0]"));
  EXPECT_FALSE(findings.is_wrong("data"));
}

TEST(Findings, APlaceIsReadBackFromItsText) {
  for (const Place& place : {Place{"a.yaml", 12}, Place{"--set", 0}, Place{"a:b.yaml", 3}, Place{"a.yaml:", 0}}) {
    const Place again = parse_place(place.text());
    EXPECT_EQ(again.file, place.file);
    EXPECT_EQ(again.line, place.line);
  }
}

}  // namespace
}  // namespace lora_train
