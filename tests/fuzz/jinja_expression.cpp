// One expression with a namespace, a list, a macro and a loop around it, which gets deeper than whole templates do.
#include "fuzz/chat.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string expression(reinterpret_cast<const char*>(data), size);
  lora_train::fuzz::render_template(
      "{% set ns = namespace(a=1) %}{% set xs = [3, 'b', 2.5] %}{% set m = messages[2] %}"
      "{% macro f(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}"
      "{% for x in xs %}{% set ns.a = (" +
      expression + ") %}{{ ns.a }}{% endfor %}");
  return 0;
}
