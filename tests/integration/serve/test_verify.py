"""`verify` against stand-ins that answer with transformers and PEFT, in the forms that servers have, and against our own server."""

import json
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from command import expect_end, lora_train
from tiny_math import EXAMPLE, MODEL, QUESTIONS, write_rows

USAGE, MODEL_FILE, IO = 2, 4, 5
ODD = {"not listed": -9999.0, "positive": 0.5, "infinite": -float("inf"), "text": "-0.5"}  # numbers that are no log-probabilities
ADAPTER, BASE, NEITHER = (0, "adapter"), (MODEL_FILE, "base"), (MODEL_FILE, "neither")


class StandIn:
    """`log_probs(ids)`: a row [V] for each position. `form`: how the server gives them."""

    def __init__(self, log_probs, form, names=("mine", "base")):
        self.log_probs, self.form, self.names, self.asked, self.key = log_probs, form, names, [], None
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                allowed = stand_in.key in (None, self.headers.get("Authorization"))
                self.reply(200 if allowed else 401, {"data": [{"id": name} for name in stand_in.names]})

            def do_POST(self):
                self.reply(*stand_in.answer(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

            def reply(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def text(self, id):
        return self.tokenizer.decode([id])

    def entry(self, row, id):
        """A token of a chat's logprobs, without its id."""
        top = row.topk(5)
        return {"token": self.text(id), "logprob": row[id].item(),
                "top_logprobs": [{"token": self.text(i), "logprob": value} for value, i in zip(top.values.tolist(), top.indices.tolist())]}

    def continued(self, ids, count):
        """Entries of the greedy continuation."""
        entries, ids = [], list(ids)
        while len(entries) < count and (not entries or ids[-1] != self.tokenizer.eos_token_id):
            row = self.log_probs(ids)[-1]
            ids.append(row.argmax().item())
            entries.append(self.entry(row, ids[-1]))
        return entries

    def answer(self, path, body):
        self.asked.append(body)
        if path == "/v1/chat/completions" and self.form in ("chat", "none"):
            ids = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=False)
            entries = self.continued(ids, body["max_tokens"])
            choice = {"message": {"role": "assistant", "content": "".join(entry["token"] for entry in entries)}}
            return 200, {"choices": [choice | ({} if self.form == "none" else {"logprobs": {"content": entries}})]}
        if path != "/v1/completions" or self.form == "chat":
            return 404, {"detail": "Not Found"}
        if self.form == "none":
            return 200, {"choices": [{"text": "x"}]}
        ids = body["prompt"]
        if self.form == "texts":
            if body.get("echo") or "prompt_logprobs" in body:
                return 400, {"error": {"message": "Only no echo is supported"}}
            entries = self.continued(ids, body["max_tokens"])
            return 200, {"choices": [{"text": "".join(entry["token"] for entry in entries), "logprobs": {
                "tokens": [entry["token"] for entry in entries], "token_logprobs": [entry["logprob"] for entry in entries]}}]}
        rows = self.log_probs(ids)
        if self.form == "prompt_logprobs":
            if body.get("echo"):
                return 200, {"choices": [{"text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-1]}}]}
            given = [{str(id): {"logprob": row[id].item(), "rank": 1}} for row, id in zip(rows, ids[1:])]
            return 200, {"choices": [{"text": "x", "prompt_logprobs": [None, *given]}]}
        assert body["echo"] and body["temperature"] == 0
        values = [None, *(row[id].item() for row, id in zip(rows, ids[1:]))]
        tops = [None, *({self.text(i): row[i].item() for i in row.topk(5).indices.tolist()} for row in rows[:-1])]
        if self.form in ODD:
            values, tops = [ODD[self.form] if i % 2 else value for i, value in enumerate(values)], None
        return 200, {"choices": [{"text": "x", "logprobs": {"tokens": [self.text(id) for id in ids],
                                                           "token_logprobs": [None] * len(ids) if self.form == "top5" else values,
                                                           "top_logprobs": tops}}]}


@pytest.fixture(scope="module")
def models(tiny_math_run):
    """name -> log_probs of transformers and PEFT, in fp32."""
    def scores(model):
        def log_probs(ids):
            with torch.no_grad():
                return model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return log_probs

    def load(quantises=False, scale=1):
        model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        for layer in model.model.layers if quantises else ():
            for linear in (module for module in layer.modules() if isinstance(module, torch.nn.Linear)):
                linear.weight.data = dequantize_4bit(*quantize_4bit(linear.weight.data, quant_type="nf4"))
        model = PeftModel.from_pretrained(model, tiny_math_run / "adapter")
        for name, weight in model.named_parameters():
            weight.data *= scale if "lora_B" in name else 1
        return model.eval()

    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    return {"adapter": scores(load()), "base": scores(base), "other": scores(load(scale=-0.5)), "nf4": scores(load(quantises=True))}


def verify(url, adapter, *flags, **environment):
    return lora_train("verify", "--server", url, "--adapter", adapter, "device=cpu", *flags,
                      environment={"LORA_TRAIN_HTTP_RETRIES": "0", **environment})


@pytest.mark.parametrize("form, served, expected", [
    ("echo", "adapter", ADAPTER), ("echo", "base", BASE), ("echo", "other", NEITHER), ("prompt_logprobs", "base", BASE),
    ("texts", "adapter", ADAPTER), ("chat", "base", BASE), ("chat", "other", NEITHER), ("top5", "adapter", ADAPTER), ("top5", "base", BASE)])
def test_says_what_the_server_answers_as(models, tiny_math_run, form, served, expected):
    with StandIn(models[served], form, names=["one"]) as server:
        run = verify(server.url, tiny_math_run, "--json")
    code, verdict = expected
    assert run.code == code, run
    [result] = run.json_lines()
    assert result["verdict"] == verdict and result["num_tokens"] > (20 if form == "top5" else 60), run
    assert (result["num_left_out"] > 0) == (form == "top5" and served == "base"), run
    if verdict == "adapter":
        assert result["max_gap"] < 1e-3 and result["gap_to_base"] > 1, run
    if verdict == "base":
        assert result["max_gap"] > 1 and result["gap_to_base"] < 1e-3, run


def test_figures_are_those_of_transformers(models, tiny_math_run):
    """On the tokens that verify asked about."""
    with StandIn(models["base"], "echo", names=["one"]) as server:
        [result] = verify(server.url, tiny_math_run, "--json").json_lines()
        gaps, questions = [], server.asked
    head = server.tokenizer.encode("<|im_start|>assistant\n")
    for body in questions:
        begin = [i for i, id in enumerate(body["prompt"]) if id == head[0]][1] + len(head)
        rows, others = (models[name](body["prompt"]) for name in ("base", "adapter"))
        gaps += [(rows[i - 1] - others[i - 1])[body["prompt"][i]].abs().item() for i in range(begin, len(body["prompt"]))]
    assert result["num_tokens"] == len(gaps) > 60
    assert result["max_gap"] == pytest.approx(max(gaps), abs=1e-3)
    assert result["gap_to_adapter"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-4)


def test_own_numbers_come_from_the_base_of_the_training(models, tiny_math_run, tmp_path):
    shutil.copytree(tiny_math_run / "adapter", tmp_path / "nf4")
    record = {"prompts": "chat", "precision": "fp32", "base_precision": "nf4", "double_quant": False}
    (tmp_path / "nf4/lora_train.json").write_text(json.dumps(record))
    with StandIn(models["nf4"], "echo", names=["one"]) as server:
        [result] = verify(server.url, tmp_path / "nf4", "--json").json_lines()
        [other] = verify(server.url, tiny_math_run, "--json").json_lines()
    assert result["verdict"] == "adapter" and result["max_gap"] < 1e-3 and other["max_gap"] > 0.1, (result, other)


@pytest.mark.parametrize("form", ODD)
def test_leaves_out_what_is_no_log_probability(models, tiny_math_run, form):
    with StandIn(models["adapter"], form, names=["one"]) as server:
        [result] = verify(server.url, tiny_math_run, "--json").json_lines()
    assert result["verdict"] == "adapter" and result["num_left_out"] > 30 and result["max_gap"] < 1e-3, result


def test_cannot_tell_an_adapter_that_changes_nothing(models, tiny_math_run, tmp_path):
    from safetensors.torch import load_file, save_file
    shutil.copytree(tiny_math_run / "adapter", tmp_path / "weak")
    file = tmp_path / "weak/adapter_model.safetensors"
    save_file({name: tensor * (1e-3 if "lora_B" in name else 1) for name, tensor in load_file(file).items()}, file)
    with StandIn(models["base"], "echo", names=["one"]) as server:
        run = verify(server.url, tmp_path / "weak", "--json")
    expect_end(run, MODEL_FILE, "cannot tell", "--prompts FILE")
    assert run.json_lines()[0]["verdict"] == "neither"


def test_chooses_the_model_and_names_those_there_are(models, tiny_math_run):
    with StandIn(models["adapter"], "echo", names=["base", "run"]) as server:
        assert verify(server.url + "/v1/", tiny_math_run).code == 0
        assert {body["model"] for body in server.asked} == {"run"}
        assert verify(server.url, tiny_math_run, "--served-model", "base").code == 0
        expect_end(verify(server.url, tiny_math_run, "--served-model", "mine"), USAGE, "no \"mine\"", "base, run")
        server.names = ["a", "b"]
        expect_end(verify(server.url, tiny_math_run), USAGE, "--served-model", "a, b")


def test_fails_without_a_server_or_without_numbers(models, tiny_math_run):
    with StandIn(models["adapter"], "none", names=["one"]) as server:
        expect_end(verify(server.url, tiny_math_run), IO, "gives no log-probability", "/completions", "/chat/completions")
        server.key = "Bearer right"
        expect_end(verify(server.url, tiny_math_run, OPENAI_API_KEY="wrong"), IO, "$OPENAI_API_KEY")
        expect_end(verify(server.url, tiny_math_run, OPENAI_API_KEY="right"), IO, "gives no log-probability")
    expect_end(verify(server.url, tiny_math_run), IO, "no server answers")
    expect_end(verify("localhost:8000", tiny_math_run), USAGE, "--server", "http://host:8000")


def test_asks_the_prompts_of_a_file(models, tiny_math_run, tmp_path):
    rows = write_rows(tmp_path / "prompts.jsonl", [{"prompt": QUESTIONS[0]}, {"messages": [{"role": "user", "content": QUESTIONS[1]}]}])
    for form in "echo", "chat":
        with StandIn(models["adapter"], form, names=["one"]) as server:
            assert verify(server.url, tiny_math_run, "--prompts", rows).code == 0
        asked = [json.dumps(body.get("messages")) for body in server.asked if form == "echo" or "messages" in body]
        assert len(asked) == 2 and (form == "echo" or all(text in line for text, line in zip(QUESTIONS, asked)))
    with StandIn(models["adapter"], "echo", names=["one"]) as server:
        expect_end(verify(server.url, tiny_math_run, "--prompts", EXAMPLE / "train.jsonl"), 0, "asking the first 32 of")
        assert len(server.asked) == 32
