#include "lora_train/ranks/connect.h"

#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <array>
#include <cstring>

#include "lora_train/base/text.h"
#include "support/environment.h"
#include "support/rank_processes.h"
#include "support/refusal.h"
#include "support/run_command.h"
#include "support/temporary_folder.h"

namespace lora_train::ranks {
namespace {

using testing_support::expect_all;
using testing_support::gradients_of;
using testing_support::RankResult;
using testing_support::run_ranks;
using testing_support::TemporaryFolder;
using testing_support::world_of;

constexpr std::size_t kNumGradients = 100003;

std::vector<RankResult> run_connected(int size, const std::function<std::string(Communicator&)>& body) {
  const TemporaryFolder folder;
  auto results = run_ranks(size, [&](int rank) { return body(*connect(world_of(rank, size, folder.path()), {})); });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));  // the published address is gone
  return results;
}

template <typename Number>
at::Tensor tensor_of(std::vector<Number>& numbers) {
  return at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())},
                       c10::CppTypeToScalarType<Number>::value);
}

class CommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorTest, SumsAreTheSameBitsOnAllRanks) {
  constexpr std::size_t kScalarBytes = 3 * sizeof(double);
  const auto results = run_connected(GetParam(), [](Communicator& ranks) {
    std::vector<float> gradients = gradients_of(ranks.rank(), kNumGradients);
    std::vector<double> scalars = {1.0, 1e15 + ranks.rank(), 0.5 * ranks.rank()};
    ranks.all_reduce(std::array{tensor_of(gradients), tensor_of(scalars)});
    return std::string(reinterpret_cast<const char*>(scalars.data()), kScalarBytes) +
           std::string(reinterpret_cast<const char*>(gradients.data()), gradients.size() * sizeof(float));
  });
  double sums[3];
  std::vector<float> gradients(kNumGradients);
  const std::string& bytes = results[0].text;
  ASSERT_EQ(bytes.size(), kScalarBytes + gradients.size() * sizeof(float)) << bytes.substr(0, 300);
  expect_all(results, bytes);
  std::memcpy(sums, bytes.data(), kScalarBytes);
  std::memcpy(gradients.data(), bytes.data() + kScalarBytes, gradients.size() * sizeof(float));
  const int size = GetParam(), sum_of_ranks = size * (size - 1) / 2;
  EXPECT_EQ(sums[0], size);
  EXPECT_EQ(sums[1], 1e15 * size + sum_of_ranks);
  EXPECT_EQ(sums[2], 0.5 * sum_of_ranks);
  std::vector<double> expected(gradients.size());
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> part = gradients_of(rank, kNumGradients);
    for (std::size_t i = 0; i < part.size(); ++i) expected[i] += part[i];
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) ASSERT_NEAR(gradients[i], expected[i], 1e-5) << i;
}

TEST_P(CommunicatorTest, AllRanksReceiveTheBytesOfRank0) {
  std::string sent(70000, 'a');
  sent[5] = '\0';
  const auto results = run_connected(GetParam(), [&](Communicator& ranks) {
    const std::string first = ranks.broadcast(ranks.rank() == 0 ? sent : "not looked at");
    return first + "|" + ranks.broadcast("");
  });
  expect_all(results, sent + "|");
}

TEST_P(CommunicatorTest, AllRanksReceiveTheTextsOfAllInOrder) {
  const auto results = run_connected(GetParam(), [](Communicator& ranks) {
    return join(ranks.all_gather(std::string(static_cast<std::size_t>(3 * ranks.rank()), 'x')), "|") + " " +
           join(ranks.all_gather(""), "|");
  });
  expect_all(results, GetParam() == 2 ? "|xxx |" : "|xxx|xxxxxx|xxxxxxxxx |||");
}

TEST_P(CommunicatorTest, AllRanksReceiveTheTensorsOfRank0) {
  const auto results = run_connected(GetParam(), [](Communicator& ranks) {
    std::vector<float> values(1000, static_cast<float>(ranks.rank()));
    std::vector<std::int64_t> counts(3, ranks.rank() + 7);
    ranks.broadcast(std::array{tensor_of(values), tensor_of(counts)});
    return std::to_string(values[999]) + " " + std::to_string(counts[2]);
  });
  expect_all(results, std::to_string(0.0F) + " 7");
}

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorTest, ::testing::Values(2, 4));

TEST(Communicator, OneProcessNeedsNoPeer) {
  const auto ranks = connect({}, {});
  EXPECT_EQ(ranks->world_size(), 1);
  EXPECT_EQ(ranks->broadcast("bytes"), "bytes");
  EXPECT_EQ(ranks->all_gather("text"), std::vector<std::string>{"text"});
}

TEST(Communicator, TwoJobsOnOneHostNeverMeet) {
  const TemporaryFolder folder;
  testing_support::ScopedEnvironment environment;
  environment.set("TMPDIR", folder.path().string());
  const auto results = run_ranks(4, [&](int process) {
    const std::string job = process < 2 ? "a" : "b";
    const auto ranks = connect(world_of(process % 2, 2, {}, launch::Launcher::kOpenMpi, job), {});
    return join(ranks->all_gather(job + std::to_string(process)));
  });
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(results[i].text, i < 2 ? "a0, a1" : "b2, b3");
}

TEST(Communicator, NodesMeetInTheSharedFolder) {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  addrinfo* found = nullptr;
  if (::getaddrinfo(name, nullptr, nullptr, &found) != 0) GTEST_SKIP() << "this machine does not know its own name";
  ::freeaddrinfo(found);
  const TemporaryFolder folder;
  const auto results = run_ranks(2, [&](int rank) {
    launch::World world = world_of(rank, 2, "/no/such/folder");
    world.local_rank = 0;
    world.local_size = 1;
    return join(connect(world, {.shared_folder = folder.path()})->all_gather("node" + std::to_string(rank)));
  });
  expect_all(results, "node0, node1");
}

TEST(Communicator, ARankThatDoesNotArriveIsAnError) {
  const TemporaryFolder folder;
  const ConnectOptions options{.connect_timeout = std::chrono::milliseconds(1)};
  const auto text_of = [&](int rank) {
    const auto body = [&](int) { return connect(world_of(rank, 2, folder.path()), options) ? "connected" : ""; };
    return run_ranks(1, body)[0].text;
  };
  EXPECT_SAYS(text_of(1), "rank 1 of 2 (Open MPI): rank 0 did not write " + folder.path().string());
  EXPECT_SAYS(text_of(0), "rank 0 of 2 (Open MPI): rank 1 did not arrive within");
}

TEST(Communicator, TakesThreeFunctionsFromTheLibrary) {
  const auto result =
      testing_support::run_command({"sh", "-c", "nm -uC " RANKS_OBJECTS " | grep -i ' U .*gloo' | grep -v lora_train"});
  std::vector<std::string> names;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find("U ");
    names.push_back(begin == std::string::npos ? line : line.substr(begin + 2, line.find('(') - begin - 2));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(join(names, "\n"),
            "c10d::ProcessGroupGloo::Options::Options\nc10d::ProcessGroupGloo::ProcessGroupGloo\n"
            "c10d::ProcessGroupGloo::createDeviceForHostname");
}

}  // namespace
}  // namespace lora_train::ranks
