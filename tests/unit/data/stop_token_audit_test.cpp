#include <gtest/gtest.h>

#include "byte_tokenizer.h"
#include "document_checks.h"
#include "store_builder.h"

namespace lora_train::data {
namespace {

constexpr std::int32_t kFullStop = '.';  // what PlainTemplate writes behind a turn

// Ends with EOS, or where `generation_eos` says so.
class StoppingTokenizer : public ByteTokenizer {
 public:
  StoppingTokenizer(std::optional<std::int32_t> eos, std::vector<std::int32_t> generation_eos) {
    eos_id_ = eos;
    generation_eos_ids_ = std::move(generation_eos);
  }
  std::string id_to_token(std::int32_t id) const override { return "<" + std::to_string(id) + ">"; }
};

DocumentStore store_that_trains(std::int32_t id) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  builder.append(std::vector<std::int32_t>{id, 5, id}, std::vector<std::int32_t>{id, 5, id == kFullStop ? id : -100},
                 file, 1);
  return builder.build();
}

std::string warnings(const StoppingTokenizer& tokenizer, const DocumentStore& store) {
  std::string out;
  for (const std::string& warning : audit_stop_token(tokenizer, PlainTemplate(), store).warnings) {
    out += warning + "\n";
  }
  return out;
}

TEST(StopTokenAudit, SilentWhenTheEndIsKnownAndTrained) {
  const DocumentStore store = store_that_trains(kFullStop);
  EXPECT_EQ(warnings({kFullStop, {}}, store), "");
  EXPECT_EQ(warnings({257, {257, kFullStop}}, store), "");
  EXPECT_EQ(audit_stop_token(StoppingTokenizer(kFullStop, {}), PlainTemplate(), store).id, kFullStop);
}

TEST(StopTokenAudit, WarnsWhenServersWouldNotStopThere) {
  const DocumentStore store = store_that_trains(kFullStop);
  EXPECT_NE(warnings({257, {}}, store).find("<46> (id 46), but the tokenizer names <257> (id 257) as the end"),
            std::string::npos)
      << warnings({257, {}}, store);
  EXPECT_NE(warnings({kFullStop, {3}}, store).find("generation_config.json names <3> (id 3)"), std::string::npos);
  EXPECT_NE(warnings({std::nullopt, {}}, store).find("names no end token"), std::string::npos);
}

TEST(StopTokenAudit, WarnsWhenTheEndIsNeverTrained) {
  EXPECT_NE(warnings({kFullStop, {}}, store_that_trains(7)).find("is not trained in any example"), std::string::npos);
  EXPECT_EQ(warnings({kFullStop, {}}, DocumentStore()), "");  // evaluation alone: nothing is trained
}

// Writes `end` behind an answer.
class EndingTemplate : public PlainTemplate {
 public:
  explicit EndingTemplate(std::string end) : end_(std::move(end)) {}
  tokenizer::RenderedChat render(std::span<const tokenizer::Message> messages,
                                 const tokenizer::RenderOptions&) const override {
    tokenizer::RenderedChat out;
    out.text = messages.back().content + end_;
    out.spans = {{0, static_cast<std::uint32_t>(out.text.size())}};
    out.span_message = {static_cast<int>(messages.size()) - 1};
    return out;
  }

 private:
  std::string end_;
};

TEST(StopTokenAudit, AnEndInPiecesIsNoEndToken) {
  const StopTokenAudit audit =
      audit_stop_token(StoppingTokenizer(257, {}), EndingTemplate("<end>"), store_that_trains(kFullStop));
  EXPECT_FALSE(audit.id);
  ASSERT_EQ(audit.warnings.size(), 1U);
  EXPECT_NE(audit.warnings[0].find("\"<end>\", which this tokenizer cuts into 5 ordinary tokens"), std::string::npos)
      << audit.warnings[0];
}

TEST(StopTokenAudit, WarnsWhenATemplateEndsNoTurn) {
  const StopTokenAudit audit =
      audit_stop_token(StoppingTokenizer(257, {}), EndingTemplate(""), store_that_trains(kFullStop));
  EXPECT_FALSE(audit.id);
  ASSERT_EQ(audit.warnings.size(), 1U);
  EXPECT_NE(audit.warnings[0].find("no token that ends an answer"), std::string::npos) << audit.warnings[0];
}

TEST(EndOfTextAudit, WarnsWhenTheFolderNamesNoEndToken) {
  EXPECT_FALSE(audit_end_of_text(StoppingTokenizer(257, {})));
  const auto warning = audit_end_of_text(StoppingTokenizer(std::nullopt, {}));
  ASSERT_TRUE(warning);
  EXPECT_NE(warning->find("names no end token"), std::string::npos);
}

}  // namespace
}  // namespace lora_train::data
