#include <gtest/gtest.h>

#include "lora_train/serve/answer.h"

namespace lora_train::serve {
namespace {

struct Reader {
  Reader() {
    outbox.set_resume([this] { ++num_resumed; });
  }
  std::string read(std::size_t most = 100) {
    std::string bytes(most, '\0');
    bytes.resize(outbox.read(bytes.data(), most, [this] { ++num_suspended; }));
    return bytes;
  }
  Outbox outbox;
  int num_suspended = 0, num_resumed = 0;
};

TEST(Outbox, SuspendsAReaderUntilThereAreBytes) {
  Reader reader;
  EXPECT_EQ(reader.read(), "");
  EXPECT_EQ(reader.num_suspended, 1);
  reader.outbox.write("abc");
  reader.outbox.write("d");
  EXPECT_EQ(reader.num_resumed, 1) << "it is awake already";
  EXPECT_EQ(reader.read(3), "abc");
  EXPECT_EQ(reader.read(), "d");
  reader.outbox.finish(200);
  EXPECT_EQ(reader.read(), "");
  EXPECT_EQ(reader.num_suspended, 1) << "nothing more comes";
}

TEST(Outbox, WakesAReaderThatIsGivenUp) {
  Reader reader;
  EXPECT_FALSE(reader.outbox.is_whole_or([&] { ++reader.num_suspended; }));
  reader.outbox.cancel();
  EXPECT_EQ(reader.num_resumed, 1);
  EXPECT_TRUE(reader.outbox.is_whole_or([] {}));
  reader.outbox.write("late");
  EXPECT_EQ(reader.read(), "");
}

TEST(Outbox, NeverWakesAReaderThatHasLeft) {
  Reader reader;
  reader.read();
  reader.outbox.abandon();
  reader.outbox.write("late");
  reader.outbox.finish(200);
  EXPECT_EQ(reader.num_resumed, 0);
  EXPECT_TRUE(reader.outbox.is_cancelled());
}

TEST(Outbox, KeepsTheFirstStatus) {
  Outbox outbox;
  outbox.finish(500);
  outbox.finish(200);
  EXPECT_EQ(outbox.status(), 500);
}

}  // namespace
}  // namespace lora_train::serve
