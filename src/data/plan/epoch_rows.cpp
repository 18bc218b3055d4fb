#include "lora_train/data/plan/epoch_rows.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "lora_train/base/philox.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::data {

void Rows::add(std::span<const std::uint32_t> documents) {
  documents_.insert(documents_.end(), documents.begin(), documents.end());
  begins_.push_back(static_cast<std::uint32_t>(documents_.size()));
}

Rows one_document_a_row(std::span<const std::uint32_t> order) {
  Rows rows;
  rows.reserve(order.size());
  StopPoll stop_poll;
  for (std::size_t i = 0; i < order.size(); ++i) {
    stop_poll();
    rows.add(order.subspan(i, 1));
  }
  return rows;
}

Rows pack_next_fit(std::span<const std::uint32_t> order, std::span<const std::uint32_t> lengths,
                   std::int64_t max_seq_len) {
  Rows rows;
  rows.reserve(order.size());
  std::size_t begin = 0;
  std::int64_t room = max_seq_len;
  StopPoll stop_poll;
  for (std::size_t i = 0; i < order.size(); ++i) {
    stop_poll();
    const std::int64_t length = lengths[order[i]];
    assert(length >= 1 && length <= max_seq_len);
    if (length > room) {
      rows.add(order.subspan(begin, i - begin));
      begin = i;
      room = max_seq_len;
    }
    room -= length;
  }
  if (begin < order.size()) {
    rows.add(order.subspan(begin));
  }
  return rows;
}

namespace {

// Empty bins, and a search for the first bin with room for a length: a binary tree whose inner nodes store the largest
// room below them.
class FirstFit {
 public:
  FirstFit(std::size_t max_bins, std::uint32_t capacity)
      : num_leaves_(std::bit_ceil(max_bins)), room_(2 * num_leaves_, capacity) {}

  /// Takes `length` from the first bin with enough room, and returns the bin.
  std::uint32_t place(std::uint32_t length) {
    assert(length <= room_[1]);
    std::size_t node = 1;
    while (node < num_leaves_) {
      node = 2 * node + (room_[2 * node] < length ? 1 : 0);
    }
    const auto bin = static_cast<std::uint32_t>(node - num_leaves_);
    room_[node] -= length;
    while (node > 1) {
      node /= 2;
      const std::uint32_t largest = std::max(room_[2 * node], room_[2 * node + 1]);
      if (room_[node] == largest) break;
      room_[node] = largest;
    }
    return bin;
  }

 private:
  std::size_t num_leaves_;
  std::vector<std::uint32_t> room_;
};

// The documents of a window, longest first; equal lengths keep their order.
std::vector<std::uint32_t> longest_first(std::span<const std::uint32_t> window,
                                         std::span<const std::uint32_t> lengths) {
  std::vector<std::uint64_t> keys(window.size());
  for (std::size_t i = 0; i < window.size(); ++i) {
    keys[i] = std::uint64_t{UINT32_MAX - lengths[window[i]]} << 32 | i;
  }
  std::sort(keys.begin(), keys.end());
  std::vector<std::uint32_t> sorted(window.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    sorted[i] = window[static_cast<std::uint32_t>(keys[i])];
  }
  return sorted;
}

void pack_window(std::span<const std::uint32_t> window, std::span<const std::uint32_t> lengths,
                 std::int64_t max_seq_len, PhiloxKey key, std::uint32_t stream, Rows& rows) {
  const std::vector<std::uint32_t> documents = longest_first(window, lengths);
  FirstFit first_fit(documents.size(), static_cast<std::uint32_t>(max_seq_len));
  std::vector<std::uint32_t> bin_of(documents.size());
  std::vector<std::uint32_t> begins(1);  // start of each bin in by_bin, and the end
  for (std::size_t i = 0; i < documents.size(); ++i) {
    bin_of[i] = first_fit.place(lengths[documents[i]]);
    begins.resize(std::max<std::size_t>(begins.size(), bin_of[i] + 2));
    ++begins[bin_of[i] + 1];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<std::uint32_t> by_bin(documents.size()), next(begins);
  for (std::size_t i = 0; i < documents.size(); ++i) {
    by_bin[next[bin_of[i]]++] = documents[i];
  }
  for (const std::uint32_t bin : shuffled(begins.size() - 1, key, stream)) {
    rows.add(std::span(by_bin).subspan(begins[bin], begins[bin + 1] - begins[bin]));
  }
}

}  // namespace

Rows pack_first_fit_decreasing(std::span<const std::uint32_t> order, std::span<const std::uint32_t> lengths,
                               std::int64_t max_seq_len, PhiloxKey key, std::size_t window) {
  Rows rows;
  rows.reserve(order.size());
  const std::size_t num_windows = (order.size() + window - 1) / window;
  std::size_t begin = 0;
  for (std::size_t w = 0; w < num_windows; ++w) {
    throw_if_stop_requested();
    const std::size_t end = order.size() * (w + 1) / num_windows;
    pack_window(order.subspan(begin, end - begin), lengths, max_seq_len, key, static_cast<std::uint32_t>(w), rows);
    begin = end;
  }
  return rows;
}

namespace {

// Uniform in [0, bound), by multiplying a 64-bit number; the bias is below bound / 2^64.
std::uint64_t random_below(PhiloxKey key, std::uint32_t stream, std::uint64_t counter, std::uint64_t bound) {
  const PhiloxCounter bits =
      philox4x32({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), stream, 0}, key);
  const std::uint64_t value = (std::uint64_t{bits[1]} << 32) | bits[0];
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(value) * bound) >> 64);
}

}  // namespace

std::vector<std::uint32_t> shuffled(std::size_t n, PhiloxKey key, std::uint32_t stream) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  StopPoll stop_poll;
  for (std::size_t i = n; i > 1; --i) {
    stop_poll();
    std::swap(order[i - 1], order[random_below(key, stream, i, i)]);
  }
  return order;
}

std::vector<std::uint32_t> epoch_order(std::size_t n, std::uint64_t seed, int epoch, bool shuffle) {
  if (shuffle) return shuffled(n, philox_key(seed, RandomPurpose::kDataOrder, {}, static_cast<std::uint64_t>(epoch)));
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

namespace {

// Start of epoch `epoch` in the endless sequence of a range. The margin keeps 0.29 * 100 at 29.
std::uint64_t first_place(const WeightedRange& range, int epoch) {
  const double documents_per_epoch = range.weight * static_cast<double>(range.end - range.begin);
  return static_cast<std::uint64_t>(std::floor(documents_per_epoch * epoch + 1e-6));
}

}  // namespace

std::size_t num_documents_in_epoch(const PlanOptions& options, std::size_t num_documents, int epoch) {
  if (options.ranges.empty()) return num_documents;
  std::size_t count = 0;
  for (const WeightedRange& range : options.ranges) {
    count += first_place(range, epoch + 1) - first_place(range, epoch);
  }
  return count;
}

namespace {

// Adds the documents of range number r that an epoch sees, ascending, each as often as the epoch sees it.
void choose(const PlanOptions& options, std::size_t r, int epoch, std::vector<std::uint32_t>& chosen) {
  const WeightedRange& range = options.ranges[r];
  const std::size_t n = range.end - range.begin;
  std::vector<std::uint32_t> times(n);
  const std::uint64_t end = first_place(range, epoch + 1);
  StopPoll stop_poll;
  for (std::uint64_t place = first_place(range, epoch); place < end;) {
    const std::uint64_t pass = place / n, pass_end = std::min(end, (pass + 1) * n);
    const bool is_whole = pass_end - place == n;  // then it has every document, and order does not matter
    const auto order = options.shuffle && !is_whole
                           ? shuffled(n, philox_key(options.seed, RandomPurpose::kDataOrder, "weights", pass),
                                      static_cast<std::uint32_t>(r))
                           : std::vector<std::uint32_t>{};
    for (; place < pass_end; ++place) {
      stop_poll();
      const std::size_t i = place - pass * n;
      ++times[order.empty() ? i : order[i]];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    chosen.insert(chosen.end(), times[i], static_cast<std::uint32_t>(range.begin + i));
  }
}

}  // namespace

std::vector<std::uint32_t> documents_of_epoch(const PlanOptions& options, std::size_t num_documents, int epoch) {
  const std::size_t count = num_documents_in_epoch(options, num_documents, epoch);
  auto order = epoch_order(count, options.seed, epoch, options.shuffle);
  if (options.ranges.empty()) return order;
  std::vector<std::uint32_t> chosen;
  chosen.reserve(count);
  for (std::size_t r = 0; r < options.ranges.size(); ++r) {
    choose(options, r, epoch, chosen);
  }
  for (std::uint32_t& place : order) {
    place = chosen[place];
  }
  return order;
}

Rows pack_rows(std::span<const std::uint32_t> documents, std::span<const std::uint32_t> lengths,
               const PlanOptions& options, std::uint64_t number) {
  if (!options.packing) return one_document_a_row(documents);
  if (!options.shuffle) return pack_next_fit(documents, lengths, options.max_seq_len);
  const PhiloxKey key = philox_key(options.seed, RandomPurpose::kDataOrder, "packing", number);
  return pack_first_fit_decreasing(documents, lengths, options.max_seq_len, key);
}

Rows rows_of_epoch(std::span<const std::uint32_t> lengths, const PlanOptions& options, int epoch) {
  return pack_rows(documents_of_epoch(options, lengths.size(), epoch), lengths, options,
                   static_cast<std::uint64_t>(epoch));
}

std::vector<std::vector<std::uint32_t>> deal_evenly(std::span<const double> costs, std::size_t num_bins) {
  std::vector<std::uint32_t> most_expensive_first(costs.size());
  std::iota(most_expensive_first.begin(), most_expensive_first.end(), 0U);
  std::stable_sort(most_expensive_first.begin(), most_expensive_first.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return costs[a] > costs[b]; });

  using Load = std::tuple<double, std::size_t>;  // cost so far, bin
  std::priority_queue<Load, std::vector<Load>, std::greater<>> cheapest;
  for (std::size_t bin = 0; bin < num_bins; ++bin) {
    cheapest.emplace(0.0, bin);
  }
  const std::size_t share = costs.size() / num_bins;
  std::size_t num_extra = costs.size() % num_bins;  // bins that may still take one above their share
  std::vector<std::vector<std::uint32_t>> bins(num_bins);
  for (const std::uint32_t thing : most_expensive_first) {
    while (bins[std::get<1>(cheapest.top())].size() >= share + (num_extra > 0 ? 1 : 0)) {
      cheapest.pop();
    }
    const auto [cost, bin] = cheapest.top();
    cheapest.pop();
    bins[bin].push_back(thing);
    num_extra -= bins[bin].size() > share ? 1 : 0;
    cheapest.emplace(cost + costs[thing], bin);
  }
  for (auto& bin : bins) {
    std::sort(bin.begin(), bin.end());
  }
  return bins;
}

}  // namespace lora_train::data
