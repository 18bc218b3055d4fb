#include "lora_train/data/plan/micro_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <new>

#include "plan_support.h"
#include "store_builder.h"
#include "support/refusal.h"

namespace lora_train::data {
namespace {

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

Ints ints(std::span<const std::int32_t> part) { return {part.begin(), part.end()}; }
Floats floats(std::span<const float> part) { return {part.begin(), part.end()}; }

DocumentStore three_documents() {
  StoreBuilder builder;
  const auto file = builder.add_file("rows.jsonl");
  builder.append(Ints{10, 11, 12}, Ints{10, -100, 12}, file, 1);
  builder.append(Ints{20}, Ints{20}, file, 2);
  builder.append(Ints{30, 31}, Ints{30, 31}, file, 4);
  return builder.build();
}

TEST(DocumentStore, CountsLabelsFromTheSecondPositionOnAndSubsetsKeepContentAndSource) {
  const DocumentStore store = three_documents();
  for (const std::size_t i : {0U, 1U, 2U}) EXPECT_EQ(store.num_supervised(i), i == 1 ? 0 : 1) << i;
  EXPECT_EQ(store.total_supervised(), 2);
  EXPECT_EQ(store.total_tokens(), 6);
  EXPECT_EQ(store.longest(), 3);
  const DocumentStore subset = store.subset(std::vector<std::uint32_t>{2, 0});
  ASSERT_EQ(subset.size(), 2U);
  EXPECT_EQ(ints(subset.ids(0)), (Ints{30, 31}));
  EXPECT_EQ(ints(subset.labels(1)), (Ints{10, -100, 12}));
  EXPECT_EQ(subset.source(0), "rows.jsonl:4");
  EXPECT_EQ(subset.total_supervised(), 2);
}

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
  builder.append(Ints{10, 11, 12}, Ints{10, -100, 12}, file, 1, Floats{0.75F, 0, 0.5F});
  builder.append(Ints{20}, Ints{20}, file, 2);
  builder.append(Ints{30, 31, 32}, Ints{30, 31, 32}, file, 4, Floats{7, 0.25F, 4});
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
  const auto file = builder.add_file("f");
  builder.append(Ints{1, 2, 3}, Ints{-100, 2, 3}, file, 1);
  builder.append(Ints{4, 5}, Ints{-100, 5}, file, 2, Floats{0, 0.5F});
  const DocumentStore partly = builder.build();
  HostBuffer buffer;
  const MicroBatch batch = build_micro_batch(weighted_documents(), {{2, 1, 0}, {0, 1, 2}}, buffer);
  EXPECT_EQ(floats(batch.weights), (Floats{0.25F, 4, 0, 0, 0, 0.5F, 0}));
  EXPECT_EQ(batch.weight_sum, 4.75);
  EXPECT_EQ(batch.num_supervised, 3);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(batch.weights.data()) % 64, 0U);
  EXPECT_TRUE(build_micro_batch(weighted_documents(), {{1}, {0}}, buffer).weights.empty());
  const MicroBatch plain = build_micro_batch(three_documents(), {{0}, {0}}, buffer);
  EXPECT_TRUE(plain.weights.empty());
  EXPECT_EQ(plain.weight_sum, 1);
  const MicroBatch both = build_micro_batch(partly, {{0, 1}, {0, 1}}, buffer);
  EXPECT_EQ(floats(both.weights), (Floats{1, 1, 0, 0.5F, 0})) << "documents without weights beside others have ones";
  EXPECT_EQ(both.weight_sum, 2.5);
}

TEST(MicroBatch, PartsAreAlignedAndInOrder) {
  HostBuffer buffer;
  const MicroBatch empty = build_micro_batch(three_documents(), {}, buffer);
  EXPECT_TRUE(empty.ids.empty());
  EXPECT_EQ(ints(empty.cu_seqlens), Ints{0});
  const MicroBatch batch = build_micro_batch(three_documents(), {{0, 2, 0, 2, 0, 2, 0}, {0, 1, 2, 3, 4, 5, 6}}, buffer);
  const std::int32_t* end = batch.ids.data();
  for (const auto part : {batch.ids, batch.labels, batch.positions, batch.cu_seqlens, batch.document_in_step}) {
    EXPECT_GE(part.data(), end);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.data()) % 64, 0U);
    end = part.data() + part.size();
  }
}

// Thread-safe memory that counts, and that can be told to fail or to wait.
class TestMemory : public std::pmr::memory_resource {
 public:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes > largest) throw std::bad_alloc();
    before_allocate();
    ++num_allocated;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    ++num_released;
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
  std::atomic<int> num_allocated = 0, num_released = 0;
  std::size_t largest = SIZE_MAX;
  std::function<void()> before_allocate = [] {};
};

TEST(HostBuffer, KeepsItsMemoryUntilMoreIsNeeded) {
  TestMemory memory;
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

using std::chrono::milliseconds;

PrefetchOptions workers(std::int64_t num_workers, std::int64_t prefetch_factor,
                        std::pmr::memory_resource& memory = *std::pmr::new_delete_resource()) {
  return {.num_workers = num_workers, .prefetch_factor = prefetch_factor, .memory = &memory, .report_stall = {}};
}

void expect_same(const MicroBatch& got, const DocumentStore& store, const MicroBatchPlan& plan) {
  HostBuffer buffer;
  const MicroBatch expected = build_micro_batch(store, plan, buffer);
  for (const auto& [part, expected_part] : {std::pair{got.ids, expected.ids},
                                            {got.labels, expected.labels},
                                            {got.positions, expected.positions},
                                            {got.cu_seqlens, expected.cu_seqlens},
                                            {got.document_in_step, expected.document_in_step}}) {
    EXPECT_TRUE(std::ranges::equal(part, expected_part));
  }
  EXPECT_EQ(got.num_supervised, expected.num_supervised);
}

TEST(BatchPrefetcher, DeliversEveryMicroBatchInOrderWhateverTheThreads) {
  const DocumentStore store = store_of(random_lengths(300, 14, 50, 31));
  const RunPlan plan(store, options_with(7, 2, 3)), reference(store, options_with(7, 2, 3));
  for (const auto& [num_workers, prefetch] : {std::pair{0, 2}, {1, 1}, {2, 2}, {5, 3}}) {
    std::vector<std::shared_ptr<const MicroBatch>> held;  // of a step; those of the last one outlive the loader
    std::vector<MicroBatchPlan> plans;
    const auto expect_held = [&] {
      for (std::size_t i = 0; i < held.size(); ++i) expect_same(*held[i], store, plans[i]);
    };
    {
      BatchPrefetcher loader(store, plan, 2, plan.total_steps(), workers(num_workers, prefetch));
      for (std::int64_t k = 2; k <= plan.total_steps(); ++k) {
        const auto step = loader.next_step();
        ASSERT_EQ(step->step, k);
        EXPECT_EQ(documents_of(*step), documents_of(reference.step(k)));
        held.clear();
        plans = step->micro_batches;
        for (std::size_t i = 0; i < plans.size(); ++i) held.push_back(loader.next_micro_batch());
        expect_held();
      }
      EXPECT_THROW(loader.next_step(), ShapeError);
    }
    ASSERT_FALSE(held.empty());
    expect_held();
  }
}

TEST(BatchPrefetcher, UsesNoMoreBuffersThanItMayBeAhead) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(200, 10));
  const RunPlan plan(store, options_with(4, 2));
  TestMemory memory;
  {
    BatchPrefetcher loader(store, plan, 1, plan.total_steps(), workers(2, 2, memory));
    for (std::int64_t k = 1; k <= plan.total_steps(); ++k) {
      const auto step = loader.next_step();
      for (std::size_t i = 0; i < step->micro_batches.size(); ++i) {
        const auto kept_for_a_copy = loader.next_micro_batch();
        EXPECT_EQ(kept_for_a_copy->ids.size(), 100U);
      }
    }
  }
  EXPECT_LE(memory.num_allocated, 2 * 2 + 1);  // one with the consumer
  EXPECT_EQ(memory.num_allocated, memory.num_released);
}

TEST(BatchPrefetcher, PreparesAheadUpToItsDepthAndNoFurther) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(200, 10));
  const RunPlan plan(store, options_with(1, 1));
  std::promise<void> is_full;
  TestMemory memory;
  std::atomic<int> num_begun = 0;
  memory.before_allocate = [&] {
    if (++num_begun == 6) is_full.set_value();
  };
  {
    BatchPrefetcher loader(store, plan, 1, plan.total_steps(), workers(3, 2, memory));
    is_full.get_future().wait();  // without anybody asking
  }
  EXPECT_EQ(memory.num_allocated, 6);
}

// One document a step, in order; the memory refuses document 5's size alone.
TEST(BatchPrefetcher, ThrowsAnErrorWhereItBelongsAndDeliversWhatComesBefore) {
  std::vector<std::uint32_t> lengths(20, 10);
  lengths[5] = 50;
  const DocumentStore store = store_of(lengths);
  PlanOptions options = unpacked(unshuffled(options_with(1, 1)));
  const RunPlan plan(store, options);
  for (const int num_workers : {0, 1, 4}) {
    TestMemory memory;
    memory.largest = 3 * 50 * sizeof(std::int32_t);
    BatchPrefetcher loader(store, plan, 1, plan.total_steps(), workers(num_workers, 4, memory));
    for (int k = 1; k <= 5; ++k) {
      EXPECT_EQ(loader.next_step()->step, k);
      EXPECT_EQ(loader.next_micro_batch()->ids.size(), 10U);
    }
    EXPECT_EQ(loader.next_step()->step, 6);
    EXPECT_THROW(loader.next_micro_batch(), std::bad_alloc);
    EXPECT_THROW(loader.next_micro_batch(), std::bad_alloc);
  }
}

TEST(BatchPrefetcher, ThrowsAnErrorOfThePlanAtItsStep) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(4, 50));
  const RunPlan plan(store, options_with(1, 1));
  for (const int num_workers : {0, 2}) {
    BatchPrefetcher loader(store, plan, 4, 6, workers(num_workers, 4));  // the plan has 4 steps
    EXPECT_EQ(loader.next_step()->step, 4);
    loader.next_micro_batch();
    for (int i = 0; i < 2; ++i) EXPECT_THROW(loader.next_step(), ShapeError);
  }
}

TEST(BatchPrefetcher, StopsAtAnyTime) {
  const DocumentStore store = store_of(std::vector<std::uint32_t>(500, 10));
  const RunPlan plan(store, options_with(2, 1));
  for (int num_taken = 0; num_taken < 12; ++num_taken) {
    TestMemory memory;
    {
      BatchPrefetcher loader(store, plan, 1, plan.total_steps(), workers(4, 2, memory));
      for (int i = 0; i < num_taken; ++i) {
        if (i % 2 == 0) loader.next_step();
        loader.next_micro_batch();
      }
    }
    EXPECT_EQ(memory.num_allocated, memory.num_released);
  }
}

// Memory that waits until the loader has reported the stall `num_reports` times.
class StallingMemory : public TestMemory {
 public:
  explicit StallingMemory(int num_reports) : num_reports_(num_reports) {
    before_allocate = [is_reported = was_reported_.get_future().share()] { is_reported.wait(); };
  }
  PrefetchOptions options(milliseconds stall_after) {
    PrefetchOptions options = workers(1, 1, *this);
    options.stall_after = stall_after;
    options.report_stall = [this](const std::string& report) {
      if (!testing_support::says(report, "micro-batch")) return;
      reports.push_back(report);
      if (std::ssize(reports) == num_reports_) was_reported_.set_value();
    };
    return options;
  }
  std::vector<std::string> reports;

 private:
  int num_reports_;
  std::promise<void> was_reported_;
};

TEST(BatchPrefetcher, ReportsAWaitAndNamesWhatIsWaitedFor) {
  const DocumentStore store = store_of({50, 50, 50});
  PlanOptions plan_options = options_with(3, 2);
  plan_options.shuffle = false;
  const RunPlan plan(store, plan_options);
  StallingMemory memory(2);
  BatchPrefetcher loader(store, plan, 1, 1, memory.options(milliseconds(1)));
  loader.next_step();
  EXPECT_EQ(loader.next_micro_batch()->ids.size(), 100U);
  ASSERT_GE(memory.reports.size(), 2U);
  EXPECT_SAYS(memory.reports[1], "step 1, micro-batch 1 of 2, 2 documents, the first is f:1");
  EXPECT_GE(loader.data_wait_ms(), 2.0);
}

TEST(BatchPrefetcher, TellsHowLongEachStepWaited) {
  const DocumentStore store = store_of({50, 50});
  const RunPlan plan(store, options_with(1, 1));
  StallingMemory memory(1);
  BatchPrefetcher loader(store, plan, 1, 2, memory.options(milliseconds(50)));
  loader.next_step();
  loader.next_micro_batch();
  EXPECT_GE(loader.data_wait_ms(), 50.0);
  const auto start = std::chrono::steady_clock::now();
  loader.next_step();
  const double waited_ms = loader.data_wait_ms();
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
  EXPECT_LE(waited_ms, passed.count()) << "the wait of step 1 is not in it";
}

TEST(BatchPrefetcher, RefusesToBeAskedOutOfTurn) {
  const DocumentStore store = store_of({50, 50});
  const RunPlan plan(store, options_with(2, 1));
  BatchPrefetcher loader(store, plan, 1, 1, workers(1, 1));
  EXPECT_THROW(loader.next_micro_batch(), ShapeError);
  loader.next_step();
  EXPECT_THROW(loader.next_step(), ShapeError);
  loader.next_micro_batch();
  loader.next_micro_batch();
  EXPECT_THROW(loader.next_micro_batch(), ShapeError);
}

}  // namespace
}  // namespace lora_train::data
