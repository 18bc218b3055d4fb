// Ranks as processes: forked, because loading LibTorch takes longer than what most of them do.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lora_train/launch/world.h"

namespace lora_train::testing_support {

struct RankResult {
  int exit_code = -1;  ///< 0, or 128 + n if signal n ended it
  std::string text;    ///< what `body` returned, or the message of its exception
};

/// Runs body(rank) in `num_ranks` processes at once and waits for all. A rank that takes a minute is killed. No thread may run in
/// this process.
inline std::vector<RankResult> run_ranks(int num_ranks, const std::function<std::string(int rank)>& body) {
  struct Child {
    pid_t pid;
    int output;
  };
  std::vector<Child> children;
  for (int rank = 0; rank < num_ranks; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(60);
      std::signal(SIGPIPE, SIG_IGN);  // as main() does
      std::string text;
      try {
        text = body(rank);
      } catch (const std::exception& error) {
        text = error.what();
      }
      for (std::size_t done = 0; done < text.size();) {
        const ssize_t count = ::write(ends[1], text.data() + done, text.size() - done);
        if (count <= 0) ::_exit(1);
        done += static_cast<std::size_t>(count);
      }
      ::_exit(0);
    }
    ::close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  std::vector<RankResult> results;
  for (const Child& child : children) {
    RankResult result;
    char buffer[4096];
    for (ssize_t count = 0; (count = ::read(child.output, buffer, sizeof buffer)) > 0;) {
      result.text.append(buffer, static_cast<std::size_t>(count));
    }
    ::close(child.output);
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    results.push_back(std::move(result));
  }
  return results;
}

/// A rank of a job on one host whose ranks meet in `folder`.
inline launch::World world_of(int rank, int size, const std::filesystem::path& folder,
                              launch::Launcher launcher = launch::Launcher::kOpenMpi, const std::string& job = "job") {
  launch::World world;
  world.launcher = launcher;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.job = job;
  world.job_folder = folder;
  return world;
}

/// Not a tensor: threads of ATen must not run where ranks are forked.
inline std::vector<float> gradients_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::vector<float> values(count);
  for (float& value : values) value = std::normal_distribution<float>()(random);
  return values;
}

/// That every rank said `text`.
inline void expect_all(const std::vector<RankResult>& results, const std::string& text) {
  for (const RankResult& result : results) EXPECT_TRUE(result.text == text) << result.text.substr(0, 300);
}

}  // namespace lora_train::testing_support
