#include "budget.h"

#include <utility>

namespace lora_train::tokenizer::jinja {
namespace {

thread_local Budget* current = nullptr;

}  // namespace

Budget::Budget(const Limits& limits) : left_(limits), given_(limits), outer_(std::exchange(current, this)) {}
Budget::~Budget() { current = outer_; }

void spend_step() {
  if (current == nullptr) return;
  if (current->left_.steps == 0) {
    throw RenderError{"the template takes more than " + std::to_string(current->given_.steps) + " steps", true, true};
  }
  --current->left_.steps;
  current->stop_poll_();
}

void spend_bytes(std::size_t bytes) {
  if (current == nullptr) return;
  if (bytes > current->left_.bytes) {
    throw RenderError{"the template creates and copies more than " + std::to_string(current->given_.bytes >> 20U) +
                          " MiB of text and lists",
                      true, true};
  }
  current->left_.bytes -= bytes;
  current->stop_poll_();
}

}  // namespace lora_train::tokenizer::jinja
