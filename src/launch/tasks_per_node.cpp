#include "tasks_per_node.h"

#include <charconv>

namespace lora_train::launch {
namespace {

/// Takes a positive number off the front.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 1) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

std::optional<int> tasks_on_node(std::string_view list, int node) {
  do {
    const auto tasks = take_number(list);
    std::optional<int> num_nodes = 1;
    if (take(list, "(x")) {
      num_nodes = take_number(list);
      if (!take(list, ")")) return std::nullopt;
    }
    if (!tasks || !num_nodes) return std::nullopt;
    if (node < *num_nodes) return tasks;
    node -= *num_nodes;
  } while (take(list, ","));
  return std::nullopt;
}

}  // namespace lora_train::launch
