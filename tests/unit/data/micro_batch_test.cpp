#include "lora_train/data/micro_batch.h"

#include <gtest/gtest.h>

#include "store_builder.h"

namespace lora_train::data {
namespace {

using Ints = std::vector<std::int32_t>;

DocumentStore three_documents() {
  StoreBuilder builder;
  const auto file = builder.add_file("rows.jsonl");
  builder.append(Ints{10, 11, 12}, Ints{10, -100, 12}, file, 1);
  builder.append(Ints{20}, Ints{20}, file, 2);
  builder.append(Ints{30, 31}, Ints{30, 31}, file, 4);
  return builder.build();
}

TEST(DocumentStore, CountsLabelsFromTheSecondPositionOn) {
  const DocumentStore store = three_documents();
  EXPECT_EQ(store.num_supervised(0), 1);
  EXPECT_EQ(store.num_supervised(1), 0);
  EXPECT_EQ(store.num_supervised(2), 1);
  EXPECT_EQ(store.total_supervised(), 2);
  EXPECT_EQ(store.total_tokens(), 6);
  EXPECT_EQ(store.longest(), 3);
  EXPECT_EQ(store.source(2), "rows.jsonl:4");
}

TEST(DocumentStore, SubsetKeepsContentAndSource) {
  const std::vector<std::uint32_t> chosen = {2, 0};
  const DocumentStore store = three_documents().subset(chosen);
  ASSERT_EQ(store.size(), 2U);
  EXPECT_EQ(Ints(store.ids(0).begin(), store.ids(0).end()), (Ints{30, 31}));
  EXPECT_EQ(Ints(store.labels(1).begin(), store.labels(1).end()), (Ints{10, -100, 12}));
  EXPECT_EQ(store.source(0), "rows.jsonl:4");
  EXPECT_EQ(store.total_supervised(), 2);
}

TEST(MicroBatch, LaysDocumentsSideBySideWithShiftedLabels) {
  const MicroBatch batch = build_micro_batch(three_documents(), {{2, 1, 0}, {5, 6, 7}});
  EXPECT_EQ(batch.ids, (Ints{30, 31, 20, 10, 11, 12}));
  EXPECT_EQ(batch.positions, (Ints{0, 1, 0, 0, 1, 2}));
  EXPECT_EQ(batch.labels, (Ints{31, -100, -100, -100, 12, -100}));
  EXPECT_EQ(batch.cu_seqlens, (Ints{0, 2, 3, 6}));
  EXPECT_EQ(batch.document_in_step, (Ints{5, 6, 7}));
  EXPECT_EQ(batch.max_document_tokens, 3);
  EXPECT_EQ(batch.num_supervised, 2);
}

TEST(MicroBatch, EmptyPlanHasNoDocument) {
  const MicroBatch batch = build_micro_batch(three_documents(), {});
  EXPECT_TRUE(batch.ids.empty());
  EXPECT_EQ(batch.cu_seqlens, Ints{0});
}

}  // namespace
}  // namespace lora_train::data
