#include "lora_train/data/plan/micro_batch.h"

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

Ints ints(std::span<const std::int32_t> part) { return {part.begin(), part.end()}; }

TEST(MicroBatch, LaysDocumentsSideBySideWithShiftedLabels) {
  HostBuffer buffer;
  const MicroBatch batch = build_micro_batch(three_documents(), {{2, 1, 0}, {5, 6, 7}}, buffer);
  EXPECT_EQ(ints(batch.ids), (Ints{30, 31, 20, 10, 11, 12}));
  EXPECT_EQ(ints(batch.positions), (Ints{0, 1, 0, 0, 1, 2}));
  EXPECT_EQ(ints(batch.labels), (Ints{31, -100, -100, -100, 12, -100}));
  EXPECT_EQ(ints(batch.cu_seqlens), (Ints{0, 2, 3, 6}));
  EXPECT_EQ(ints(batch.document_in_step), (Ints{5, 6, 7}));
  EXPECT_EQ(batch.max_document_tokens, 3);
  EXPECT_EQ(batch.num_supervised, 2);
}

TEST(MicroBatch, HasTheShapeThatIsKnownBeforeItIsBuilt) {
  HostBuffer buffer;
  const DocumentStore store = three_documents();
  for (const MicroBatchPlan& plan : {MicroBatchPlan{{0, 2, 1}, {5, 6, 7}}, MicroBatchPlan{{1}, {0}}}) {
    const BatchShape shape = shape_of(store, plan);
    const MicroBatch batch = build_micro_batch(store, plan, buffer);
    EXPECT_EQ(shape.num_tokens, std::ssize(batch.ids));
    EXPECT_EQ(shape.num_docs, std::ssize(batch.cu_seqlens) - 1);
    EXPECT_EQ(shape.num_docs, std::ssize(plan.documents));
    EXPECT_EQ(shape.longest, batch.max_document_tokens);
    EXPECT_EQ(shape.longest, batch.cu_seqlens[1]) << "the first document is the longest";
  }
}

DocumentStore weighted_documents() {
  StoreBuilder builder;
  const auto file = builder.add_file("rows.jsonl");
  builder.append(Ints{10, 11, 12}, Ints{10, -100, 12}, file, 1, std::vector<float>{0.75F, 0, 0.5F});
  builder.append(Ints{20}, Ints{20}, file, 2);
  builder.append(Ints{30, 31, 32}, Ints{30, 31, 32}, file, 4, std::vector<float>{7, 0.25F, 4});
  return builder.build();
}

TEST(DocumentStore, SumsWeightsOfSupervisedTokens) {
  const DocumentStore store = weighted_documents(), plain = three_documents();
  EXPECT_TRUE(store.has_weights());
  EXPECT_FALSE(plain.has_weights());
  EXPECT_EQ(store.weight_sum(0), 0.5);
  EXPECT_EQ(store.weight_sum(1), 0);
  EXPECT_EQ(store.weight_sum(2), 4.25);
  EXPECT_EQ(plain.weight_sum(0), 1);
  DocumentStore cut = store.empty_copy();
  cut.append_from(store, 2, 2);
  EXPECT_EQ(cut.weight_sum(0), 0.25) << "of an example that was cut, the weights of what is left";
  EXPECT_EQ(cut.weights(0).size(), 2U);
  EXPECT_TRUE(store.subset(std::vector<std::uint32_t>{2}).has_weights());
}

TEST(MicroBatch, ShiftsWeightsAsLabels) {
  StoreBuilder builder;
  builder.append(Ints{40, 41}, Ints{-100, 41}, builder.add_file("plain.jsonl"), 1);
  HostBuffer buffer;
  const MicroBatch batch = build_micro_batch(weighted_documents(), {{2, 1, 0}, {0, 1, 2}}, buffer);
  EXPECT_EQ(std::vector<float>(batch.weights.begin(), batch.weights.end()),
            (std::vector<float>{0.25F, 4, 0, 0, 0, 0.5F, 0}));
  EXPECT_EQ(batch.weight_sum, 4.75);
  EXPECT_EQ(batch.num_supervised, 3);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(batch.weights.data()) % 64, 0U);
  EXPECT_TRUE(build_micro_batch(weighted_documents(), {{1}, {0}}, buffer).weights.empty());
  const MicroBatch plain = build_micro_batch(builder.build(), {{0}, {0}}, buffer);
  EXPECT_TRUE(plain.weights.empty());
  EXPECT_EQ(plain.weight_sum, 1);
}

TEST(MicroBatch, DocumentsWithoutWeightsBesideOthersHaveOnes) {
  StoreBuilder builder;
  const auto file = builder.add_file("f");
  builder.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, file, 1);
  builder.append(Ints{4, 5}, Ints{-100, 5}, file, 2, std::vector<float>{0, 0.5F});
  HostBuffer buffer;
  const MicroBatch batch = build_micro_batch(builder.build(), {{0, 1}, {0, 1}}, buffer);
  EXPECT_EQ(std::vector<float>(batch.weights.begin(), batch.weights.end()), (std::vector<float>{1, 1, 0, 0.5F, 0}));
  EXPECT_EQ(batch.weight_sum, 2.5);
}

TEST(MicroBatch, PartsAreAlignedAndInOrder) {
  HostBuffer buffer;
  const MicroBatch batch = build_micro_batch(three_documents(), {{0, 2, 0, 2, 0, 2, 0}, {0, 1, 2, 3, 4, 5, 6}}, buffer);
  const std::int32_t* end = batch.ids.data();
  for (const auto part : {batch.ids, batch.labels, batch.positions, batch.cu_seqlens, batch.document_in_step}) {
    EXPECT_GE(part.data(), end);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.data()) % 64, 0U);
    end = part.data() + part.size();
  }
}

TEST(MicroBatch, EmptyPlanHasNoDocument) {
  HostBuffer buffer;
  const MicroBatch batch = build_micro_batch(three_documents(), {}, buffer);
  EXPECT_TRUE(batch.ids.empty());
  EXPECT_EQ(ints(batch.cu_seqlens), Ints{0});
}

// Counts what it gave and got back.
class CountingMemory : public std::pmr::memory_resource {
 public:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    ++num_allocated;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    ++num_released;
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
  int num_allocated = 0, num_released = 0;
};

TEST(HostBuffer, KeepsItsMemoryUntilMoreIsNeeded) {
  CountingMemory memory;
  {
    HostBuffer buffer(&memory);
    const auto* first = buffer.resize(100).data();
    EXPECT_EQ(buffer.resize(1).data(), first);
    EXPECT_EQ(buffer.resize(100).size(), 100U);
    EXPECT_EQ(memory.num_allocated, 1);
    buffer.resize(1000);
    HostBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.resize(1000).size(), 1000U);
    EXPECT_EQ(memory.num_allocated, 2);
    EXPECT_EQ(memory.num_released, 1);
  }
  EXPECT_EQ(memory.num_released, 2);
}

}  // namespace
}  // namespace lora_train::data
