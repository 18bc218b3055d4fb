#include "lora_train/data/plan/batch_class.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "lora_train/base/ceil_div.h"

namespace lora_train::data {
namespace {

constexpr std::int64_t kStep = 128;     // token capacities are multiples of this
constexpr std::size_t kMaxSizes = 256;  // number of sizes to choose classes from

/// Micro-batches of similar size; num_tokens is that of the largest.
struct Size {
  std::int64_t num_tokens = 0, count = 0, tokens = 0;  ///< tokens: total of all of them
};

/// Sizes in ascending order, at most kMaxSizes; merges neighbours if there are more.
std::vector<Size> sizes_of(const std::vector<BatchShape>& shapes, std::int64_t max_tokens) {
  std::map<std::int64_t, Size> by_capacity;
  std::int64_t step = kStep;
  while (max_tokens / step > static_cast<std::int64_t>(kMaxSizes)) step *= 2;
  for (const BatchShape& shape : shapes) {
    const std::int64_t capacity = std::min(round_up(shape.num_tokens, step), max_tokens);
    Size& size = by_capacity[capacity];
    size.num_tokens = capacity;
    size.count += shape.count;
    size.tokens += shape.count * shape.num_tokens;
  }
  std::vector<Size> sizes;
  for (const auto& [capacity, size] : by_capacity) sizes.push_back(size);
  return sizes;
}

/// Indices of the sizes to use as capacities, chosen to fill as few slots as possible: least[k][i] is the smallest
/// number of filled slots for the first i sizes in k classes.
std::vector<std::size_t> choose_capacities(const std::vector<Size>& sizes) {
  const std::size_t n = sizes.size(), most = std::min(kMaxBatchClasses, n);
  constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
  std::vector<std::vector<std::int64_t>> least(most + 1, std::vector<std::int64_t>(n + 1, kNever));
  std::vector<std::vector<std::size_t>> begin(most + 1, std::vector<std::size_t>(n + 1, 0));
  least[0][0] = 0;
  for (std::size_t k = 1; k <= most; ++k) {
    for (std::size_t i = 1; i <= n; ++i) {
      std::int64_t count = 0, tokens = 0;
      for (std::size_t j = i; j-- > 0;) {  // sizes j .. i - 1 in one class
        count += sizes[j].count;
        tokens += sizes[j].tokens;
        if (least[k - 1][j] == kNever) continue;
        const std::int64_t filled = least[k - 1][j] + count * sizes[i - 1].num_tokens - tokens;
        if (filled < least[k][i]) {
          least[k][i] = filled;
          begin[k][i] = j;
        }
      }
    }
  }
  std::size_t classes = most;
  while (classes > 1 && least[classes - 1][n] == least[classes][n]) --classes;
  std::vector<std::size_t> chosen;
  for (std::size_t i = n; classes > 0; i = begin[classes--][i]) chosen.push_back(i - 1);
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

bool grows_too_much(const BatchClass& larger, const BatchShape& shape) {
  const auto filled = static_cast<double>(larger.num_tokens - shape.num_tokens);
  return filled > kMaxFilledShare * static_cast<double>(shape.num_tokens) + static_cast<double>(kFillerTokens);
}

using ShapeCounts = std::map<std::array<std::int64_t, 3>, std::int64_t>;

void count_shapes(const DocumentStore& store, const std::vector<MicroBatchPlan>& plan, ShapeCounts& counts) {
  for (const auto& micro : plan) {
    if (micro.documents.empty()) continue;
    const BatchShape shape = shape_of(store, micro);
    ++counts[{shape.num_tokens, shape.num_docs, shape.longest}];
  }
}

std::vector<BatchShape> shapes_of(const ShapeCounts& counts) {
  std::vector<BatchShape> shapes;
  for (const auto& [sizes, count] : counts) shapes.push_back({sizes[0], sizes[1], sizes[2], count});
  return shapes;
}

}  // namespace

std::vector<BatchClass> choose_batch_classes(const std::vector<BatchShape>& shapes, std::int64_t max_tokens) {
  if (shapes.empty()) return {};
  const std::vector<Size> sizes = sizes_of(shapes, max_tokens);
  std::vector<BatchClass> classes;
  for (const std::size_t index : choose_capacities(sizes)) classes.push_back({sizes[index].num_tokens, 0, 0});
  for (const BatchShape& shape : shapes) {
    const auto fits = [&](const BatchClass& c) { return shape.num_tokens <= c.num_tokens; };
    const auto found = std::find_if(classes.begin(), classes.end(), fits);
    if (found == classes.end() || grows_too_much(*found, shape)) continue;
    found->num_docs = std::max(found->num_docs, shape.num_docs + num_fillers(found->num_tokens - shape.num_tokens));
    found->longest = std::max(found->longest, shape.longest);
  }
  std::erase_if(classes, [](const BatchClass& c) { return c.num_docs == 0; });
  for (BatchClass& c : classes) c.longest = std::min(round_up(c.longest, kStep), c.num_tokens);
  return classes;
}

int find_batch_class(const std::vector<BatchClass>& classes, const BatchShape& shape) {
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const BatchClass& c = classes[i];
    if (shape.num_tokens > c.num_tokens || shape.longest > c.longest) continue;
    if (shape.num_docs + num_fillers(c.num_tokens - shape.num_tokens) > c.num_docs) continue;
    return grows_too_much(c, shape) ? -1 : static_cast<int>(i);
  }
  return -1;
}

std::int64_t num_surveyed_steps(const RunPlan& plan) { return std::min(plan.total_steps(), kMaxSurveyedSteps); }

std::vector<BatchShape> batch_shapes(const DocumentStore& store, const RunPlan& plan) {
  ShapeCounts counts;
  for (std::int64_t step = 1; step <= num_surveyed_steps(plan); ++step)
    count_shapes(store, plan.step(step).micro_batches, counts);
  return shapes_of(counts);
}

std::vector<BatchShape> batch_shapes(const std::vector<NamedStore>& stores,
                                     const std::vector<std::vector<MicroBatchPlan>>& plans) {
  ShapeCounts counts;
  for (std::size_t i = 0; i < stores.size(); ++i) count_shapes(stores[i].store, plans.at(i), counts);
  return shapes_of(counts);
}

}  // namespace lora_train::data
