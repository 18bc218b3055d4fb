#include "lora_train/kernels/sequences.h"

#include <algorithm>
#include <utility>

#include "dispatch/arguments.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {

void list_chunks(std::span<const std::int32_t> cu_seqlens, std::span<std::int32_t> cu_chunks,
                 std::span<std::int32_t> chunk_sequence) {
  std::size_t count = 0;
  cu_chunks[0] = 0;
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const auto chunks = static_cast<std::size_t>((cu_seqlens[s + 1] - cu_seqlens[s] + kChunkTokens - 1) / kChunkTokens);
    if (count + chunks > chunk_sequence.size()) {
      throw ShapeError("list_chunks", "there are more than {} chunks", chunk_sequence.size());
    }
    std::ranges::fill(chunk_sequence.subspan(count, chunks), static_cast<std::int32_t>(s));
    cu_chunks[s + 1] = static_cast<std::int32_t>(count += chunks);
  }
  std::ranges::fill(chunk_sequence.subspan(count), -1);
}

Sequences make_sequences(std::vector<std::int64_t> cu_seqlens, at::Device device) {
  const std::vector<std::int32_t> cu(cu_seqlens.begin(), cu_seqlens.end());
  std::vector<std::int32_t> cu_chunks(cu.size()), chunk_sequence;
  const std::int64_t most = most_chunks(cu_seqlens.back(), std::ssize(cu_seqlens) - 1);
  chunk_sequence.resize(static_cast<std::size_t>(most));
  list_chunks(cu, cu_chunks, chunk_sequence);
  chunk_sequence.resize(static_cast<std::size_t>(cu_chunks.back()));
  const auto put = [&](const std::vector<std::int32_t>& list) { return at::tensor(list, at::kInt).to(device); };
  return {std::move(cu_seqlens), put(cu), put(cu_chunks), put(chunk_sequence), {}};
}

void check_sequences(const char* kernel, const Sequences& sequences, std::int64_t num_tokens) {
  check_lengths(kernel, "cu_seqlens", sequences.cu_seqlens, num_tokens);
  if (sequences.state_rows.defined())
    check_vector(kernel, "state_rows", sequences.state_rows, sequences.size(), at::kLong);
}

HostRanges host_ranges(const Sequences& sequences, std::int64_t num_tokens) {
  return {sequences.cu_seqlens.data(), sequences.size(), num_tokens, read<std::int64_t>(sequences.state_rows)};
}

DeviceRanges device_ranges(const char* kernel, const Sequences& sequences, std::int64_t num_tokens) {
  check_vector(kernel, "cu_seqlens_device", sequences.cu_seqlens_device, sequences.size() + 1, at::kInt);
  return {read<std::int32_t>(sequences.cu_seqlens_device), sequences.size(), num_tokens,
          read<std::int64_t>(sequences.state_rows)};
}

}  // namespace lora_train::kernels
