"""A server that speaks OpenAI's protocol as far as teach needs it, and fails on demand. Answers are a function of the question."""

import json
import random
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("429", "500", "503", "cut", "not_json", "no_choices", "empty", "hangs_up", "slow")


def answer_to(messages, seed):
    question = messages if isinstance(messages, str) else messages[-1]["content"]
    return f"{question.upper()} [{seed}]"


class TeacherServer:
    """faults: kinds of which each request draws one with probability `share`; `refuses`: texts in a question that are answered with 400."""

    def __init__(self, faults=(), share=0.5, key=None, refuses=(), seconds=0.0, reply=answer_to, seed=0):
        self.asked, self.answered, self.active, self.most_active = [], [], 0, 0
        self.lock, self.random = threading.Lock(), random.Random(seed)
        teacher = self

        class Handler(BaseHTTPRequestHandler):
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
                if key is None or self.headers.get("Authorization") == f"Bearer {key}":
                    return True
                self.send_json(401, {"error": {"message": "Incorrect API key provided"}})
                return False

            def do_GET(self):
                if self.is_allowed():
                    self.send_json(200, {"data": [{"id": "big-teacher"}, {"id": "other"}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not self.is_allowed():
                    return
                if self.path not in ("/v1/chat/completions", "/v1/completions") or body["model"] not in ("big-teacher", "other"):
                    self.send_json(404, {"error": {"message": f"The model {body['model']} does not exist"}})
                    return
                with teacher.lock:
                    teacher.asked.append(body)
                    teacher.active += 1
                    teacher.most_active = max(teacher.most_active, teacher.active)
                    fault = teacher.random.choice(faults) if faults and teacher.random.random() < share else None
                try:
                    self.answer(body, fault)
                finally:
                    with teacher.lock:
                        teacher.active -= 1

            def answer(self, body, fault):
                time.sleep(seconds)
                is_chat = "messages" in body
                asked = body["messages"] if is_chat else body["prompt"]
                if any(text in json.dumps(asked) for text in refuses):
                    return self.send_json(400, {"error": {"message": "This model's maximum context length is 16 tokens"}})
                if fault in ("429", "500", "503"):
                    return self.send_json(int(fault), {"error": {"message": "busy"}}, [("Retry-After", "0")])
                if fault == "hangs_up":
                    return self.hang_up()
                if fault == "slow":
                    time.sleep(0.2)
                text = teacher.reply(asked, body.get("seed"))
                reason = "stop"
                if len(text.split()) > body["max_tokens"]:
                    text, reason = " ".join(text.split()[:body["max_tokens"]]), "length"
                choice = {"index": 0, "finish_reason": reason}
                choice.update({"message": {"role": "assistant", "content": text}} if is_chat else {"text": text})
                if body.get("logprobs"):
                    choice["logprobs"] = {"content": [{"token": text[:1], "logprob": -0.5, "top_logprobs": []}]}
                reply = {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": len(text.split())}}
                if fault == "no_choices":
                    reply = {"choices": []}
                if fault == "empty":
                    reply = {"choices": [{"message": {"role": "assistant"}}]}
                data = json.dumps(reply).encode()
                if fault == "not_json":
                    data = data[:-9]
                if fault == "cut":
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data[:-5])
                    self.wfile.flush()
                    return self.hang_up()
                self.send_json(200, data)
                if fault not in ("not_json", "no_choices", "empty"):
                    with teacher.lock:
                        teacher.answered.append(json.dumps([asked, body.get("seed")]))

        self.reply = reply
        ThreadingHTTPServer.allow_reuse_address = True
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
