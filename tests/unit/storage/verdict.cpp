// Test-only program for tests/parity/test_safetensors_verdict.py: opens each file named on stdin, one a line; prints
// "ok" or the refusal, one a line.
#include <iostream>

#include "lora_train/base/error.h"
#include "lora_train/storage/safetensors.h"

int main() {
  std::string path;
  while (std::getline(std::cin, path)) {
    try {
      const lora_train::storage::SafetensorsFile file(path);
      std::cout << "ok\n";
    } catch (const lora_train::FormatError& error) {
      std::cout << error.message() << "\n";
    }
  }
}
