"""Faults for hub_server.py: functions of its Handler. One that returns has changed something about the right answer; the others answer
themselves, or end the connection."""

import time


def status(code, message="", headers=(), error_code=None):
    return lambda handler: handler.fail(code, message or f"made {code}", error_code, headers)


def answer(body, code=200, headers=(), kind="application/json"):
    return lambda handler: handler.send(code, body, headers, kind)


def redirect(address, code=302):
    return lambda handler: handler.send(code, b"", {"Location": address(handler) if callable(address) else address})


def drop(handler):
    """Before an answer."""
    handler.drop()


def drop_after_body(handler):
    """The request has arrived, and may have worked; its answer is lost."""
    handler.read_body()
    handler.send = lambda *_, **__: handler.drop()


def cut(num_bytes):
    def act(handler):
        handler.cut = num_bytes
    return act


def stall(seconds):
    def act(handler):
        time.sleep(seconds)
        handler.drop()
    return act


def garbage(handler):
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    handler.drop()


def change_bytes(handler):
    """Wrong contents of the right length."""
    send = handler.send

    def send_changed(code, data=b"", headers=(), kind="application/json"):
        send(code, bytes(byte ^ 1 for byte in data) if isinstance(data, bytes) and code < 300 else data, headers, kind)
    handler.send = send_changed


def no_ranges(handler):
    del handler.headers["Range"]


def wrong_range(handler):
    handler.headers.replace_header("Range", "bytes=1-2") if "Range" in handler.headers else None


def longer(handler):
    """More bytes than were asked for."""
    send = handler.send
    handler.send = lambda code, data=b"", headers=(), kind="": send(code, data + b"more" if code in (200, 206) else data, headers, kind)


def shorter(handler):
    send = handler.send
    handler.send = lambda code, data=b"", headers=(), kind="": send(code, data[:-3] if code in (200, 206) else data, headers, kind)


def change_json(change):
    """`change` gets the right body and returns another."""
    def act(handler):
        send = handler.send
        handler.send = lambda code, data=b"", headers=(), kind="application/json": send(
            code, change(data) if isinstance(data, (dict, list)) and code == 200 else data, headers, kind)
    return act
