#include "lora_train/data/plan/batch_class.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan_support.h"

namespace lora_train::data {
namespace {

using Classes = std::vector<BatchClass>;

std::int64_t filled(const Classes& classes, const std::vector<BatchShape>& shapes) {
  std::int64_t slots = 0;
  for (const auto& shape : shapes) {
    const int index = find_batch_class(classes, shape);
    if (index >= 0) slots += shape.count * (classes[static_cast<std::size_t>(index)].num_tokens - shape.num_tokens);
  }
  return slots;
}

std::ptrdiff_t num_outside(const Classes& classes, const std::vector<BatchShape>& shapes) {
  return std::ranges::count_if(shapes, [&](const BatchShape& shape) { return find_batch_class(classes, shape) < 0; });
}

TEST(BatchClass, FullRowsAreOneClassWithoutFilling) {
  EXPECT_TRUE(choose_batch_classes({}, 4096).empty());
  EXPECT_EQ(choose_batch_classes({{1000, 1, 1000}}, 1000), (Classes{{1000, 1, 1000}})) << "no more than the buffers";
  const Classes classes = choose_batch_classes({{4096, 2, 2048, 100}}, 4096);
  EXPECT_EQ(classes, (Classes{{4096, 2, 2048}}));
}

TEST(BatchClass, EverySizeHasToFit) {
  const Classes classes = {{1024, 4, 512}};
  for (const auto& [shape, found] : {std::pair{BatchShape{1024, 4, 512}, 0},
                                     {BatchShape{1025, 4, 512}, -1},
                                     {BatchShape{1024, 4, 513}, -1},
                                     {BatchShape{1024, 5, 512}, -1},
                                     {BatchShape{900, 3, 512}, 0},
                                     {BatchShape{900, 4, 512}, -1}}) {  // a filler is a document too
    EXPECT_EQ(find_batch_class(classes, shape), found) << shape.num_tokens << " " << shape.num_docs;
  }
}

TEST(BatchClass, RoomForFillersAndTheLongestDocument) {
  const Classes classes = choose_batch_classes({{1000, 3, 500}, {900, 7, 300}}, 2048);
  ASSERT_EQ(classes.size(), 1U) << "both round up to 1024";
  EXPECT_EQ(classes[0].num_tokens, 1024);
  EXPECT_EQ(classes[0].longest, 512);
  for (const auto& shape : {BatchShape{1000, 3, 500}, BatchShape{900, 7, 300}}) {
    const int index = find_batch_class(classes, shape);
    ASSERT_GE(index, 0);
    const BatchClass& c = classes[static_cast<std::size_t>(index)];
    EXPECT_GE(c.num_docs, shape.num_docs + num_fillers(c.num_tokens - shape.num_tokens));
    EXPECT_GE(c.longest, shape.longest);
  }
}

TEST(BatchClass, SixClassesOutOfManySizesFillFewSlots) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> lengths(8.0, 0.5);
  std::vector<BatchShape> shapes;
  std::int64_t tokens = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto n = std::clamp<std::int64_t>(static_cast<std::int64_t>(lengths(random)), 200, 16384);
    shapes.push_back({n, 4, n / 3});
    tokens += n;
  }
  const Classes classes = choose_batch_classes(shapes, 16384);
  EXPECT_LE(classes.size(), kMaxBatchClasses);
  EXPECT_TRUE(std::ranges::is_sorted(classes, {}, &BatchClass::num_tokens));
  // Six classes of a quarter reach from 1 to 4; the longest is fifty times the shortest here.
  EXPECT_LT(num_outside(classes, shapes), 600);
  EXPECT_LT(static_cast<double>(filled(classes, shapes)), 0.12 * static_cast<double>(tokens));
  // Equal steps leave more micro-batches without a class.
  Classes even = classes;
  for (std::size_t i = 0; i < even.size(); ++i)
    even[i] = {16384 * (static_cast<std::int64_t>(i) + 1) / std::ssize(even), 1000, 16384};
  EXPECT_LT(num_outside(classes, shapes), num_outside(even, shapes) / 2);
}

TEST(BatchClass, WhatWouldGrowTooMuchIsComputedAsItComes) {
  std::vector<BatchShape> shapes = {{4096, 2, 2048, 1000}, {300, 1, 300, 1}};
  for (std::int64_t n = 3000; n <= 4096; n += 8) shapes.push_back({n, 2, n / 2, 50});
  const Classes classes = choose_batch_classes(shapes, 4096);
  EXPECT_EQ(find_batch_class({{4096, 40, 4096}}, {2048, 1, 2048}), -1);
  EXPECT_EQ(find_batch_class({{4096, 40, 4096}}, {3500, 1, 2048}), 0);
  EXPECT_EQ(find_batch_class({{512, 8, 512}}, {320, 1, 320}), 0) << "a filler document more never matters";
  EXPECT_LE(classes.size(), kMaxBatchClasses);
}

TEST(BatchClass, OrderOfTheShapesDoesNotMatter) {
  std::vector<BatchShape> shapes;
  for (std::int64_t n = 100; n < 3000; n += 37) shapes.push_back({n, n % 5 + 1, n / 2, n % 3 + 1});
  const Classes classes = choose_batch_classes(shapes, 4096);
  std::ranges::reverse(shapes);
  EXPECT_EQ(choose_batch_classes(shapes, 4096), classes);
}

TEST(BatchClass, ShapesOfEvaluationsAreCountedTogether) {
  const std::vector<NamedStore> stores = {{"a", store_of({5, 7, 5}), {}}, {"b", store_of({7, 3}), {}}};
  const auto plan_of = [](const std::vector<Documents>& micro_batches) {
    std::vector<MicroBatchPlan> plan;
    for (const auto& documents : micro_batches) plan.push_back({documents, {}});
    return plan;
  };
  const auto shapes = batch_shapes(stores, {plan_of({{0}, {1, 2}, {}}), plan_of({{0}, {1}, {0}})});
  std::vector<std::vector<std::int64_t>> got;
  for (const auto& shape : shapes) got.push_back({shape.num_tokens, shape.num_docs, shape.longest, shape.count});
  EXPECT_EQ(got, (std::vector<std::vector<std::int64_t>>{{3, 1, 3, 1}, {5, 1, 5, 1}, {7, 1, 7, 2}, {12, 2, 7, 1}}));
}

}  // namespace
}  // namespace lora_train::data
