// What the ranks of the stand-in for NCCL share, and sums over it.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace stand_in {

constexpr int kMaxRanks = 16, kMaxOps = 8;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

struct Op {
  int is_broadcast = 0, type = 0, root = 0;
  std::size_t count = 0;
  void* data = nullptr;
};

/// What a rank calls, as the others see it.
struct Posting {
  int num_ops = 0;
  Op ops[kMaxOps];
};

/// Zeros are its first state.
struct Segment {
  std::atomic<int> num_ranks, num_arrived, num_in_barrier;
  std::atomic<unsigned> generation;
  Posting postings[kMaxRanks];
  char data[kMaxRanks][kChunkBytes];
};
static_assert(std::atomic<int>::is_always_lock_free);

inline std::size_t bytes_of(int type) { return type == ncclFloat64 ? 8 : type == ncclFloat32 ? 4 : 1; }

inline std::string text_of(const Posting& posting) {
  std::string text;
  for (int i = 0; i < posting.num_ops && i < kMaxOps; ++i) {
    const Op& op = posting.ops[i];
    text += (i > 0 ? " + " : "") + std::string(op.is_broadcast != 0 ? "broadcast" : "all_reduce") + " of " +
            std::to_string(op.count) +
            (op.type == ncclFloat64   ? " fp64"
             : op.type == ncclFloat32 ? " fp32"
                                      : " bytes");
  }
  return text;
}

/// In the order of ranks: the same bits on all.
template <typename Number>
void add_all(const Segment& shared, int num_ranks, std::size_t bytes, char* data) {
  for (std::size_t at = 0; at < bytes; at += sizeof(Number)) {
    Number sum = 0;
    for (int rank = 0; rank < num_ranks; ++rank) {
      Number one;
      std::memcpy(&one, shared.data[rank] + at, sizeof one);
      sum += one;
    }
    std::memcpy(data + at, &sum, sizeof sum);
  }
}

inline bool overlap(const std::vector<Op>& ops) {
  const auto begin = [](const Op& op) { return static_cast<const char*>(op.data); };
  for (const Op& one : ops) {
    for (const Op& other : ops) {
      if (&one != &other && begin(one) <= begin(other) && begin(other) < begin(one) + one.count * bytes_of(one.type)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace stand_in
