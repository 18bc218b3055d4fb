#include "lora_train/config/value/mistakes.h"

#include <gtest/gtest.h>

namespace lora_train {
namespace {

template <class Kind>
std::string message_of(const Mistakes& mistakes) {
  try {
    mistakes.throw_if_any();
  } catch (const Kind& error) {
    return error.what();
  }
  return {};
}

TEST(Mistakes, AreSortedByFileAndLineAndThoseWithoutAPlaceComeLast) {
  Mistakes mistakes;
  EXPECT_NO_THROW(mistakes.throw_if_any());
  mistakes.add({}, "d", "wrong.");
  mistakes.add({"b.yaml", 9}, "a", "wrong.");
  mistakes.add({"a.yaml", 1}, "c", "wrong.");
  mistakes.add({"b.yaml", 2}, "b", "wrong.");
  mistakes.add({"b.yaml", 2}, "b", "wrong in another way.");
  mistakes.add_hint("Read more.");
  mistakes.add_hint("Read more.");
  EXPECT_EQ(message_of<ConfigError>(mistakes),
            "b.yaml:2: b: wrong.\nb.yaml:9: a: wrong.\na.yaml:1: c: wrong.\nd: wrong.\nRead more.");
}

TEST(Mistakes, OfOneKindEndWithItsCodeAndOfSeveralAsAUsageError) {
  Mistakes mistakes;
  mistakes.add({"a", 1}, "model", "not there.", ExitCode::kFormat);
  EXPECT_EQ(message_of<FormatError>(mistakes), "a:1: model: not there.");
  mistakes.add({"a", 2}, "datasets[0].path", "not there.", ExitCode::kData);
  EXPECT_EQ(message_of<ConfigError>(mistakes), "a:1: model: not there.\na:2: datasets[0].path: not there.");
}

TEST(Mistakes, ConcernAKeyAndWhatIsInside) {
  Mistakes mistakes;
  mistakes.add({}, "datasets[1].weight", "wrong.");
  EXPECT_TRUE(mistakes.concern("datasets"));
  EXPECT_TRUE(mistakes.concern("datasets[1]"));
  EXPECT_TRUE(mistakes.concern("datasets[1].weight"));
  EXPECT_FALSE(mistakes.concern("datasets[0]"));
  EXPECT_FALSE(mistakes.concern("data"));
}

TEST(Mistakes, APlaceIsReadBackFromItsText) {
  for (const Place& place : {Place{"a.yaml", 12}, Place{"--set", 0}, Place{"a:b.yaml", 3}, Place{"a.yaml:", 0}}) {
    const Place again = parse_place(place.text());
    EXPECT_EQ(again.file, place.file);
    EXPECT_EQ(again.line, place.line);
  }
}

}  // namespace
}  // namespace lora_train
