// The torch wheel has Gloo in libtorch_cpu.so and the header of c10d's ProcessGroupGloo, but not the Gloo headers that
// it includes. This file declares only the names in it: we just pass on pointers to these types, so their layout does
// not matter. CMakeLists.txt makes files with the names of Gloo's headers that include this file. tests/unit/ranks
// checks which functions our code takes from the library.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace rendezvous {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace rendezvous

namespace transport {

class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};

}  // namespace transport
}  // namespace gloo
