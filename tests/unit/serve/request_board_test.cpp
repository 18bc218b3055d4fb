#include <gtest/gtest.h>

#include "lora_train/serve/service.h"
#include "unit/data/byte_tokenizer.h"

namespace lora_train::serve {
namespace {

class Board : public testing::Test {
 protected:
  std::shared_ptr<Answer> answer(std::int64_t n = 1) {
    ApiRequest request;
    request.n = n;
    return std::make_shared<Answer>(request, model_, std::vector<data::Prompt>{{"", "", {1}}}, "id", 0);
  }

  data::ByteTokenizer tokenizer_;
  ServedModel model_{"m", &tokenizer_, nullptr, {}, 258, {}};
  RequestBoard board_{4};
};

TEST_F(Board, TakesAllChoicesOfAnAnswerOrNone) {
  EXPECT_TRUE(board_.submit(answer(3), 1));
  EXPECT_FALSE(board_.submit(answer(2), 1));
  EXPECT_TRUE(board_.submit(answer(1), 1));
  EXPECT_TRUE(board_.next(false).has_value());
  EXPECT_TRUE(board_.submit(answer(1), 1)) << "one is no longer waiting";
}

TEST_F(Board, EndsOnceItIsClosedAndEmpty) {
  EXPECT_TRUE(board_.submit(answer(), 1));
  board_.close();
  EXPECT_FALSE(board_.submit(answer(), 1));
  EXPECT_TRUE(board_.next(true).has_value());
  EXPECT_FALSE(board_.next(true).has_value());
}

TEST_F(Board, DropsWhatNobodyWaitsFor) {
  const auto gone = answer();
  board_.submit(gone, 1);
  const auto request = board_.next(false);
  EXPECT_TRUE(board_.is_wanted(request->id));
  gone->outbox.cancel();
  EXPECT_FALSE(board_.is_wanted(request->id));
}

TEST_F(Board, LetsTheOtherChoicesOfAFailedAnswerEnd) {
  const auto failed = answer(2);
  board_.submit(failed, 1);
  const auto first = board_.next(false), second = board_.next(false);
  board_.on_failure(first->id, NumericError("request", "not finite"));
  EXPECT_TRUE(failed->outbox.is_finished());
  EXPECT_FALSE(board_.on_token(second->id, {1}));
  board_.on_done(second->id, false);
  EXPECT_EQ(failed->outbox.status(), 500);
}

TEST_F(Board, GivesUpAllAnswers) {
  const auto one = answer(), other = answer();
  board_.submit(one, 1);
  board_.submit(other, 1);
  board_.next(false);
  board_.cancel_all();
  EXPECT_TRUE(one->outbox.is_cancelled() && other->outbox.is_cancelled());
}

}  // namespace
}  // namespace lora_train::serve
