// The HTTP server in front of a Service: libmicrohttpd, in its own thread, which never waits for a client or an answer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "lora_train/base/file.h"
#include "lora_train/serve/service.h"

namespace lora_train::serve {

/// A listening socket, before anything accepts connections.
class ListeningSocket {
 public:
  /// host: a name or an address; port 0: a free one. Throws IoError if it cannot listen there.
  ListeningSocket(const std::string& host, std::uint16_t port);

  /// True if only this machine can reach it.
  bool is_loopback() const { return is_loopback_; }
  /// "http://127.0.0.1:8000"
  const std::string& url() const { return url_; }
  int fd() const { return socket_.get(); }

 private:
  Descriptor socket_;
  bool is_loopback_ = false;
  std::string url_;
};

/// Empty if the library is installed; otherwise says what to install.
std::string missing_http_library();

/// A slow client delays only its own answer: a connection without bytes to send is suspended until there are some. Logs
/// one line per answered request: method, path, status, tokens, seconds.
class HttpServer {
 public:
  /// `service` and `socket` must outlive the server.
  HttpServer(Service& service, const ListeningSocket& socket);
  ~HttpServer();  ///< stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Throws IoError if the library cannot start.
  void start();
  /// Accepts no new connections; open ones get their answers and are then closed.
  void stop_accepting();
  /// Gives up answers whose waiting clients have closed their connections. Call it a few times a second.
  void drop_vanished();
  /// Waits until no request is open. Returns false if `deadline` comes first.
  bool wait_until_idle(std::chrono::steady_clock::time_point deadline);
  /// Closes all connections. No thread may call drop_vanished() meanwhile.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Ends a server: drains it, within a time that no client and no computation can extend.
///
/// While it lives, a thread looks for a requested stop (base/stop_request.h) and for clients that have gone. On a stop,
/// the server takes nothing new, and answers in progress have kDrainS to become whole; then it gives them up and
/// interrupts the computation. If the process has not reached finish() kLastResortS later, it is ended with code 0: a
/// pass can take longer.
class Drain {
 public:
  static constexpr double kDrainS = 6, kLastResortS = 3;

  /// Stops take effect through this object while it lives (defer_stops()). All must outlive it.
  Drain(HttpServer& server, RequestBoard& board);
  ~Drain();
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  /// Call it once the computation has ended. Waits until the answers are sent, as long as the time allows, and closes
  /// the server.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  void look();

  HttpServer& server_;
  RequestBoard& board_;
  std::atomic<bool> is_computing_ = true, has_ended_ = false;
  std::atomic<Clock::time_point> deadline_ = Clock::time_point::max();
  std::thread watcher_, last_resort_;
};

}  // namespace lora_train::serve
