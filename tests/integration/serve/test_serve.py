"""`serve`: any client of OpenAI's API, several models at once, and clients that are slow, gone or wrong."""

import concurrent.futures
import json
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest

from command import BINARY, ENVIRONMENT, TIMEOUT_S, has_library, good_run, lora_train, train_tiny_math
from tiny_math import EXAMPLE, FP32, MODEL, QUESTIONS, hybrid_model

USER = {"role": "user", "content": "Hi"}
LONG = {"temperature": 100, "seed": 3, "max_tokens": 600}  # any token is as likely as the one that ends the answer
LONG_BODY = {"model": "model", "messages": [{"role": "user", "content": QUESTIONS[0]}], **LONG, "n": 4}


pytestmark = pytest.mark.skipif(not has_library("libmicrohttpd.so.12"), reason="libmicrohttpd is not here")


class Server:
    """One that a failed test leaves behind is killed."""

    def __init__(self, *arguments, key=None, model=MODEL):
        command = [str(BINARY), "serve", "--model", str(model), *FP32, "--port", "0", "--json", *map(str, arguments)]
        environment = dict(ENVIRONMENT, **({"LORA_TRAIN_API_KEY": key} if key else {}))
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.start = json.loads(self.process.stdout.readline())
        self.url, self.key, self.log = self.start["url"], key, ""
        self.port = int(self.url.rsplit(":", 1)[1])
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key=key or "none", max_retries=0, timeout=TIMEOUT_S)
        self.reader = threading.Thread(target=self.read_log)
        self.reader.start()

    def read_log(self):
        for line in self.process.stderr:
            self.log += line

    def wait_for(self, pattern):
        """Until the log has it."""
        end = time.monotonic() + 60
        while not re.search(pattern, self.log):
            assert time.monotonic() < end, self.log
            time.sleep(0.02)

    def ask(self, model, question, **options):
        options.setdefault("temperature", 0)
        return self.client.chat.completions.create(model=model, messages=[{"role": "user", "content": question}], **options)

    def post(self, body, path="/v1/chat/completions", headers=()):
        """(status, answer, headers) of any body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json", **dict(headers)})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.loads(answer.read()), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), error.headers

    def connect(self, body, receive_buffer=None):
        """A socket on which a request has been sent."""
        client = socket.socket()
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.connect(("127.0.0.1", self.port))
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        return client

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.reader.join()

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(timeout=TIMEOUT_S)
        self.reader.join()
        return code


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Two runs, of different ranks and targets."""
    first, second = train_tiny_math(tmp_path_factory.mktemp("first")), tmp_path_factory.mktemp("second") / "short"
    good_run("train", "--model", MODEL, "--train-data", EXAMPLE / "train.jsonl", "--output-dir", second, "device=cpu",
             "precision=fp32", "max_steps=8", "global_batch_size=4", "micro_batch_size=1", "max_seq_len=256",
             "learning_rate=8e-3", "report_to=none", "lora_r=4", "lora_target_modules=[q_proj, down_proj]", "seed=5")
    return first, second


@pytest.fixture(scope="module")
def server(adapters):
    with Server("--adapter", f"math={adapters[0]}", "--adapter", adapters[1]) as running:
        yield running
        assert running.stop() == 0, running.log


@pytest.fixture(scope="module")
def generated(adapters):
    """generate(model, question, *flags): what the program answers without a server."""
    folders = {"model": (), "math": ("--adapter", adapters[0]), "short": ("--adapter", adapters[1])}

    def generate(model, question, *flags):
        run = good_run("generate", "--model", MODEL, *folders[model], *FP32, "--json", "--prompt", question, *flags)
        return run.json_lines()[0]
    return generate


def test_models_have_the_names_that_were_given(server):
    assert server.start["models"] == ["model", "math", "short"]
    assert [model.id for model in server.client.models.list()] == server.start["models"]
    assert server.client.models.retrieve("short").id == "short"
    assert urllib.request.urlopen(server.url + "/health").read() == b'{"status":"ok"}'
    with pytest.raises(openai.NotFoundError, match="there are model, math, short"):
        server.ask("other", "Hi")


def test_answers_are_those_of_generate(server, generated):
    answers = {}
    for model in server.start["models"]:
        expected = generated(model, QUESTIONS[0])
        got = server.ask(model, QUESTIONS[0])
        assert got.choices[0].message.content == expected["completion"] and got.choices[0].finish_reason == "stop"
        assert got.usage.completion_tokens == len(expected["completion_ids"])
        assert got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens
        answers[model] = expected["completion"]
    assert len(set(answers.values())) == 3, "the adapters answer alike; the test shows nothing"
    cut = server.ask("math", QUESTIONS[0], max_completion_tokens=2)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 2


def test_requests_for_different_models_are_answered_together(server, generated):
    expected = {(model, question): generated(model, question)["completion"] for model in server.start["models"] for question in QUESTIONS[:2]}
    got, ends = {}, {}

    def read_long():
        for chunk in server.ask("math", QUESTIONS[3], stream=True, n=4, **LONG):
            ends.setdefault("first", threading.Event()).set()
            ends["last"] = time.monotonic()

    ends["first"] = threading.Event()
    long_one = threading.Thread(target=read_long)
    long_one.start()
    ends["first"].wait()

    def read_short(model, question):
        got[model, question] = server.ask(model, question).choices[0].message.content
        ends[model, question] = time.monotonic()

    short_ones = [threading.Thread(target=read_short, args=key) for key in expected]
    for thread in short_ones:
        thread.start()
    for thread in [*short_ones, long_one]:
        thread.join()
    assert got == expected
    assert all(ends[key] < ends["last"] for key in expected), "an answer has waited for the end of another"


def test_states_of_a_hybrid_model_stay_with_their_requests(tmp_path):
    """Prompts of unlike lengths for two models, at once and again: rows of states change hands."""
    model, run = hybrid_model(tmp_path), tmp_path / "run"
    good_run("train", "--model", model, "--train-data", EXAMPLE / "train.jsonl", "--output-dir", run, "device=cpu", "precision=fp32",
             "max_steps=2", "global_batch_size=2", "max_seq_len=256", "learning_rate=3e-2", "report_to=none")
    prompts = [QUESTIONS[0], QUESTIONS[1] * 9, "Hi"]
    flags = ("--temperature", "0", "--max-new-tokens", "12")
    expected = {}
    for name, more in (("hybrid", ()), ("run", ("--adapter", run / "adapter"))):
        for prompt in prompts:
            alone = good_run("generate", "--model", model, *more, *FP32, "--json", "--prompt", prompt, *flags)
            expected[name, prompt] = alone.json_lines()[0]["completion"]
    assert len(set(expected.values())) == 6, "the models answer alike; the test shows nothing"
    with Server("--adapter", run / "adapter", model=model) as running:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            got = [(key, pool.submit(running.ask, *key, max_tokens=12)) for key in [*expected, *expected]]
        assert [(key, answer.result().choices[0].message.content) for key, answer in got] == [(key, expected[key]) for key, _ in got]
        assert running.stop() == 0, running.log


def test_an_adapter_trained_on_text_gets_the_one_message_as_it_is(tmp_path):
    """Beside its base, which has chats; --raw=false gives it chats too."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{i} plus 1 is", "completion": " 7."}) + "\n" for i in range(8)))
    good_run("train", "--model", MODEL, "--train-data", tmp_path / "rows.jsonl", "--output-dir", tmp_path / "text", "device=cpu", "precision=fp32",
             "max_steps=2", "global_batch_size=4", "learning_rate=1e-2", "report_to=none")
    ask = ("generate", "--model", MODEL, *FP32, "--json", "--prompt", "5 plus 1 is", "--max-new-tokens", "12",
           "--temperature", "3", "--seed", "1")
    draw = {"max_tokens": 12, "temperature": 3, "seed": 1}
    adapter = ("--adapter", tmp_path / "text")
    raw, chat = [good_run(*ask, *adapter, flag).json_lines()[0]["completion"] for flag in ("--raw", "--raw=false")]
    base = good_run(*ask).json_lines()[0]["completion"]
    assert len({raw, chat, base}) == 3, "the models answer alike; the test shows nothing"
    with Server(*adapter) as running:
        assert [running.ask(model, "5 plus 1 is", **draw).choices[0].message.content for model in ("text", "model")] == [raw, base]
        parts = [{"role": "user", "content": [{"type": "text", "text": "5 plus"}, {"type": "text", "text": " 1 is"}]}]
        status, answer, _ = running.post({"model": "text", "messages": parts, **draw})
        assert (status, answer["choices"][0]["message"]["content"]) == (200, raw)
        for more in ({"messages": [USER, {"role": "assistant", "content": "x"}, USER]}, {"messages": [{"role": "system", "content": "x"}]},
                     {"messages": [USER], "tools": [{"type": "function"}]}):
            status, answer, _ = running.post({"model": "text", **more})
            assert (status, answer["error"]["param"]) == (400, "messages") and "/v1/completions takes whole" in answer["error"]["message"], answer
        assert '"model":"text","prompt":"Hello"' in running.log and "text/adapter was trained on raw prompts" in running.log
        assert running.stop() == 0, running.log
    with Server(*adapter, "--raw=false") as running:
        assert running.ask("text", "5 plus 1 is", **draw).choices[0].message.content == chat
        assert running.stop() == 0, running.log


def test_a_stream_is_the_answer_in_pieces(server, generated):
    expected = generated("math", QUESTIONS[1])
    chunks = list(server.ask("math", QUESTIONS[1], stream=True, stream_options={"include_usage": True}))
    *parts, end, usage = chunks
    assert "".join(part.choices[0].delta.content for part in parts) == expected["completion"] and len(parts) > 3
    assert parts[0].choices[0].delta.role == "assistant" and {chunk.id for chunk in chunks} == {parts[0].id}
    assert end.choices[0].finish_reason == "stop" and usage.choices == []
    assert usage.usage.completion_tokens == len(expected["completion_ids"])
    text = server.client.completions.create(model="math", prompt="What is", max_tokens=5, temperature=0)
    pieces = server.client.completions.create(model="math", prompt="What is", max_tokens=5, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == text.choices[0].text
    assert text.choices[0].text == generated("math", "What is", "--raw", "--max-new-tokens", "5")["completion"]


def test_the_seed_decides_every_answer(server, generated):
    asked = {"temperature": 1.5, "seed": 11, "max_tokens": 20, "extra_body": {"top_k": 40, "min_p": 0.01}, "top_p": 0.95}
    three = [choice.message.content for choice in server.ask("math", QUESTIONS[2], n=3, **asked).choices]
    assert three == [choice.message.content for choice in server.ask("math", QUESTIONS[2], n=3, **asked).choices]
    assert len(set(three)) == 3, three
    flags = ("--temperature", "1.5", "--seed", "11", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01", "--max-new-tokens", "20")
    assert three[0] == generated("math", QUESTIONS[2], *flags)["completion"]


def test_what_would_change_the_answer_is_refused_by_name_and_what_does_not_is_ignored(server):
    """Every wrong field and body: api_request_test and http_server_test."""
    for fields, param in (({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages"), ({"temperature": -1}, "temperature"),
                          ({"max_tokens": 5000}, "messages"), ({"messages": [USER] * 2000}, "messages"), ({"tools": {}}, "tools")):
        status, answer, _ = server.post({"model": "model", "messages": [USER], **fields})
        assert (status, answer["error"]["param"], answer["error"]["type"]) == (400, param, "invalid_request_error"), answer
    plain = server.ask("model", QUESTIONS[0]).choices[0].message.content
    same = server.ask("model", QUESTIONS[0], user="me", metadata={"a": "b"}, store=False, frequency_penalty=0, presence_penalty=0.0,
                      logit_bias={}, response_format={"type": "text"}, parallel_tool_calls=True, tool_choice="auto")
    assert same.choices[0].message.content == plain
    parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert server.post({"model": "model", "messages": parts, "max_tokens": 1})[0] == 200


def test_an_answer_ends_when_its_client_has_gone(server):
    client = server.connect(dict(LONG_BODY, stream=True, max_tokens=900, n=16))
    assert client.recv(1).decode() == "H"
    client.close()
    server.wait_for("499, model")
    tokens = [int(count) for count in re.findall(r"499, model, \d+ \+ (\d+) tokens", server.log)]
    assert tokens[-1] < 16 * 500, "it was computed to its end"


def test_a_key_is_asked_for_and_stays_secret_and_too_many_requests_come_back(adapters):
    key = "secret-of-the-test"
    body = {"model": "model", "messages": [USER], "n": 4, "max_tokens": 1}
    with Server("--queue", "3", key=key) as server:
        assert server.start["has_key"] and len(server.ask("model", "Hi", n=3, max_tokens=1).choices) == 3
        status, answer, headers = server.post(body, headers={"Authorization": f"Bearer {key}"})
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "server_busy", "5")
        for given in ("", f"Bearer {key}x", f"Bearer {key[:-1]}", key):
            status, answer, headers = server.post(body, headers={"Authorization": given} if given else {})
            assert status == 401 and answer["error"]["code"] == "invalid_api_key" and headers["WWW-Authenticate"] == "Bearer"
        assert server.stop(signal.SIGINT) == 0
    assert key not in server.log and "$LORA_TRAIN_API_KEY" in server.log


def test_a_stop_lets_running_answers_end_whatever_slow_clients_do():
    with Server() as server:
        never_reads = server.connect(dict(LONG_BODY, stream=True, n=32), receive_buffer=2048)
        stream = server.ask("model", QUESTIONS[3], stream=True, **dict(LONG, max_tokens=60))
        first = next(stream)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        rest = list(stream)
        assert first.choices[0].delta.content and rest[-1].choices[0].finish_reason in ("stop", "length")
        with pytest.raises(OSError):
            for _ in range(100):  # what stood in the queue of the socket may still be accepted
                socket.create_connection(("127.0.0.1", server.port), timeout=1).recv(1)
        assert server.process.wait(timeout=TIMEOUT_S) == 0
        server.reader.join()
        assert time.monotonic() - started < 10, "the contract's limit"
        never_reads.close()


def test_mistakes_of_the_command_line(adapters, tmp_path):
    def refused(*arguments, code=2):
        run = lora_train("serve", "--model", MODEL, *FP32, *arguments)
        assert run.code == code, run
        return run.stderr
    assert "put a key into $LORA_TRAIN_API_KEY" in refused("--host", "0.0.0.0")
    assert 'two models have the name "model"' in refused("--adapter", f"model={adapters[0]}")
    assert "expected DIR or NAME=DIR" in refused("--adapter", "x=")
    assert "is not an address of this machine" in refused("--host", "no.such.host.invalid", code=5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "Another program listens there" in refused("--port", str(taken.getsockname()[1]), code=5)


def test_a_served_teacher_gives_log_probabilities_to_follow(server, tmp_path):
    prompts, rows = tmp_path / "prompts.txt", tmp_path / "rows.jsonl"
    prompts.write_text("".join(question + "\n" for question in QUESTIONS))
    good_run("teach", "--teacher", server.url + "/v1", "--teacher-model", "model", "--prompts", prompts, "--output", rows,
             "--logprobs", "5", "--max-tokens", "12")
    for row in map(json.loads, rows.read_text().splitlines()):
        assert len(row["logprobs"]["content"][0]["top_logprobs"]) == 5
    train = ["train", f"model={MODEL}", f"datasets={rows}", f"eval_datasets={rows}", *FP32, "max_steps=1", "global_batch_size=4", "save_steps=off", "report_to=none"]
    losses = []
    for loss_type in ("nll", "kl"):
        run = good_run(*train, f"loss_type={loss_type}", "kd_alpha=1", f"output_dir={tmp_path / loss_type}", "--json")
        losses.append(run.json_lines()[-1]["train_loss"])
    log = (tmp_path / "kl/run.log").read_text()
    [(soft, trained)] = re.findall(r"soft labels: ([\d,]+) of ([\d,]+) trained tokens", log)
    soft, trained = (int(number.replace(",", "")) for number in (soft, trained))
    assert trained > soft >= trained - len(QUESTIONS), "all but the end of a turn"
    assert losses[1] < losses[0], "a teacher that is the model itself leaves little to learn"


def test_verify_tells_the_adapter_from_its_base_and_from_another(server, adapters):
    for name, verdict in ("math", "adapter"), ("model", "base"), ("short", "neither"):
        run = lora_train("verify", "--server", server.url, "--adapter", adapters[0], "--served-model", name, "--json", "device=cpu")
        [result] = run.json_lines()
        assert (result["verdict"], run.code) == (verdict, 0 if verdict == "adapter" else 4), run
        assert verdict != "adapter" or result["max_gap"] < 1e-4, run
