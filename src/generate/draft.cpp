#include "draft.h"

#include <algorithm>

namespace lora_train::generate {

std::size_t DraftLength::next(std::size_t most) const { return std::min(wanted_, most); }

void DraftLength::record(std::size_t num_drafted, std::size_t num_right) {
  if (num_drafted == 0) return;
  wanted_ = num_right == num_drafted ? wanted_ + 1 : std::max<std::size_t>(num_right, 1);
}

std::vector<std::int32_t> draft_of(std::span<const std::int32_t> prompt, std::span<const std::int32_t> answer,
                                   std::size_t most) {
  constexpr std::size_t kLongestEnding = 3;
  const std::size_t length = prompt.size() + answer.size();
  const auto at = [&](std::size_t i) { return i < prompt.size() ? prompt[i] : answer[i - prompt.size()]; };
  if (most == 0 || length < 2) return {};
  std::size_t begin = 0, longest = 0;
  for (std::size_t end = length - 1; end > 0 && longest < kLongestEnding;
       --end) {  // what lies before `end` is compared
    std::size_t same = 0;
    while (same < std::min(kLongestEnding, end) && at(end - 1 - same) == at(length - 1 - same)) ++same;
    if (same <= longest) continue;
    longest = same;
    begin = end;
  }
  std::vector<std::int32_t> draft;
  for (std::size_t i = begin; longest > 0 && i < length && draft.size() < most; ++i) draft.push_back(at(i));
  return draft;
}

}  // namespace lora_train::generate
