// The server of a teacher: whether it answers, the line that starts it, and starting it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace lora_train::teach {

struct ServerOptions {
  std::string url;    ///< "http://host:8000/v1"
  std::string model;  ///< what the server is to serve; may be empty
  bool starts = false;
  std::string command;  ///< in place of vLLM's
  std::filesystem::path log;
  double timeout_s = 1800;                ///< until a server that was started answers
  std::int64_t tensor_parallel_size = 0;  ///< 0 = the GPUs that are visible here, at least 1
  std::int64_t max_model_len = 32768;
  std::string dtype = "auto";
  double gpu_memory_utilization = 0.9;
};

/// Whether the host of the URL is this machine.
bool is_local(const std::string& url);

class TeacherProcess;

class TeacherServer {
 public:
  explicit TeacherServer(ServerOptions options);
  ~TeacherServer();

  /// Returns once the server is healthy: GET /health, where it has one, and then /v1/models. Starts it if it is to be started and does
  /// not answer, and ends it when this object is destroyed. Throws IoError, with the line that starts it, if it does not answer;
  /// with its last lines, if it ends early; StopError.
  void get_ready();

  bool is_started() const { return process_ != nullptr; }
  /// GPUs that a started server takes.
  std::int64_t num_gpus() const;
  /// The process has ended by itself; its last lines are logged.
  void log_end() const;

 private:
  void wait_for_start();

  ServerOptions options_;
  std::unique_ptr<TeacherProcess> process_;
};

}  // namespace lora_train::teach
