#include "lora_train/data/prepare.h"

#include <gtest/gtest.h>

#include <set>

#include "lora_train/base/text.h"
#include "lora_train/data/first_examples.h"
#include "prepare_fixture.h"
#include "store_builder.h"
#include "support/refusal.h"

namespace lora_train::data {
namespace {

/// "reason count" of each entry.
Entries reasons(const Ledger& ledger) {
  Entries out;
  for (const std::string& entry : show(ledger)) out.push_back(entry.substr(0, entry.find(' ', entry.find(' ') + 1)));
  return out;
}

class PrepareData : public PrepareFixture {
 protected:
  // "where: message" without the folder's name.
  std::string refusal(const DataSection& section) const {
    std::string said = testing_support::refusal<DataError>([&] { prepare(section); });
    const std::string folder = folder_.path().string() + "/";
    for (auto at = said.find(folder); at != std::string::npos; at = said.find(folder)) said.erase(at, folder.size());
    return said;
  }
  // Of the rows as the training data.
  std::string refusal(const std::string& rows, const std::string& name = "t.jsonl") {
    return refusal(training_on(rows, name));
  }
};

TEST_F(PrepareData, MarksOfTurnsDecideTheMaskAndAreRefusedByLine) {
  const auto example = [](const std::string& mark) {
    return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, )"
           R"({"role": "assistant", "content": "cd")" +
           mark + "}]}\n";
  };
  const PreparedData data =
      prepare(training_on(example("") + example(R"(, "train": false)") + example(R"(, "weight": 1)")));
  const auto supervised = [&](std::size_t i) { return data.train.num_supervised(i); };
  EXPECT_EQ(supervised(0), 5);  // "b." and "cd."
  EXPECT_EQ(supervised(1), 2);  // "b."
  EXPECT_GT(supervised(2), 5);  // the fake template writes the mark
  const std::string refused = refusal(example("") + example(R"(, "weight": -0.5)"));
  EXPECT_EQ(refused.find("t.jsonl:2: messages[2].weight is -0.5"), 0U) << refused;
}

TEST_F(PrepareData, ReadsSetsOfDifferentLayoutsInOrder) {
  DataSection section;
  section.datasets = {
      dataset("t.jsonl", "{\"text\": \"abc\"}\n"),
      dataset("c.jsonl", R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"),
      dataset("i.json", "[{\"input_ids\": [1, 2],\n\"labels\": [-100, 2]}]"),
  };
  const PreparedData data = prepare(section);
  ASSERT_EQ(data.train.size(), 3U);
  EXPECT_EQ(data.train.num_supervised(0), 3);  // two bytes after the first, and EOS
  EXPECT_EQ(data.train.num_supervised(1), 2);  // "b."
  EXPECT_EQ(data.train.num_supervised(2), 1);
  EXPECT_EQ(data.train.source(2), (folder_ / "i.json").string() + ":1");
  EXPECT_EQ(data.ledger.total, 3);
  EXPECT_EQ(data.ledger.kept, 3);
  EXPECT_EQ(data.max_seq_len, 64);
  EXPECT_TRUE(data.max_seq_len_is_auto);
  EXPECT_EQ(data.train_lengths.longest, 19);
  EXPECT_SAYS(data.loss_description, "assistant turns of chats");
  EXPECT_SAYS(data.loss_description, "the examples' own labels");
}

TEST_F(PrepareData, AnyNumberOfThreadsGivesTheSameData) {
  std::string bytes;
  for (int i = 0; i < 6000; ++i) {  // longer than the 1 MiB that the reader takes at a time
    bytes += i % 100 == 7 ? "{\"text\": 5, " : "{\"text\": \"example " + std::to_string(i % 977) + "\", ";
    bytes += "\"other\": \"" + std::string(200, 'x') + "\"}\n";
  }
  DataSection section = training_on(bytes);
  section.on_bad_row = OnBadRow::kDrop;
  std::vector<std::string> seen;
  for (const std::size_t num_threads : {1U, 2U, 7U}) {
    context_.num_threads = num_threads;
    const PreparedData data = prepare(section);
    seen.push_back(join(data.ledger.lines(), "\n"));
    for (std::size_t i = 0; i < data.train.size(); ++i) {
      seen.back() += data.train.source(i) + ":" + tokenizer_.decode(data.train.ids(i), false);
    }
    EXPECT_EQ(seen.back(), seen[0]);
  }
  section.on_bad_row = OnBadRow::kError;
  const std::string refused = refusal(section);
  EXPECT_EQ(refused.find("t.jsonl:8: text is number"), 0U) << refused;
  EXPECT_SAYS(refused, "\n  t.jsonl:108: the same\n");
  EXPECT_SAYS(refused, "more bad examples\nFix them, or skip bad examples with on_bad_row: drop (");
}

TEST_F(PrepareData, WhereAllExamplesAreBadNoneIsLeftToDropTheOthersFor) {
  const std::string same = refusal("{\"text\": 5}\n{\"text\": 6}\n{\"text\": 7}\n");
  EXPECT_SAYS(same, "\n  and all 3 examples read so far fail for the same reason");
  EXPECT_FALSE(testing_support::says(same, "Fix")) << same;
  EXPECT_SAYS(refusal("{\"text\": 5}\n{\"text\": 6}\n{\"text\": [1]}\n"), "t.jsonl:2: the same\n");
}

TEST_F(PrepareData, TokenCacheGivesTheSameDataAndIsNeverStale) {
  DataSection section = training_on(texts(50) + "{\"text\": NaN}\n");
  section.on_bad_row = OnBadRow::kDrop;
  section.max_drop_fraction = 1;
  context_.cache_folder = folder_ / "cache";
  const auto num_tables = [&] {
    std::filesystem::directory_iterator files(context_.cache_folder);
    return std::count_if(begin(files), end(files),
                         [](const auto& file) { return file.path().extension() == ".tokens"; });
  };
  const PreparedData first = prepare(section), again = prepare(section);
  EXPECT_EQ(num_tables(), 1);
  ASSERT_EQ(again.train.size(), first.train.size());
  for (std::size_t i = 0; i < first.train.size(); ++i) {
    EXPECT_EQ(view_examples(again.train, &tokenizer_, i, 1)[0].text,
              view_examples(first.train, &tokenizer_, i, 1)[0].text);
    EXPECT_EQ(again.train.source(i), first.train.source(i));
  }
  EXPECT_EQ(again.ledger.lines(), first.ledger.lines());
  EXPECT_EQ(again.loss_description, first.loss_description);
  EXPECT_EQ(again.fingerprint, first.fingerprint);

  // Every option that decides an example's tokens makes another table; what is applied later does not.
  const auto expect_tables = [&](int count) {
    prepare(section);
    EXPECT_EQ(num_tables(), count);
  };
  section.max_seq_len = 4096;
  section.overlength = Overlength::kDrop;
  context_.seed = 7;
  expect_tables(1);
  section.loss_on = LossOn::kAll;
  expect_tables(2);
  section.datasets[0].type = DatasetType::kText;
  expect_tables(3);
  section.datasets[0].field_map = {{"text", "text"}};
  expect_tables(4);
  const ByteTokenizer with_bos(true);
  context_.tokenizer = &with_bos;
  expect_tables(5);
  context_.tokenizer = &tokenizer_;
  section.thinking = Thinking::kDrop;
  expect_tables(6);
  dataset("t.jsonl", texts(51));
  EXPECT_EQ(prepare(section).train.size(), 51U);
  EXPECT_EQ(num_tables(), 7);
  EXPECT_EQ(token_cache_folder(section).filename(), "tokens");
  section.dataset_prepared_path = "/data/prepared";
  EXPECT_EQ(token_cache_folder(section), "/data/prepared");
}

TEST_F(PrepareData, WeightsFollowTheirDatasets) {
  DataSection section = training_on(texts(10), "a.jsonl");
  section.datasets.push_back(dataset("b.jsonl", texts(30)));
  section.datasets[1].weight = 0.5;
  section.val_set_size = 8;
  const PreparedData data = prepare(section);
  ASSERT_EQ(data.train_ranges.size(), 2U);
  const auto& [first, second] = std::tie(data.train_ranges[0], data.train_ranges[1]);
  EXPECT_EQ(first.begin, 0U);
  EXPECT_EQ(first.end, second.begin);
  EXPECT_EQ(second.end, 32U);
  EXPECT_EQ(second.weight, 0.5);
  EXPECT_SAYS(data.train.source(second.begin), "b.jsonl:");
  EXPECT_SAYS(data.train.source(second.begin - 1), "a.jsonl:");
}

TEST_F(PrepareData, PretokenisedExamplesNeedNoTokenizer) {
  const DataSection section = training_on("{\"input_ids\": [1, 2], \"labels\": [1, 2]}\n");
  const PreparedData data = prepare_data(section, {.vocab_size = 3}, true);
  EXPECT_EQ(data.train.size(), 1U);
  EXPECT_TRUE(view_examples(data.train, nullptr, 0, 5)[0].pieces.empty());
  EXPECT_THROW(prepare_data(section, {.vocab_size = 2}, true), DataError);
}

TEST_F(PrepareData, BadExamplesOfEveryLayoutStopWithTheirPlace) {
  const std::string text = "{\"text\": \"a\"}\n", two = R"({"prompt": "a", "completion": "b"})";
  const auto chat = [](const std::string& content) {
    return R"({"messages": [{"role": "user", "content": )" + content + R"(}, {"role": "assistant", "content": "b"}]})";
  };
  context_.vocab_size = 300;
  for (const auto& [rows, message] : std::vector<std::pair<std::string, std::string>>{
           {text + "{\"text\": NaN}", "t.jsonl:2: \"text\" is null"},
           {text + "{\"text\": 5}", "t.jsonl:2: text is number, expected a string"},
           {text + "{\"txt\": \"b\"}", "t.jsonl:2: \"text\" is missing"},
           {"{\"what\": \"a\"}", "t.jsonl:1: no known layout"},
           {"{}", "t.jsonl:1: no known layout"},
           {chat("\"a\"") + "\n" + chat("3"), "t.jsonl:2: messages[0].content is number"},
           {R"({"conversations": [{"from": "robot", "value": "a"}]})", "t.jsonl:1: conversations[0]"},
           {R"({"conversations": [{"from": "function_call", "value": "f 1"}]})", "t.jsonl:1: conversations[0]: value"},
           {R"({"instruction": "a", "output": "b", "history": [["x"]]})", "t.jsonl:1: history[0]"},
           {two + "\n" + R"({"prompt": "a"})", "t.jsonl:2: \"completion\" is missing"},
           {R"({"input_ids": [1, 999999], "labels": [1, 2]})",
            "t.jsonl:1: input_ids[1] is 999999, but the model has 300 tokens (ids 0 to 299)"},
           {R"({"input_ids": [1, 2]})", "t.jsonl:1: \"labels\" is missing"},
           {R"({"input_ids": [1, 2], "labels": [-100, -100]})",
            "t.jsonl:1: every example of the training data is masked"},
       }) {
    EXPECT_TRUE(refusal(rows + "\n").starts_with(message)) << rows << "\n" << refusal(rows + "\n");
  }
}

TEST_F(PrepareData, BadExamplesAreDroppedAndCountedWhenAsked) {
  DataSection section = training_on("{\"text\": nan}\n" + texts(8) + "{\"text\": 5}\n");
  section.on_bad_row = OnBadRow::kDrop;
  section.max_drop_fraction = 0.2;
  const PreparedData data = prepare(section);
  EXPECT_EQ(data.train.size(), 8U);
  EXPECT_EQ(data.ledger.total, 10);
  EXPECT_EQ(reasons(data.ledger), Entries{"bad_row 2"});
  EXPECT_SAYS(data.ledger.entries[0].first_source, "t.jsonl:1:11");
  section.max_drop_fraction = 0.19;
  EXPECT_SAYS(refusal(section), "training data would lose 2 of 10 examples");
}

TEST_F(PrepareData, RefusesDataWithoutExamplesOrLabels) {
  EXPECT_SAYS(refusal("\n\n"), "t.jsonl: the file has no example");
  EXPECT_SAYS(refusal(" [ ] ", "t.json"), "t.json: the file has no example");
  DataSection section;
  EXPECT_THROW(prepare(section), ConfigError);
  EXPECT_THROW(prepare(section, /*need_train=*/false), ConfigError);
  section.datasets = {dataset("t.jsonl", "nope\n")};
  section.on_bad_row = OnBadRow::kDrop;
  EXPECT_SAYS(refusal(section), "no example of the training data is left");
  const std::string message = refusal(R"({"messages": [{"role": "user", "content": "hello"}]})");
  EXPECT_SAYS(message, "t.jsonl:1: every example of the training data is masked");
  EXPECT_SAYS(message, "user:hello.");
  EXPECT_SAYS(message, "loss_on: auto");
}

TEST_F(PrepareData, OneMaskedExampleGoesToTheLedger) {
  const std::string good = "{\"input_ids\": [1, 2], \"labels\": [1, 2]}\n";
  DataSection section = training_on(good + "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}\n" + good);
  EXPECT_SAYS(refusal(section), "training data would lose 1 of 3 examples");
  section.max_drop_fraction = 0.5;
  const PreparedData data = prepare(section);
  EXPECT_EQ(data.train.size(), 2U);
  EXPECT_EQ(data.ledger.entries[0].reason, LedgerReason::kFullyMasked);
}

TEST_F(PrepareData, HoldsOutTheSameExamplesForTheSameSeed) {
  DataSection section = training_on(texts(50));
  section.val_set_size = 0.11;
  const PreparedData data = prepare(section);
  ASSERT_EQ(data.evals.size(), 1U);
  EXPECT_EQ(data.evals[0].name, "validation");
  EXPECT_EQ(data.evals[0].store.size(), 6U);  // 5.5 rounded up
  EXPECT_EQ(data.train.size(), 44U);
  std::set<std::string> all;
  for (const auto& part : {sources(data.train), sources(data.evals[0].store)}) all.insert(part.begin(), part.end());
  EXPECT_EQ(all.size(), 50U);
  EXPECT_EQ(sources(prepare(section).evals[0].store), sources(data.evals[0].store));
  context_.seed = 43;
  EXPECT_NE(sources(prepare(section).evals[0].store), sources(data.evals[0].store));
  section.val_set_size = 7;
  EXPECT_EQ(prepare(section).evals[0].store.size(), 7U);
  const PreparedData only_eval = prepare(section, /*need_train=*/false);
  EXPECT_EQ(only_eval.evals[0].store.size(), 7U);
  EXPECT_TRUE(only_eval.train.empty());
  section.val_set_size = 50;
  EXPECT_SAYS(refusal(section), "val_set_size: 50 would hold out 50 of 50 examples");
}

TEST_F(PrepareData, EvaluationSetsHaveNamesAndAtMostSoManyExamples) {
  DataSection section = training_on(texts(3));
  section.eval_datasets = {dataset("val.jsonl", texts(9)), dataset("val.json", "[{\"text\": \"long enough\"}]")};
  section.eval_max_samples = 4;
  const PreparedData data = prepare(section);
  ASSERT_EQ(data.evals.size(), 2U);
  EXPECT_EQ(data.evals[0].name, "val");
  EXPECT_EQ(data.evals[1].name, "val-2");
  EXPECT_EQ(data.evals[0].store.size(), 4U);
  EXPECT_SAYS(data.evals[0].store.source(3), "val.jsonl:4");
  EXPECT_EQ(data.evals[0].ledger.total, 4);
  section.datasets = {dataset("t.jsonl", "broken")};
  EXPECT_EQ(prepare(section, /*need_train=*/false).evals.size(), 2U) << "the training data are not read";
}

TEST_F(PrepareData, LengthPolicyHoldsForEvaluationToo) {
  DataSection section = training_on(texts(3));
  section.eval_datasets = {dataset("val.jsonl", "{\"text\": \"" + std::string(100, 'x') + "\"}\n")};
  EXPECT_EQ(prepare(section).max_seq_len, 128);
  section.max_seq_len = 64;
  EXPECT_SAYS(refusal(section),
              "val.jsonl:1: 1 of 1 examples of the evaluation data \"val\" are longer than max_seq_len: 64");
  context_.max_position_embeddings = 80;
  EXPECT_SAYS(refusal(section), "max_seq_len: 80  keeps all but 1 of them");
  section.max_seq_len = std::nullopt;
  section.overlength = Overlength::kTruncate;
  const PreparedData data = prepare(section);
  EXPECT_EQ(data.max_seq_len, 80);
  EXPECT_EQ(data.evals[0].store.num_tokens(0), 80);
}

TEST_F(PrepareData, FingerprintFollowsDataAndOptionsNotThePath) {
  DataSection section = training_on(texts(5));
  const std::string first = prepare(section).fingerprint;
  EXPECT_EQ(first.size(), 32U);
  section.datasets = {dataset("copy.jsonl", texts(5))};
  EXPECT_EQ(prepare(section).fingerprint, first);
  section.loss_on = LossOn::kAll;
  EXPECT_NE(prepare(section).fingerprint, first);
  section.loss_on = LossOn::kAuto;
  section.max_seq_len = 100;
  EXPECT_NE(prepare(section).fingerprint, first);
  section.max_seq_len = std::nullopt;
  section.thinking = Thinking::kEmpty;
  EXPECT_NE(prepare(section).fingerprint, first);
  section.thinking = Thinking::kTemplate;
  EXPECT_EQ(prepare(section).fingerprint, first);
  section.datasets = {dataset("t.jsonl", texts(6))};
  EXPECT_NE(prepare(section).fingerprint, first);
}

TEST_F(PrepareData, OfATemplateWithADateHasTheDaysTokensAndNoOtherFingerprint) {
  const auto dated =
      tokenizer::ChatTemplate::parse("{{ strftime_now('%j') }}{% for m in messages %}{{ m.content }}{% endfor %}", "t");
  context_.chat_template = dated.get();
  context_.cache_folder = folder_ / "cache";
  const DataSection section =
      training_on(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  dated->set_day("2024-02-29");
  const PreparedData first = prepare(section);
  EXPECT_EQ(view_examples(first.train, &tokenizer_, 0, 1).front().text, "060qa");
  dated->set_day("2024-03-01");
  const PreparedData second = prepare(section);
  EXPECT_EQ(view_examples(second.train, &tokenizer_, 0, 1).front().text, "061qa");
  EXPECT_EQ(first.fingerprint, second.fingerprint);
}

/// What is logged of the data, and whether they are chats and texts.
TEST_F(PrepareData, SaysThatPromptAndCompletionOfTextAreJoinedAsTheyAre) {
  const std::string text = "{\"question\": \"q\", \"completion\": \"a\"}\n",
                    chat = R"({"question": [{"role": "user", "content": "q"}], )"
                           R"("completion": [{"role": "assistant", "content": "a"}]})" +
                           std::string("\n");
  context_.cache_folder = folder_ / "cache";
  set_log_level(LogLevel::kInfo);
  const auto forms = [&](const std::string& rows) {
    DataSection section = training_on(rows);
    section.datasets[0].field_map = {{"prompt", "question"}};
    section.eval_datasets = section.datasets;
    testing::internal::CaptureStderr();
    const PreparedData data = prepare(section);
    const std::string log = testing::internal::GetCapturedStderr();
    const std::string advice = "for chats: type: alpaca, field_map: {instruction: question, output: completion}";
    const auto at = log.find(advice);
    EXPECT_EQ(log.find(advice, at == std::string::npos ? at : at + 1), std::string::npos) << log;
    return fmt::format("{}{}{}", data.has_chats ? "chats " : "", data.has_texts ? "texts " : "",
                       at == std::string::npos ? "" : "said");
  };
  for (int i = 0; i < 2; ++i) {  // the second time from the cache
    EXPECT_EQ(forms(text), "texts said");
    EXPECT_EQ(forms(chat), "chats ");
    EXPECT_EQ(forms(text + chat), "chats texts said");
  }
  context_.chat_template = nullptr;
  EXPECT_EQ(forms(text), "texts ");
}

TEST_F(PrepareData, CountsContentThatIsLeftOutOrEmpty) {
  const PreparedData data = prepare(training_on(
      R"({"messages": [{"role": "system", "content": "hidden"}, {"role": "assistant", "content": "b"}]}
{"messages": [{"role": "assistant", "content": ""}]})"));
  EXPECT_EQ(data.train.size(), 2U);
  EXPECT_EQ(reasons(data.ledger), (Entries{"not_rendered 1", "empty_answer 1"}));
  EXPECT_SAYS(data.ledger.lines()[2], "t.jsonl:2: messages[0]");
  EXPECT_EQ(data.ledger.lost(), 0);
}

TEST_F(PrepareData, CountsThoughtsAndRefusesByLineWhereKeepCannotBe) {
  const auto qwen3 = tokenizer::load_chat_template("qwen3", {});
  context_.chat_template = qwen3.get();
  context_.cache_folder = folder_ / "cache";
  const std::string asked = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": )";
  DataSection section = training_on(asked + R"("a", "reasoning_content": "T"}]}
)" + asked + R"("<think>T</think>a"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})");
  section.eval_datasets = section.datasets;
  const auto thoughts = [&](Thinking thinking) {
    section.thinking = thinking;
    EXPECT_EQ(prepare(section).ledger.lines().back(), prepare(section).ledger.lines().back()) << "from the cache";
    EXPECT_EQ(prepare(section).evals[0].ledger.thoughts.text(), prepare(section).ledger.thoughts.text());
    return prepare(section).ledger.lines().back();
  };
  EXPECT_EQ(thoughts(Thinking::kTemplate), "  2 turns with thoughts: 1 kept, 1 dropped, 0 written empty");
  EXPECT_EQ(thoughts(Thinking::kDrop), "  2 turns with thoughts: 0 kept, 1 dropped, 1 written empty");
  section.thinking = Thinking::kKeep;
  const std::string said = testing_support::refusal<DataError>([&] { prepare(section); });
  EXPECT_SAYS(said, "t.jsonl:2");
  EXPECT_SAYS(said, "messages[1] has thoughts (content)");
  section.on_bad_row = OnBadRow::kDrop;
  section.max_drop_fraction = 1;
  const Ledger ledger = prepare(section).ledger;
  EXPECT_EQ(reasons(ledger), (Entries{"bad_row 1", "in_validation 1"}));
  EXPECT_EQ(ledger.thoughts.text(), "1 turn with thoughts: 1 kept, 0 dropped, 0 written empty");
}

TEST_F(PrepareData, NamesThePublishedSystemPromptOnceIfNoChatHasOne) {
  std::filesystem::create_directory(folder_ / "model");
  write_file_atomic(folder_ / "model/SYSTEM_PROMPT.txt", "First think.");
  context_.model_folder = folder_ / "model";
  context_.cache_folder = folder_ / "cache";
  const auto said = [&](const std::string& rows) {
    set_log_file(folder_ / "log");
    set_log_level(LogLevel::kInfo);
    prepare(training_on(rows));
    set_log_level(LogLevel::kOff);
    set_log_file({});
    const std::string log = read_file(folder_ / "log"), name = "model/SYSTEM_PROMPT.txt holds the system prompt";
    std::filesystem::remove(folder_ / "log");
    const std::size_t at = log.find(name);
    return at == std::string::npos ? 0 : log.find(name, at + 1) == std::string::npos ? 1 : 2;
  };
  const std::string plain =
                        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
                    with_system =
                        R"({"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "b"}]})";
  EXPECT_EQ(said(plain + "\n" + plain), 1);
  EXPECT_EQ(said(plain + "\n" + plain), 1) << "from the token cache";
  EXPECT_EQ(said(plain + "\n" + with_system), 0);
  EXPECT_EQ(said(plain + "\n" + with_system), 0) << "from the token cache";
  EXPECT_EQ(said(texts(2)), 0);
  std::filesystem::remove(folder_ / "model/SYSTEM_PROMPT.txt");
  EXPECT_EQ(said(plain), 0);
}

TEST_F(PrepareData, ALaterExampleOfAnotherLayoutIsABadExampleUnlessTypeDecides) {
  DataSection section = training_on(texts(3) + R"({"text": "a", "messages": [{"role": "assistant", "content": "b"}]})");
  section.max_drop_fraction = 0.5;
  EXPECT_THROW(prepare(section), DataError);
  EXPECT_THROW(look_at_first_examples(section.datasets[0], {.is_model_known = false}), DataError);
  section.on_bad_row = OnBadRow::kDrop;
  EXPECT_EQ(prepare(section).ledger.count(LedgerReason::kBadRow), 1);
  section.datasets[0].type = DatasetType::kText;
  EXPECT_EQ(prepare(section).ledger.lost(), 0);
}

TEST_F(PrepareData, ViewJoinsTokensOfOneCharacter) {
  const PreparedData data = prepare(training_on("{\"text\": \"a\xC3\xA9z\"}\n" + texts(3)));
  const auto views = view_examples(data.train, &tokenizer_, 0, 2);
  ASSERT_EQ(views.size(), 2U);
  EXPECT_EQ(views[0].pieces, (std::vector<std::string>{"a", "", "\xC3\xA9", "z", "</s>"}));
  EXPECT_EQ(views[0].text, "a\xC3\xA9z</s>");
  EXPECT_SAYS(views[1].source, "t.jsonl:2");
  EXPECT_EQ(view_examples(data.train, &tokenizer_, 3, 9).size(), 1U);
}

TEST_F(PrepareData, LooksAtExamplesOfJsonAndThrowsNothing) {
  const auto lines = dataset("a.jsonl", "{\"a\": 1}\n\n{\"b\": \"}{\"}\n{\"c\": [{\"d\": 1}], \"a\"\n").path;
  const auto array = dataset("a.json", "[{\"a\": [{\"b\": 1}]},\n {\"c\": \"\\\"{\"}, {}]").path;
  EXPECT_EQ(count_examples(lines), 3u);
  EXPECT_EQ(count_examples(array), 3u);
  EXPECT_EQ(count_examples(folder_ / "missing.json"), std::nullopt);
  EXPECT_EQ(example_keys(lines), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(example_keys(lines, 1), std::vector<std::string>{"a"});
  EXPECT_EQ(example_keys(dataset("b.jsonl", "{\n{\"a\": 1}\n{\"b\": 1}\n").path, 2), std::vector<std::string>{"a"})
      << "a bad example is one of the two";
  EXPECT_EQ(example_keys(dataset("a.csv", "a,b\n1,2\n").path), std::vector<std::string>{});
  EXPECT_TRUE(has_string(lines, "c"));
  EXPECT_TRUE(has_string(array, "b"));
  EXPECT_FALSE(has_string(array, "d"));
}

}  // namespace
}  // namespace lora_train::data
