#include "lora_train/hub/http/client.h"

#include <chrono>
#include <ctime>
#include <mutex>
#include <random>
#include <thread>

#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/version.h"
#include "lora_train/hub/http/url.h"
#include "retry.h"
#include "transfer.h"

namespace lora_train::hub {
namespace {

constexpr int kMaxRedirects = 10;

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

/// Makes `request` what a redirect asks for.
void redirect_to(Request& request, const std::string& url, int status) {
  if (!may_redirect(request.url, url))
    throw TransferBreak{{shown_url(request.url),
                         "redirects to " + shown_url(url) + ", where lora-train does not go: " +
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
    TransferResult result = transfer(connection, request, user_agent, num_delivered);
    if (!is_redirect(result.answer.status) || result.redirect.empty()) return std::move(result.answer);
    redirect_to(request, result.redirect, result.answer.status);
  }
  throw TransferBreak{{shown_url(request.url), "more than " + std::to_string(kMaxRedirects) + " redirects in a row.",
                       Failure::kRedirect}};
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
  curl();  // throws where there is none
}

Client::~Client() = default;

Answer Client::send(const Request& original) {
  if (origin_of(original.url).empty())
    throw ConfigError(shown_url(original.url), "is no URL of the form https://host/path or http://host/path.");
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
      why = "answered " + std::to_string(answer.status);
    } catch (const TransferBreak& lost) {
      connection = std::make_unique<Connection>();  // of this one, libcurl may have remains
      if (request.range) request.range->begin += num_delivered;
      if (request.range && request.range->begin == request.range->end) return {.status = 206, .url = request.url};
      if (num_delivered > 0 && request.range) num_failed = 0;
      const bool is_half_read = num_delivered > 0 && !request.range;
      const bool may_repeat = request.is_repeatable || !lost.may_have_begun;
      if (lost.may_retry && may_repeat && !is_half_read) delay = impl_->delay(num_failed, nullptr);
      if (!delay) throw lost.error;
      why = lost.error.message();
    }
    log_debug(shown_url(request.url) + ": " + why + string_printf(" Next try in %.1f s", *delay));
    ++num_failed;
    wait(*delay, request.poll);
  }
}

}  // namespace lora_train::hub
