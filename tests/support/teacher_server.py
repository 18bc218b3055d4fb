"""A server that speaks OpenAI's protocol as far as teach needs it, and fails on demand. Answers are a function of the question.

As a program it is the stand-in for a teacher: teacher_server.py --port 8000 --answers rows.jsonl --share 0.2
"""

import argparse
import contextlib
import json
import random
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODELS = ("big-teacher", "other")
FAULTS = ("429", "500", "503", "cut", "not_json", "no_choices", "empty", "hangs_up", "slow")


def answer_to(messages, seed):
    question = messages if isinstance(messages, str) else messages[-1]["content"]
    return f"{question.upper()} [{seed}]"


class Handler(BaseHTTPRequestHandler):
    """`self.server.teacher` is the TeacherServer."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send_json(self, code, body, headers=()):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def hang_up(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def is_allowed(self):
        key = self.server.teacher.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.send_json(401, {"error": {"message": "Incorrect API key provided"}})
        return False

    def do_GET(self):
        if self.path == "/health":
            self.send_json(200 if self.server.teacher.is_healthy() else 503, b"")
        elif self.is_allowed():
            self.send_json(200, {"data": [{"id": name} for name in MODELS]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_allowed():
            return
        if self.path not in ("/v1/chat/completions", "/v1/completions") or body["model"] not in MODELS:
            self.send_json(404, {"error": {"message": f"The model {body['model']} does not exist"}})
            return
        with self.server.teacher.counted(body) as fault:
            self.answer(body, fault)

    def answer(self, body, fault):
        teacher = self.server.teacher
        time.sleep(teacher.seconds + (0.2 if fault == "slow" else 0))
        asked = body.get("messages", body.get("prompt"))
        if any(text in json.dumps(asked) for text in teacher.refuses):
            self.send_json(400, {"error": {"message": "This model's maximum context length is 16 tokens"}})
        elif fault in ("429", "500", "503"):
            self.send_json(int(fault), {"error": {"message": "busy"}}, [("Retry-After", "0")])
        elif fault == "hangs_up":
            self.hang_up()
        else:
            self.send_reply(json.dumps(self.reply_to(body, asked, fault)).encode(), fault)
            if fault in (None, "slow"):
                teacher.note_answer(asked, body.get("seed"))

    def reply_to(self, body, asked, fault):
        words = self.server.teacher.reply(asked, body.get("seed")).split(" ")
        choice = {"index": 0, "finish_reason": "length" if len(words) > body["max_tokens"] else "stop"}
        text = " ".join(words[:body["max_tokens"]])
        choice.update({"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text})
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": text[:1], "logprob": -0.5, "top_logprobs": []}]}
        if fault == "no_choices":
            return {"choices": []}
        if fault == "empty":
            return {"choices": [{"message": {"role": "assistant"}}]}
        return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": len(text.split())}}

    def send_reply(self, data, fault):
        if fault != "cut":
            return self.send_json(200, data[:-9] if fault == "not_json" else data)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:-5])
        self.wfile.flush()
        return self.hang_up()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that has gone away is no error of the server."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class TeacherServer:
    """faults: kinds of which each request draws one with probability `share`; refuses: texts in a question that are answered with 400."""

    def __init__(self, faults=(), share=0.5, key=None, refuses=(), seconds=0.0, reply=answer_to, seed=0, port=0, start_s=0.0):
        self.faults, self.share, self.key, self.refuses, self.seconds, self.reply = faults, share, key, refuses, seconds, reply
        self.asked, self.answered, self.active, self.most_active = [], [], 0, 0
        self.lock, self.random, self.healthy_at = threading.Lock(), random.Random(seed), time.monotonic() + start_s
        self.server = Server(("127.0.0.1", port), Handler)
        self.server.teacher = self
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def is_healthy(self):
        return time.monotonic() >= self.healthy_at

    @contextlib.contextmanager
    def counted(self, body):
        with self.lock:
            self.asked.append(body)
            self.active += 1
            self.most_active = max(self.most_active, self.active)
            fault = self.random.choice(self.faults) if self.faults and self.random.random() < self.share else None
        try:
            yield fault
        finally:
            with self.lock:
                self.active -= 1

    def note_answer(self, asked, seed):
        with self.lock:
            self.answered.append(json.dumps([asked, seed]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def answers_of(file):
    """A reply for each question that the examples of a file answer; to others it answers as `answer_to`."""
    known = {}
    for line in Path(file).read_text().splitlines():
        *asked, answer = json.loads(line)["messages"]
        known[asked[-1]["content"]] = answer["content"]
    return lambda messages, seed: known.get(messages[-1]["content"]) or answer_to(messages, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--answers", help="examples whose answers it gives")
    parser.add_argument("--share", type=float, default=0.0, help="of the requests, those that fail")
    parser.add_argument("--start-s", type=float, default=0.0, help="until it is healthy")
    flags = parser.parse_args()
    reply = answers_of(flags.answers) if flags.answers else answer_to
    with TeacherServer(faults=FAULTS, share=flags.share, reply=reply, port=flags.port, start_s=flags.start_s) as server:
        print(f"stand-in teacher at {server.url}", flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    print(f"{len(server.asked)} questions, {len(server.answered)} answers", flush=True)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    sys.exit(main())
