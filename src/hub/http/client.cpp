#include "lora_train/hub/http/client.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/library.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/version.h"
#include "lora_train/hub/http/url.h"
#include "retry.h"

namespace lora_train::hub {
namespace {

struct Curl {
  SharedLibrary library;
  decltype(&::curl_global_init) global_init = library.find("curl_global_init");
  decltype(&::curl_easy_init) easy_init = library.find("curl_easy_init");
  decltype(&::curl_easy_cleanup) easy_cleanup = library.find("curl_easy_cleanup");
  decltype(&::curl_easy_reset) easy_reset = library.find("curl_easy_reset");
  decltype(&::curl_easy_setopt) easy_setopt = library.find("curl_easy_setopt");
  decltype(&::curl_easy_getinfo) easy_getinfo = library.find("curl_easy_getinfo");
  decltype(&::curl_easy_strerror) easy_strerror = library.find("curl_easy_strerror");
  decltype(&::curl_multi_init) multi_init = library.find("curl_multi_init");
  decltype(&::curl_multi_cleanup) multi_cleanup = library.find("curl_multi_cleanup");
  decltype(&::curl_multi_add_handle) multi_add_handle = library.find("curl_multi_add_handle");
  decltype(&::curl_multi_remove_handle) multi_remove_handle = library.find("curl_multi_remove_handle");
  decltype(&::curl_multi_perform) multi_perform = library.find("curl_multi_perform");
  decltype(&::curl_multi_poll) multi_poll = library.find("curl_multi_poll");
  decltype(&::curl_multi_info_read) multi_info_read = library.find("curl_multi_info_read");
  decltype(&::curl_slist_append) slist_append = library.find("curl_slist_append");
  decltype(&::curl_slist_free_all) slist_free_all = library.find("curl_slist_free_all");
};

/// libcurl.so.4, or Debian's libcurl-gnutls.so.4. Throws IoError if neither can be loaded.
Curl load_curl() {
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
    const Curl curl{SharedLibrary(name)};
    if (curl.library.problem().empty() && curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) return curl;
  }
  throw IoError("libcurl.so.4",
                "is not on this machine, and lora-train needs it for HTTP. Install it (Debian and Ubuntu: apt-get "
                "install libcurl4), or download with another tool into the same cache.");
}

/// It stays loaded. Thread-safe.
const Curl& curl() {
  static const Curl loaded = load_curl();
  return loaded;
}

/// Handles of libcurl; the connection stays open for the next transfer. One transfer at a time.
struct Connection {
  Connection() {
    if (easy == nullptr || multi == nullptr) throw std::bad_alloc();
  }
  ~Connection() {
    curl().easy_cleanup(easy);
    curl().multi_cleanup(multi);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  CURL* const easy = curl().easy_init();
  CURLM* const multi = curl().multi_init();
};

struct TransferResult {
  Answer answer;
  std::string redirect;  ///< where the answer points, absolute; empty if nowhere
};

/// A failure that may be temporary: the caller may try again.
struct TransferBreak {
  TransferError error;
  bool may_retry = false;
  bool may_have_begun = false;  ///< the server may have acted on the request
};

constexpr int kPollMs = 100, kMaxRedirects = 10;
constexpr std::size_t kMaxErrorBody = 64u << 10;
constexpr long kBufferBytes = 512 << 10;

/// The certificates in a variable that other programs know too; empty: libcurl's own.
std::string certificate_file() {
  for (const char* name : {"SSL_CERT_FILE", "CURL_CA_BUNDLE"}) {
    if (const char* file = std::getenv(name); file != nullptr && *file != '\0') return file;
  }
  return {};
}

struct FailureText {
  Failure failure;
  std::string text;
  bool may_retry;
  bool may_have_begun = true;
};

FailureText failure_of(CURLcode code, const Request& request, const std::string& detail) {
  const std::string why = detail.empty() ? "" : fmt::format(" ({})", detail);
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
      return {Failure::kNoHost, fmt::format("the host name has no address{}; check the name and the network.", why),
              true, false};
    case CURLE_COULDNT_RESOLVE_PROXY:
      return {Failure::kNoHost, fmt::format("the proxy name has no address{}; check http_proxy and https_proxy.", why),
              true, false};
    case CURLE_COULDNT_CONNECT:
      return {Failure::kNoConnect, "no server answers there" + why + "; check the address, the network and the proxy.",
              true, false};
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
      return {Failure::kTls,
              "the server's certificate is not trusted" + why +
                  "; if your own authority signed it, name that authority's certificates in SSL_CERT_FILE.",
              false, false};
    case CURLE_SSL_CONNECT_ERROR:
      return {Failure::kTls, "no secure connection" + why + "; the server may not speak TLS there.", true, false};
    case CURLE_OPERATION_TIMEDOUT:
      return {Failure::kStalled,
              fmt::format("nothing arrived for {:.0f} s{}; the network or the server has stalled.",
                          request.stall_timeout_s, why),
              true};
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_HTTP3: return {Failure::kLost, fmt::format("the connection broke{}.", why), true};
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING: return {Failure::kLost, "the server there does not speak HTTP" + why + ".", false};
    default: return {Failure::kOther, fmt::format("the request failed{}.", why), false};
  }
}

void refuse_control_characters(const std::string& what, std::string_view text) {
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }))
    throw ConfigError(what, "holds a control character or a line end, and cannot be sent.");
}

/// Sends a request as it is: its url, its range. Adds the bytes that went to the sink to `num_delivered`. State of
/// libcurl's callbacks, which are C. They catch what the sink throws; run() throws it again.
class Transfer {
 public:
  Transfer(const Connection& connection, const Request& request, std::uint64_t& num_delivered)
      : easy_(connection.easy), multi_(connection.multi), request_(request), num_delivered_(num_delivered) {}

  ~Transfer() {
    if (is_added_) curl_.multi_remove_handle(multi_, easy_);
    curl_.easy_reset(easy_);
    curl_.slist_free_all(header_list_);
  }

  /// Throws TransferBreak.
  TransferResult run(const std::string& user_agent) {
    set_connection(user_agent);
    set_headers();
    set_body();
    const CURLcode code = perform();
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
    if (code != CURLE_OK) fail(code);
    TransferResult result;
    result.answer = std::move(answer_);
    result.answer.url = request_.url;
    const char* redirect = nullptr;
    curl_.easy_getinfo(easy_, CURLINFO_REDIRECT_URL, &redirect);
    if (redirect != nullptr) result.redirect = redirect;
    return result;
  }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    const CURLcode code = curl_.easy_setopt(easy_, option, value);
    if (code == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
    if (code != CURLE_OK && code != CURLE_UNKNOWN_OPTION) fail(code);  // an older libcurl may lack options
  }

  void set_connection(const std::string& user_agent) {
    set(CURLOPT_ERRORBUFFER, detail_.data());
    set(CURLOPT_URL, request_.url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);  // those of a proxy are not the answer
    set(CURLOPT_QUICK_EXIT, 1L);                // a stop does not wait for a name server
    set(CURLOPT_TCP_KEEPALIVE, 1L);
    set(CURLOPT_BUFFERSIZE, kBufferBytes);
    set(CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(1000 * request_.connect_timeout_s));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(request_.stall_timeout_s));
    set(CURLOPT_SSL_VERIFYPEER, 1L);
    set(CURLOPT_SSL_VERIFYHOST, 2L);
    if (const std::string file = certificate_file(); !file.empty()) set(CURLOPT_CAINFO, file.c_str());
    set(CURLOPT_USERAGENT, user_agent.c_str());
    set(CURLOPT_WRITEFUNCTION, on_body);
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_HEADERFUNCTION, on_header);
    set(CURLOPT_HEADERDATA, this);
  }

  void set_headers() {
    add_header("Expect:");  // a server that does not know it would cost a second
    for (const auto& [name, value] : request_.headers) {
      refuse_control_characters(name, value);
      add_header(fmt::format("{}: {}", name, value));
    }
    if (!request_.bearer.empty()) {
      refuse_control_characters("token", request_.bearer);
      add_header("Authorization: Bearer " + request_.bearer);
    }
    set(CURLOPT_HTTPHEADER, header_list_);
    if (request_.range) {
      range_ = fmt::format("{}-{}", request_.range->begin, request_.range->end - 1);
      set(CURLOPT_RANGE, range_.c_str());
    }
  }

  void set_body() {
    if (request_.file) {
      file_ = Descriptor(::open(request_.file->file.c_str(), O_RDONLY | O_CLOEXEC));
      if (!file_.is_open()) fail_with(request_.file->file, "cannot open");
      set(CURLOPT_UPLOAD, 1L);
      set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_.file->num_bytes));
      set(CURLOPT_READFUNCTION, on_read);
      set(CURLOPT_READDATA, this);
      set(CURLOPT_SEEKFUNCTION, on_seek);
      set(CURLOPT_SEEKDATA, this);
    } else if (!request_.body.empty() || request_.method == "POST") {
      set(CURLOPT_POSTFIELDS, request_.body.c_str());
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
    }
    if (request_.method == "HEAD")
      set(CURLOPT_NOBODY, 1L);
    else if (request_.method != "GET" || request_.file || !request_.body.empty())
      set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
  }

  void add_header(const std::string& line) {
    curl_slist* const longer = curl_.slist_append(header_list_, line.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    header_list_ = longer;
  }

  CURLcode perform() {
    curl_.multi_add_handle(multi_, easy_);
    is_added_ = true;
    for (;;) {
      int num_running = 0, num_messages = 0;
      curl_.multi_perform(multi_, &num_running);
      if (const CURLMsg* message = curl_.multi_info_read(multi_, &num_messages); message != nullptr)
        return message->data.result;
      curl_.multi_poll(multi_, nullptr, 0, kPollMs, nullptr);
      request_.poll();
    }
  }

  [[noreturn]] void fail(CURLcode code) const {
    const std::string detail = detail_[0] != '\0' ? trimmed(detail_.data()) : std::string(curl_.easy_strerror(code));
    const FailureText text = failure_of(code, request_, detail);
    throw TransferBreak{{shown_url(request_.url), text.text, text.failure}, text.may_retry, text.may_have_begun};
  }

  [[noreturn]] void refuse_answer(const std::string& message, Failure failure) const {
    throw TransferBreak{{shown_url(request_.url), message, failure}};
  }

  void take_header(std::string_view line) {
    if (line.starts_with("HTTP/")) {  // the first of an answer; one with 1xx may come before it
      answer_ = {};
      const auto space = line.find(' ');
      answer_.status = space == std::string_view::npos ? 0 : std::atoi(std::string(line.substr(space)).c_str());
      return;
    }
    if (const auto colon = line.find(':'); colon != std::string_view::npos)
      answer_.headers.push_back({std::string(line.substr(0, colon)), trimmed(line.substr(colon + 1))});
    else if (is_blank(line))
      require_range();
  }

  void require_range() const {
    if (!request_.range || !answer_.is_ok()) return;
    const ByteRange& range = *request_.range;
    const bool is_part = answer_.status == 206 && content_range_begin(answer_.header("Content-Range")) == range.begin;
    const bool is_whole =
        answer_.status == 200 && range.begin == 0 && answer_.header("Content-Length") == std::to_string(range.end);
    if (!is_part && !is_whole) refuse_answer("the server sent bytes other than those requested.", Failure::kNoRanges);
  }

  void take_body(std::string_view bytes) {
    if (answer_.is_ok() && request_.sink) {
      request_.sink(bytes);
      num_delivered_ += bytes.size();
      return;
    }
    if (!answer_.is_ok()) {
      answer_.body += bytes.substr(0, kMaxErrorBody - std::min(answer_.body.size(), kMaxErrorBody));
      return;
    }
    if (answer_.body.size() + bytes.size() > request_.max_body_bytes)
      refuse_answer("the answer is longer than " + format_bytes(request_.max_body_bytes) + ".", Failure::kTooLarge);
    answer_.body += bytes;
  }

  /// Runs `work` for a callback; false if it has thrown.
  template <class Work>
  bool guard(const Work& work) {
    try {
      work();
      return true;
    } catch (...) {
      thrown_ = std::current_exception();
      return false;
    }
  }

  static std::size_t on_header(char* bytes, std::size_t size, std::size_t count, void* self) {
    const std::string_view line(bytes, size * count);
    auto& transfer = *static_cast<Transfer*>(self);
    return transfer.guard([&] { transfer.take_header(line); }) ? line.size() : 0;
  }

  static std::size_t on_body(char* bytes, std::size_t size, std::size_t count, void* self) {
    const std::string_view piece(bytes, size * count);
    auto& transfer = *static_cast<Transfer*>(self);
    return transfer.guard([&] { transfer.take_body(piece); }) ? piece.size() : piece.size() + 1;
  }

  static std::size_t on_read(char* buffer, std::size_t size, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    std::size_t num_read = CURL_READFUNC_ABORT;
    transfer.guard([&] { num_read = transfer.read_file(buffer, size * count); });
    return num_read;
  }

  std::size_t read_file(char* buffer, std::size_t size) {
    const FilePart& part = *request_.file;
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(size, part.num_bytes - num_sent_));
    if (wanted == 0) return 0;
    const auto num_read = ::pread(file_.get(), buffer, wanted, static_cast<off_t>(part.offset + num_sent_));
    if (num_read < 0) fail_with(part.file, "cannot read");
    if (num_read == 0) throw IoError(part.file.string(), "shrank while it was being sent.");
    num_sent_ += static_cast<std::uint64_t>(num_read);
    return static_cast<std::size_t>(num_read);
  }

  static int on_seek(void* self, curl_off_t offset, int origin) {
    if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
    static_cast<Transfer*>(self)->num_sent_ = static_cast<std::uint64_t>(offset);
    return CURL_SEEKFUNC_OK;
  }

  const Curl& curl_ = curl();
  CURL* const easy_;
  CURLM* const multi_;
  const Request& request_;
  std::uint64_t& num_delivered_;
  std::uint64_t num_sent_ = 0;
  Answer answer_;
  std::string range_;
  std::array<char, CURL_ERROR_SIZE> detail_{};
  curl_slist* header_list_ = nullptr;
  Descriptor file_;
  bool is_added_ = false;
  std::exception_ptr thrown_;
};

double random_share() {
  thread_local std::minstd_rand engine(std::random_device{}());
  return std::uniform_real_distribution<double>(0, 1)(engine);
}

void wait(double seconds, const std::function<void()>& poll) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/// Changes `request` to what a redirect asks for.
void redirect_to(Request& request, const std::string& url, int status) {
  if (!may_redirect(request.url, url))
    throw TransferBreak{{shown_url(request.url),
                         "redirects to " + shown_url(url) + ", which lora-train does not follow: " +
                             "only to http and https, and never from https to http.",
                         Failure::kRedirect}};
  if (origin_of(url) != origin_of(request.url)) request.bearer.clear();
  if (status == 303 || (status != 307 && status != 308 && request.method == "POST")) {
    if (request.method != "HEAD") request.method = "GET";
    request.body.clear();
    request.file.reset();
  }
  request.url = url;
}

Answer follow_redirects(Connection& connection, Request request, const std::string& user_agent,
                        std::uint64_t& num_delivered) {
  for (int hops = 0; hops <= kMaxRedirects; ++hops) {
    TransferResult result = Transfer(connection, request, num_delivered).run(user_agent);
    if (!is_redirect(result.answer.status) || result.redirect.empty()) return std::move(result.answer);
    redirect_to(request, result.redirect, result.answer.status);
  }
  throw TransferBreak{
      {shown_url(request.url), fmt::format("more than {} redirects in a row.", kMaxRedirects), Failure::kRedirect}};
}

}  // namespace

struct Client::Impl {
  explicit Impl(ClientOptions given) : options(given) {}

  ClientOptions options;
  std::string user_agent = "lora-train/" + version();
  std::mutex mutex;
  std::vector<std::unique_ptr<Connection>> idle = {};

  std::unique_ptr<Connection> take() {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_unique<Connection>();
    auto connection = std::move(idle.back());
    idle.pop_back();
    return connection;
  }
  void give_back(std::unique_ptr<Connection> connection) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(connection));
  }

  /// How long to wait before the next try; nothing: no more tries.
  std::optional<double> delay(int num_failed, const Answer* answer) const {
    if (num_failed >= options.num_retries) return std::nullopt;
    const double ours = retry_delay(num_failed, options.first_delay_s, random_share());
    if (answer == nullptr) return ours;
    const auto theirs = parse_retry_after(answer->header("Retry-After"), std::time(nullptr));
    if (theirs && *theirs > kLongestRetryAfterS) return std::nullopt;
    return std::max(ours, theirs.value_or(0));
  }
};

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>(options)) {
  curl();  // throws if there is none
}

Client::~Client() = default;

Answer Client::send(const Request& original) {
  if (origin_of(original.url).empty())
    throw ConfigError(shown_url(original.url), "is not a URL of the form https://host/path or http://host/path.");
  Request request = original;
  if (!request.poll) request.poll = throw_if_stop_requested;
  auto connection = impl_->take();
  for (int num_failed = 0;;) {
    std::uint64_t num_delivered = 0;
    std::optional<double> delay;
    std::string why;
    try {
      Answer answer = follow_redirects(*connection, request, impl_->user_agent, num_delivered);
      const bool may_repeat = request.is_repeatable || answer.status == 429 || answer.status == 503;
      if (is_transient(answer.status) && may_repeat) delay = impl_->delay(num_failed, &answer);
      if (!delay) {
        impl_->give_back(std::move(connection));
        return answer;
      }
      why = fmt::format("answered {}", answer.status);
    } catch (const TransferBreak& lost) {
      connection = std::make_unique<Connection>();  // libcurl may keep leftovers in this one
      if (request.range) request.range->begin += num_delivered;
      if (request.range && request.range->begin == request.range->end) return {.status = 206, .url = request.url};
      if (num_delivered > 0 && request.range) num_failed = 0;
      const bool is_half_read = num_delivered > 0 && !request.range;
      const bool may_repeat = request.is_repeatable || !lost.may_have_begun;
      if (lost.may_retry && may_repeat && !is_half_read) delay = impl_->delay(num_failed, nullptr);
      if (!delay) throw lost.error;
      why = lost.error.message();
    }
    log_debug("{}: {} Next try in {:.1f} s", shown_url(request.url), why, *delay);
    ++num_failed;
    wait(*delay, request.poll);
  }
}

}  // namespace lora_train::hub
