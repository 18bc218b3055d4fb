#include "lora_train/serve/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <semaphore>
#include <thread>

#include "lora_train/base/log.h"
#include "unit/data/byte_tokenizer.h"

namespace lora_train::serve {
namespace {

/// A connection of a client.
class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  void send(const std::string& bytes) const {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;  // refused before its end
      sent += static_cast<std::size_t>(count);
    }
  }
  /// Everything until the server closes.
  std::string read() const {
    std::string all;
    char block[4096];
    for (ssize_t count; (count = ::recv(fd_, block, sizeof block, 0)) > 0;)
      all.append(block, static_cast<std::size_t>(count));
    return all;
  }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

/// A server whose model answers each prompt with its own tokens.
class Http : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = missing_http_library(); !missing.empty()) GTEST_SKIP() << missing;
    set_log_level(LogLevel::kError);
  }
  void TearDown() override {
    board_.cancel_all();
    board_.close();
    if (engine_.joinable()) engine_.join();
    if (server_) server_->stop();
    set_log_level(LogLevel::kInfo);
  }
  /// Without `answers`, every request waits.
  void start(const std::string& key = "", bool answers = true) {
    service_.emplace(ServiceOptions{{{"m", &tokenizer_, &template_, {data::ByteTokenizer::kEos}, 258, {}}}, key, 1000},
                     board_);
    server_.emplace(*service_, socket_);
    board_.on_start(1000);
    server_->start();
    if (answers) engine_ = std::thread([this] { answer_all(); });
  }
  void answer_all() {
    while (const auto asked = board_.next(true)) {
      bool wants_more = true;
      for (std::size_t i = 0; wants_more && i < asked->ids.size(); ++i)
        wants_more = board_.on_token(asked->id, {asked->ids[i]});
      board_.on_done(asked->id, !wants_more);
    }
  }
  int port() const { return std::stoi(socket_.url().substr(socket_.url().rfind(':') + 1)); }

  static std::string post(const std::string& body, const std::string& more = "") {
    return "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n" +
           more + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  std::string ask(const std::string& bytes) const {
    const Client client(port());
    client.send(bytes);
    return client.read();
  }
  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  const std::string good_ = R"({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})";
  data::ByteTokenizer tokenizer_;
  data::PlainTemplate template_;
  RequestBoard board_{8};
  ListeningSocket socket_{"127.0.0.1", 0};
  std::optional<Service> service_;
  std::optional<HttpServer> server_;
  std::thread engine_;
};

TEST_F(Http, AnswersAndStreams) {
  start();
  const std::string whole = ask(post(good_));
  EXPECT_TRUE(has(whole, "HTTP/1.1 200")) << whole;
  EXPECT_TRUE(has(whole, R"("content":"user:Hi.)")) << whole;
  const std::string stream = ask(post(good_.substr(0, good_.size() - 1) + R"(, "stream": true})"));
  EXPECT_TRUE(has(stream, "text/event-stream") && has(stream, "data: [DONE]\n\n")) << stream;
}

// ApiRequest.RefusesEveryWrongBody has more bodies.
TEST_F(Http, RefusesWrongRequestsAndGoesOn) {
  start();
  std::vector<std::string> requests;
  for (const std::string& body : {std::string(), std::string("{"), std::string("\xff"), std::string(3, '\0'),
                                  std::string(200000, '['), good_ + good_, std::string(R"({"model": "none"})")}) {
    requests.push_back(post(body));
  }
  for (const char* const line :
       {"GET /v1/chat/completions", "DELETE /v1/models", "POST /", "POST /v1/completions/x", "GET /v1/models/none",
        "BREW /pot", "PUT /health", "GET /%00%ff", "GET /../../etc/passwd"}) {
    requests.push_back(std::string(line) + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }
  requests.push_back(post(std::string(kMaxBodyBytes + 1, ' ')));
  for (const std::string& request : requests) {
    const std::string answer = ask(request);
    EXPECT_TRUE(has(answer, "HTTP/1.1 4")) << request.substr(0, 200) << "\n" << answer;
    EXPECT_TRUE(has(answer, R"({"error":{"message":")")) << request.substr(0, 200) << "\n" << answer;
  }
  std::string plain = post(good_);
  plain.replace(plain.find("application/json"), 16, "text/plain");
  EXPECT_TRUE(has(ask(plain), "HTTP/1.1 415"));
  EXPECT_TRUE(has(ask(requests.back()), "HTTP/1.1 413"));
  EXPECT_TRUE(has(ask("GET /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "HTTP/1.1 405"));
  EXPECT_TRUE(has(ask("POST /v1/other HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "HTTP/1.1 404"));
  EXPECT_TRUE(has(ask(post(good_)), "HTTP/1.1 200"));
}

TEST_F(Http, SurvivesWhatIsNoHttp) {
  start();
  for (const std::string& garbage : {std::string(5000, '\0'), std::string("\x16\x03\x01"), std::string("GET\r\n\r\n"),
                                     std::string("\r\n\r\n\r\n"), std::string(100000, 'A') + "\r\n\r\n",
                                     std::string("POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n"),
                                     std::string("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
                                     std::string("GET /health HTTP/9.9\r\n\r\n"), post(good_).substr(0, 40)}) {
    Client client(port());
    client.send(garbage);
    client.close();
  }
  EXPECT_TRUE(has(ask(post(good_)), "HTTP/1.1 200"));
}

/// Holds the server's thread at each chat.
class HeldTemplate : public data::PlainTemplate {
 public:
  tokenizer::RenderedChat render(std::span<const tokenizer::Message> messages,
                                 const tokenizer::RenderOptions& options) const override {
    begun.release();
    may_go_on.acquire();
    return PlainTemplate::render(messages, options);
  }
  mutable std::counting_semaphore<> begun{0}, may_go_on{0};
};

TEST_F(Http, StopsWhileItRefusesWhatIsNoHttp) {
  const HeldTemplate held;
  Service service({{{"m", &tokenizer_, &held, {data::ByteTokenizer::kEos}, 258, {}}}, "", 1000}, board_);
  HttpServer server(service, socket_);
  board_.on_start(1000);
  server.start();
  std::vector<std::unique_ptr<Client>> clients;
  const auto send = [&](const std::string& bytes) {
    clients.push_back(std::make_unique<Client>(port()));
    clients.back()->send(bytes);
  };
  send(post(good_));
  held.begun.acquire();  // the thread gets all that is sent from here at once
  send(post(good_));
  for (int i = 0; i < 8; ++i) send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n");
  held.may_go_on.release();
  held.begun.acquire();
  std::thread stop([&] { server.stop(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  held.may_go_on.release();
  stop.join();
}

TEST_F(Http, AnswersOthersWhileClientsAreSlow) {
  start();
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 30; ++i) {
    slow.push_back(std::make_unique<Client>(port()));
    const std::string request = post(good_);
    slow.back()->send(request.substr(0, request.size() - 1 - static_cast<std::size_t>(i)));
  }
  EXPECT_TRUE(has(ask(post(good_)), "HTTP/1.1 200"));
}

TEST_F(Http, AsksForItsKey) {
  start("open sesame");
  EXPECT_TRUE(has(ask(post(good_)), "HTTP/1.1 401"));
  EXPECT_TRUE(has(ask(post(good_, "Authorization: Bearer open sesam\r\n")), "HTTP/1.1 401"));
  EXPECT_TRUE(has(ask("GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), "HTTP/1.1 401"));
  EXPECT_TRUE(has(ask(post(good_, "Authorization: Bearer open sesame\r\n")), "HTTP/1.1 200"));
  EXPECT_TRUE(has(ask("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), R"({"status":"ok"})"));
}

TEST_F(Http, GivesUpAnswersWhoseClientsHaveGone) {
  start("", /*answers=*/false);
  {
    const Client client(port());
    client.send(post(good_));
    while (!board_.next(false)) std::this_thread::yield();
    EXPECT_FALSE(server_->wait_until_idle(std::chrono::steady_clock::now())) << "somebody waits";
    EXPECT_TRUE(board_.is_wanted(0));
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (board_.is_wanted(0) && std::chrono::steady_clock::now() < deadline) server_->drop_vanished();
  EXPECT_TRUE(server_->wait_until_idle(deadline));
}

TEST_F(Http, StopsWhileAnswersAreWaitedFor) {
  start("", /*answers=*/false);
  const Client client(port());
  client.send(post(good_.substr(0, 20)));
  server_->stop_accepting();
  server_->stop();
  SUCCEED() << "the library ends the process where a connection is suspended";
}

}  // namespace
}  // namespace lora_train::serve
