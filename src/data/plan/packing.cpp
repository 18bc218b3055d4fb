#include "lora_train/data/plan/packing.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>

#include "lora_train/base/stop_request.h"
#include "shuffle.h"

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

// Empty bins, and the first of them that a length fits into: a binary tree whose inner nodes know the largest room
// below them.
class FirstFit {
 public:
  FirstFit(std::size_t max_bins, std::uint32_t capacity)
      : num_leaves_(std::bit_ceil(max_bins)), room_(2 * num_leaves_, capacity) {}

  /// Takes `length` from the first bin with so much room, and returns the bin.
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
      if (room_[node] == largest) {
        break;
      }
      room_[node] = largest;
    }
    return bin;
  }

 private:
  std::size_t num_leaves_;
  std::vector<std::uint32_t> room_;
};

// The documents of a window, longest first, equal lengths in order.
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
  std::vector<std::uint32_t> begins(1);  // of each bin in by_bin, and its end
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

}  // namespace lora_train::data
