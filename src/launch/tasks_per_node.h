// The tasks of each node, as Slurm writes them.
#pragma once

#include <optional>
#include <string_view>

namespace lora_train::launch {

/// The entry of node `node` in a list such as "4(x2),1" (4, 4, 1). Empty if the list is malformed or has no such node.
std::optional<int> tasks_on_node(std::string_view list, int node);

}  // namespace lora_train::launch
