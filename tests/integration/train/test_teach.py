"""teach: examples from a teacher behind a server or in a folder, resumed, sharded and filtered."""

import json

import pytest

from command import ROOT, expect_end, good_run, lora_train
from teacher_server import FAULTS, TeacherServer, answer_to

USAGE, DATA, IO = 2, 3, 5
QUICK = {"LORA_TRAIN_HTTP_RETRIES": "8"}


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(40)))
    return file


def teach(server, prompts, output, *flags, environment=(), **options):
    url = server if isinstance(server, str) else server.url
    return lora_train("teach", "--teacher", url, "--prompts", prompts, "--output", output, *flags,
                      environment={**QUICK, **dict(environment)}, **options)


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_examples_have_what_the_student_sees(prompts, tmp_path):
    (tmp_path / "long.txt").write_text("You label sentences.\nRules: many.\n")
    (tmp_path / "short.txt").write_text("Label.")
    out = tmp_path / "out.jsonl"
    with TeacherServer() as server:
        flags = ["--system", tmp_path / "long.txt", "--student-system", tmp_path / "short.txt", "--samples", 2, "--temperature", "0.7", "--top-p", "0.9",
                 "--stop", "END"]
        run = teach(server, prompts, out, *flags, "--json", "--price-in", "1", "--price-out", "2")
        assert run.code == 0, run
        rows = rows_of(out)
        assert len(rows) == 80 == len(server.asked)
        for i, row in enumerate(rows):
            question = f"question {i // 2}"
            assert row == {"messages": [{"role": "system", "content": "Label."}, {"role": "user", "content": question},
                                        {"role": "assistant", "content": answer_to(question, 42 + i)}]}
        for body in server.asked:
            assert body["messages"][0] == {"role": "system", "content": "You label sentences.\nRules: many."}
            assert (body["model"], body["temperature"], body["top_p"], body["stop"], body["max_tokens"]) == ("big-teacher", 0.7, 0.9, ["END"], 1024)
        [told] = run.json_lines()
        assert (told["rows"], told["answers"], told["asked"], told["unanswered"]) == (80, 80, 80, 0)
        assert told["cost_usd"] == pytest.approx((80 * 7 + 2 * told["completion_tokens"]) / 1e6)
        again = teach(server, prompts, out, *flags)
        assert again.code == 0 and len(server.asked) == 80 and rows_of(out) == rows, again
        run = teach(server, prompts, out, "--system", tmp_path / "long.txt", "--temperature", "0.7")
        assert run.code == USAGE and "samples: 2 -> 1" in run.stderr and rows_of(out) == rows, run
    good_run("tokenize", "--model", ROOT / "examples/orders/model", f"datasets={out}", "max_seq_len=256")


def test_prompts_come_from_texts_chats_and_columns(tmp_path):
    files = {"a.txt": "First line\n\nSecond line\n",
             "b.jsonl": json.dumps({"messages": [{"role": "system", "content": "Own."}, {"role": "user", "content": "Q"},
                                                 {"role": "assistant", "content": "dropped"}], "tools": [{"name": "f"}]}) + "\n",
             "c.csv": "name,city\nAnn,Rome\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "t.jinja").write_text("Where is {{ name }}? In {{ city | upper }}.")
    (tmp_path / "s.txt").write_text("Long.")
    with TeacherServer() as server:
        assert teach(server, tmp_path / "a.txt", tmp_path / "a.jsonl").code == 0
        assert [row["messages"][0]["content"] for row in rows_of(tmp_path / "a.jsonl")] == ["First line", "Second line"]
        assert teach(server, tmp_path / "b.jsonl", tmp_path / "b.out.jsonl", "--system", tmp_path / "s.txt").code == 0
        assert server.asked[-1]["messages"] == [{"role": "system", "content": "Long.\n\nOwn."}, {"role": "user", "content": "Q"}]
        assert server.asked[-1]["tools"] == [{"name": "f"}]
        [row] = rows_of(tmp_path / "b.out.jsonl")
        assert [m["content"] for m in row["messages"]] == ["Own.", "Q", "Q [42]"] and row["tools"] == [{"name": "f"}]
        assert teach(server, tmp_path / "c.csv", tmp_path / "c.jsonl", "--template", tmp_path / "t.jinja").code == 0
        assert rows_of(tmp_path / "c.jsonl")[0]["messages"][0]["content"] == "Where is Ann? In ROME."
        assert teach(server, tmp_path / "a.txt", tmp_path / "raw.jsonl", "--raw").code == 0
        assert rows_of(tmp_path / "raw.jsonl")[0] == {"prompt": "First line", "completion": "FIRST LINE [42]"}
        expect_end(teach(server, tmp_path / "b.jsonl", tmp_path / "raw2.jsonl", "--raw"), DATA, "b.jsonl:1: is a chat, but --raw")


def test_every_fault_is_survived_and_nothing_is_asked_twice_for_an_answer(prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    with TeacherServer(faults=("500",), share=1) as server:  # one that dies ends the work
        run = teach(server, prompts, out, "--concurrency", 2, environment={"LORA_TRAIN_HTTP_RETRIES": "0"})
        assert run.code == IO and "6 questions in a row got no answer" in run.stderr and len(server.asked) <= 8, run
    with TeacherServer(faults=FAULTS, share=0.4) as server:
        run = teach(server, prompts, out, "--concurrency", 4)
        assert run.code == 0 and len(rows_of(out)) == 40, run
        assert len(set(server.answered)) == 40 and len(server.asked) > 40 and server.most_active <= 4
        theirs = tmp_path / "mine.jsonl"
        theirs.write_text("keep\n")
        expect_end(teach(server, prompts, theirs), USAGE, "teach did not write it")
        assert theirs.read_text() == "keep\n"


def test_shards_join_to_what_one_call_gives(prompts, tmp_path):
    with TeacherServer() as server:
        whole = tmp_path / "whole.jsonl"
        assert teach(server, prompts, whole).code == 0
        parts = [tmp_path / f"part{i}.jsonl" for i in range(3)]
        for i in (0, 2):
            assert teach(server, prompts, parts[i], "--shard", f"{i}/3").code == 0
        assert [len(rows_of(parts[i])) for i in (0, 2)] == [14, 13]
        server.asked.clear()
        joined = tmp_path / "joined.jsonl"
        run = teach(server, prompts, joined, "--join", parts[0], "--join", parts[2])
        assert run.code == 0 and len(server.asked) == 13 and joined.read_text() == whole.read_text(), run
        expect_end(teach(server, prompts, tmp_path / "x.jsonl", "--join", parts[1]), USAGE, "teach has no answers for it")


def test_filters_drop_what_they_are_asked_to_and_say_so(tmp_path):
    answers = ["I’m sorry, but I cannot.", "{\"a\": 1}", "{\"a\": \"x\"}", "short", "yes 4", "no 4", "yes 5"]
    (tmp_path / "p.txt").write_text("\n".join(f"p{i}" for i in range(len(answers))) + "\n")
    (tmp_path / "schema.json").write_text(json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}))

    def kept(*flags, asked=lambda messages, seed: answers[int(messages[-1]["content"][1:])]):
        with TeacherServer(reply=asked) as server:
            for file in tmp_path.glob("out*"):
                file.unlink()
            run = teach(server, tmp_path / "p.txt", tmp_path / "out.jsonl", *flags)
            assert run.code == 0, run
            return [row["messages"][-1]["content"] for row in rows_of(tmp_path / "out.jsonl")], run.stderr

    assert kept()[0] == answers
    rows, said = kept("--drop-refusals")
    assert rows == answers[1:] and "1 answer dropped: refusals; first: " in said and "p.txt:1" in said
    assert kept("--json-schema", tmp_path / "schema.json")[0] == [answers[1]]
    assert kept("--min-chars", 6, "--max-chars", 8)[0] == [answers[1]]
    assert kept("--keep-matching", r"^(yes|no) \d", "--drop-matching", "5")[0] == ["yes 4", "no 4"]
    assert kept("--max-tokens", 1, "--drop-cut")[0] == ["short"]
    (tmp_path / "phrases.txt").write_text("YES\nno\n")
    assert kept("--refusal-phrases", tmp_path / "phrases.txt")[0] == answers[:4]

    def votes(messages, seed):
        return f"is {[4, 4, 5][(seed - 42) % 3]}" if messages[-1]["content"] == "p0" else f"is {seed}"
    assert kept("--samples", 3, "--agree", 2, "--agree-on", r"\d+", asked=votes)[0] == ["is 4", "is 4"]
    assert kept("--samples", 3, "--agree", 2, "--drop-duplicates", asked=votes)[0] == ["is 4"]
    for flags, said in ((["--keep-matching", "("], "--keep-matching"), (["--json-schema", tmp_path / "p.txt"], "not a JSON object"),
                        (["--agree", "2"], "needs at least as many --samples")):
        expect_end(teach("http://127.0.0.1:9/v1", tmp_path / "p.txt", tmp_path / "new.jsonl", *flags), USAGE, said)


def test_what_the_server_refuses_is_said_and_costs_no_other_answer(prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    with TeacherServer(refuses=("question 7\"",)) as server:
        run = teach(server, prompts, out)
        assert run.code == IO and "1 question without an answer; 1 refused, first: " in run.stderr, run
        assert "prompts.jsonl:8: the server refuses the question (HTTP 400: This model's maximum context" in run.stderr and len(rows_of(out)) == 39
        assert teach(server, prompts, out, "--max-failures", 1).code == 0
    with TeacherServer(key="secret-key") as server:
        refused, answered, unknown = (teach(server, prompts, tmp_path / f"k{len(flags)}.jsonl", *flags, environment={"OPENAI_API_KEY": key}) for flags, key in (
            ([], "wrong-key"), ([], "secret-key"), (["--teacher-model", "nope"], "secret-key")))
    assert refused.code == IO and "the server refuses the key" in refused.stderr and "wrong-key" not in refused.stderr, refused
    assert answered.code == 0 and not any("secret-key" in file.read_text() for file in tmp_path.glob("k*")), answered
    assert unknown.code == IO and "nope does not exist" in unknown.stderr, unknown
    run = teach("http://127.0.0.1:9/v1", prompts, tmp_path / "gone.jsonl", environment={"LORA_TRAIN_HTTP_RETRIES": "0"})
    assert run.code == IO and run.stderr.count("http://127.0.0.1:9/v1") == 1 and "no server answers there" in run.stderr, run


def test_a_model_of_this_machine_teaches_as_generate_answers(tmp_path):
    model, out = ROOT / "examples/orders/model", tmp_path / "o.jsonl"
    (tmp_path / "p.txt").write_text("Who is Ann?\nWhere is Rome?\n")
    words = ["--max-new-tokens", "12", "device=cpu", "--json"]
    good_run("teach", "--model", model, "--prompts", tmp_path / "p.txt", "--output", out, *words)
    told = lora_train("generate", "--model", model, "--prompt", "Who is Ann?", "--prompt", "Where is Rome?", *words)
    assert [row["messages"][-1]["content"] for row in rows_of(out)] == [line["completion"] for line in told.json_lines()]
    again = lora_train("teach", "--model", model, "--prompts", tmp_path / "p.txt", "--output", out, *words)
    assert again.code == 0 and again.json_lines()[0]["asked"] == 0, again
