#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <new>

#include "lora_train/base/error.h"
#include "lora_train/data/plan/micro_batch.h"
#include "plan_support.h"

namespace lora_train::data {
namespace {

using std::chrono::milliseconds;

PrefetchOptions workers(std::int64_t num_workers, std::int64_t prefetch_factor,
                        std::pmr::memory_resource& memory = *std::pmr::new_delete_resource()) {
  PrefetchOptions options;
  options.num_workers = num_workers;
  options.prefetch_factor = prefetch_factor;
  options.memory = &memory;
  return options;
}

// Thread-safe memory that counts, and that can be told to fail or to wait.
class TestMemory : public std::pmr::memory_resource {
 public:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes > largest) {
      throw std::bad_alloc();
    }
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

void expect_same(const MicroBatch& got, const DocumentStore& store, const MicroBatchPlan& plan) {
  HostBuffer buffer;
  const MicroBatch expected = build_micro_batch(store, plan, buffer);
  const auto same = [](std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  EXPECT_TRUE(same(got.ids, expected.ids));
  EXPECT_TRUE(same(got.labels, expected.labels));
  EXPECT_TRUE(same(got.positions, expected.positions));
  EXPECT_TRUE(same(got.cu_seqlens, expected.cu_seqlens));
  EXPECT_TRUE(same(got.document_in_step, expected.document_in_step));
  EXPECT_EQ(got.num_supervised, expected.num_supervised);
}

TEST(BatchPrefetcher, DeliversEveryMicroBatchInOrderWhateverTheThreads) {
  const DocumentStore store = store_of(random_lengths(300, 14, 50, 31));
  const RunPlan plan(store, options_with(7, 2, 3)), reference(store, options_with(7, 2, 3));
  for (const auto& [num_workers, prefetch] : {std::pair{0, 2}, {1, 1}, {2, 2}, {5, 3}}) {
    BatchPrefetcher loader(store, plan, 2, plan.total_steps(), workers(num_workers, prefetch));
    for (std::int64_t k = 2; k <= plan.total_steps(); ++k) {
      const auto step = loader.next_step();
      ASSERT_EQ(step->step, k);
      EXPECT_EQ(documents_of(*step), documents_of(reference.step(k)));
      for (const MicroBatchPlan& micro_batch : step->micro_batches) {
        expect_same(*loader.next_micro_batch(), store, micro_batch);
      }
    }
    EXPECT_THROW(loader.next_step(), ShapeError);
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
    if (++num_begun == 6) {
      is_full.set_value();
    }
  };
  {
    BatchPrefetcher loader(store, plan, 1, plan.total_steps(), workers(3, 2, memory));
    is_full.get_future().wait();  // without anybody asking
  }
  EXPECT_EQ(memory.num_allocated, 6);
}

TEST(BatchPrefetcher, KeepsAMicroBatchAsLongAsItIsHeld) {
  const DocumentStore store = store_of(random_lengths(40, 14, 50, 33));
  const RunPlan plan(store, options_with(2, 1));
  std::vector<std::shared_ptr<const MicroBatch>> held;
  std::vector<MicroBatchPlan> plans;
  {
    BatchPrefetcher loader(store, plan, 1, 3, workers(2, 1));
    for (int k = 0; k < 3; ++k) {
      for (const MicroBatchPlan& micro_batch : loader.next_step()->micro_batches) {
        held.push_back(loader.next_micro_batch());
        plans.push_back(micro_batch);
      }
    }
  }
  ASSERT_EQ(held.size(), 6U);
  for (std::size_t i = 0; i < held.size(); ++i) {
    expect_same(*held[i], store, plans[i]);
  }
}

// One document a step, in order; the memory refuses document 5's size alone.
TEST(BatchPrefetcher, ThrowsAnErrorWhereItBelongsAndDeliversWhatComesBefore) {
  std::vector<std::uint32_t> lengths(20, 10);
  lengths[5] = 50;
  const DocumentStore store = store_of(lengths);
  PlanOptions options = options_with(1, 1);
  options.packing = options.shuffle = false;
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
    EXPECT_THROW(loader.next_step(), ShapeError);
    EXPECT_THROW(loader.next_step(), ShapeError);
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
        if (i % 2 == 0) {
          loader.next_step();
        }
        loader.next_micro_batch();
      }
    }
    EXPECT_EQ(memory.num_allocated, memory.num_released);
  }
}

TEST(BatchPrefetcher, ReportsAWaitAndNamesWhatIsWaitedFor) {
  const DocumentStore store = store_of({50, 50, 50});
  PlanOptions plan_options = options_with(3, 2);
  plan_options.shuffle = false;
  const RunPlan plan(store, plan_options);
  std::promise<void> was_reported;
  TestMemory memory;
  memory.before_allocate = [is_reported = was_reported.get_future().share()] { is_reported.wait(); };
  PrefetchOptions options = workers(1, 1, memory);
  options.stall_after = milliseconds(1);
  int num_reports = 0;
  options.report_stall = [&](const std::string& report) {
    if (report.find("step 1, micro-batch 1 of 2, 2 documents, the first is f:1") != std::string::npos &&
        ++num_reports == 2) {
      was_reported.set_value();
    }
  };
  BatchPrefetcher loader(store, plan, 1, 1, options);
  loader.next_step();
  EXPECT_EQ(loader.next_micro_batch()->ids.size(), 100U);
  EXPECT_GE(num_reports, 2);
  EXPECT_GE(loader.data_wait_ms(), 2.0);
}

TEST(BatchPrefetcher, TellsHowLongEachStepWaited) {
  const DocumentStore store = store_of({50, 50});
  const RunPlan plan(store, options_with(1, 1));
  std::promise<void> was_reported;
  TestMemory memory;
  memory.before_allocate = [is_reported = was_reported.get_future().share()] { is_reported.wait(); };
  PrefetchOptions options = workers(1, 1, memory);
  options.stall_after = milliseconds(200);
  int num_reports = 0;
  options.report_stall = [&](const std::string&) {
    if (++num_reports == 1) {
      was_reported.set_value();
    }
  };
  BatchPrefetcher loader(store, plan, 1, 2, options);
  loader.next_step();
  loader.next_micro_batch();
  EXPECT_GE(loader.data_wait_ms(), 200.0);
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
