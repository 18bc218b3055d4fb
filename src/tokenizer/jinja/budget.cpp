#include "budget.h"

#include <utility>

namespace lora_train::tokenizer::jinja {
namespace {

thread_local Budget* current = nullptr;

}  // namespace

Budget::Budget(const Limits& limits) : left_(limits), given_(limits), outer_(std::exchange(current, this)) {}
Budget::~Budget() { current = outer_; }

void Budget::step() {
  if (left_.steps == 0) {
    throw RenderError{"the template takes more than " + std::to_string(given_.steps) + " steps", true, true};
  }
  --left_.steps;
}

void Budget::spend(std::size_t bytes) {
  if (bytes > left_.bytes) {
    throw RenderError{
        "the template makes and moves more than " + std::to_string(given_.bytes >> 20U) + " MiB of text and lists",
        true, true};
  }
  left_.bytes -= bytes;
}

void spend_step() {
  if (current != nullptr) current->step();
}

void spend_bytes(std::size_t bytes) {
  if (current != nullptr) current->spend(bytes);
}

}  // namespace lora_train::tokenizer::jinja
