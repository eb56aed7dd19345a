"""The live page: local, one page and nothing else, new when its files are."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oracles_report import sample_line, step_line, write_run
from ramlet.errors import SettingsError
from ramlet.reporting import serve
from ramlet.reporting.serve import PageServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(serve, "SECONDS_BETWEEN", 0.0)
    write_run(tmp_path / "run")
    with PageServer([tmp_path / "run"]) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    server: PageServer, method: str = "GET", path: str = "/", host: str | None = None, tag: str = ""
) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    headers = {"If-None-Match": tag} if tag else {}
    connection.request(method, path, headers={**headers, **({} if host is None else {"Host": host})})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, answer.getheader("ETag") or ""


def test_it_serves_the_page_to_this_machine_alone(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, body, _ = ask(server)
    assert status == 200
    assert "20 of 100 steps so far" in body
    assert "connect-src 'self'" in body
    assert "not finished" in body


@pytest.mark.parametrize(
    "path", ["/favicon.ico", "/index.html", "/?x", "//x", "/../run/settings.yaml", "/metrics.jsonl"]
)
def test_there_is_no_other_page(server: PageServer, path: str) -> None:
    assert ask(server, path=path)[0] == 404


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "ANYTHING"])
def test_nothing_but_get_is_answered(server: PageServer, method: str) -> None:
    status, body, _ = ask(server, method)
    assert status == 404
    assert "steps" not in body


def test_names_that_others_made_point_here_are_refused(server: PageServer) -> None:
    port = server.port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "",
        f"127.0.0.1:{port + 1}",
        "[::1]",
    ):
        status, body, _ = ask(server, host=host)
        assert (status, "steps" in body) == (403, False), host
    for host in ("localhost", "LocalHost", f"localhost:{port}", f"127.0.0.1:{port}"):
        assert ask(server, host=host)[0] == 200, host


def test_the_page_is_made_anew_when_its_files_change(server: PageServer, tmp_path: Path) -> None:
    _, _, tag = ask(server)
    assert ask(server, tag=tag)[:2] == (304, "")
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write(step_line(21, 3.5) + sample_line(21, "Once more") + '{"step": 22, "lo')
    status, body, newer = ask(server, tag=tag)
    assert (status, newer != tag) == (200, True)
    assert "21 of 100 steps so far" in body
    assert "<mark>Once</mark> more" in body
    write_run(tmp_path / "run", [step_line(1, 4.0)], finished=True)
    assert "in 1 step." in ask(server)[1]


def test_what_is_written_while_the_page_is_made_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "SECONDS_BETWEEN", 0.0)
    run = write_run(tmp_path / "run")
    make, came = serve.page, iter([21, 22, 23])

    def slow_page(*given: Any, **options: Any) -> str:
        made = make(*given, **options)
        for step in itertools.islice(came, 1):
            with open(run / "metrics.jsonl", "a") as file:
                file.write(step_line(step, 3.0))
        return made

    monkeypatch.setattr(serve, "page", slow_page)
    with PageServer([run]) as server:
        for _ in range(4):
            body, _ = server.current()
    assert b"23 of 100 steps so far" in body


def test_an_error_is_shown_until_it_is_gone(server: PageServer, tmp_path: Path) -> None:
    good = (tmp_path / "run" / "settings.yaml").read_text()
    (tmp_path / "run" / "settings.yaml").write_text("a: [")
    status, body, _ = ask(server)
    assert status == 200
    assert "settings.yaml is damaged" in body
    (tmp_path / "run" / "settings.yaml").write_text(good)
    assert "20 of 100 steps so far" in ask(server)[1]


def test_a_run_without_a_step_is_waited_for(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [])
    with PageServer([tmp_path / "run"]) as server:
        assert b"0 of 100 steps so far" in server.current()[0]


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such folder"):
        PageServer([tmp_path / "nothing"])
    write_run(tmp_path / "run")
    with PageServer([tmp_path / "run"]) as first, pytest.raises(SettingsError, match="cannot listen on port"):
        PageServer([tmp_path / "run"], first.port)


def test_ctrl_c_is_how_it_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    command = [sys.executable, "-m", "ramlet", "report", "run", "--watch", "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            assert address.startswith("http://127.0.0.1:")
            connection = http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=20)
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, told) == (0, "")
    assert not (tmp_path / "run" / "report.html").exists()
