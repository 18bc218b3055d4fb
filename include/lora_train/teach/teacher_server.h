// A teacher's server: checks that it answers, shows the line that starts it, and starts it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace lora_train::teach {

struct ServerOptions {
  std::string url;    ///< "http://host:8000/v1"
  std::string model;  ///< model to serve; may be empty
  bool starts = false;
  std::string command;  ///< instead of vLLM's
  std::filesystem::path log;
  double timeout_s = 1800;                ///< for a started server to answer
  std::int64_t tensor_parallel_size = 0;  ///< 0 = the visible GPUs, at least 1
  std::int64_t max_model_len = 32768;
  std::string dtype = "auto";
  double gpu_memory_utilization = 0.9;
};

/// True if the URL's host is this machine.
bool is_local(const std::string& url);

class TeacherProcess;

class TeacherServer {
 public:
  explicit TeacherServer(ServerOptions options);
  ~TeacherServer();

  /// Returns once the server is healthy: GET /health, if it has one, and then /v1/models. If requested, starts a server
  /// that does not answer, and ends it when this object is destroyed. Throws IoError, with the line that starts it, if
  /// it does not answer; with its last lines, if it ends early; StopError.
  void get_ready();

  bool is_started() const { return process_ != nullptr; }
  /// GPUs that a started server uses.
  std::int64_t num_gpus() const;
  /// Logs the last lines of a process that has ended by itself.
  void log_end() const;

 private:
  void wait_for_start();

  ServerOptions options_;
  std::unique_ptr<TeacherProcess> process_;
};

}  // namespace lora_train::teach
