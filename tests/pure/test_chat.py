"""Chat: token-exact history, undo, commands, pipes and JSON lines, a reply cut short by Ctrl-C."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import ClassVar

import pytest
from engines import fake_engine
from interrupts import interrupt_when_busy
from typer.testing import CliRunner, Result

from branchwork.lang.client import Client
from branchwork.lang.errors import EngineClosed, InvalidRequest, PromptTooLong
from branchwork.lang.mock import MockClient, settle
from branchwork.lang.request import Delta, Request, RoleEnd, Text, Usage
from branchwork.lang.sampling import Sampling
from branchwork.server.chat import Chat, Turn
from branchwork.server.cli import app
from branchwork.server.commands.chat import Session, Style, cost

GREEDY = Sampling(max_tokens=20)


def ignore(text: str) -> None:
    pass


# -- the session ------------------------------------------------------------------------------


async def test_every_turn_extends_the_last_ones_prompt_and_finds_it_cached() -> None:
    with fake_engine() as fake:
        chat = Chat(fake.client, GREEDY, "Be brief.")
        for i in range(4):
            await chat.ask(f"question {i}", ignore)
        first, *later = chat.turns
        for before, turn in zip([first, *later], later, strict=False):
            assert before.usage and turn.usage
            known = before.usage.prompt_tokens + len(_kept(before.history))
            assert turn.usage.cached_tokens >= known - 1  # the last drawn token is not computed
            said = _ids(before.history)
            assert _ids(turn.history)[: len(said)] == said


def _ids(history: tuple[object, ...]) -> tuple[int, ...]:
    return tuple(i for segment in history for i in getattr(segment, "ids", ()))


def _kept(history: tuple[object, ...]) -> tuple[int, ...]:
    return _ids(history[1:])


async def test_undo_takes_the_branch_back_and_finds_it_cached() -> None:
    with fake_engine() as fake:
        chat = Chat(fake.client, GREEDY)
        await chat.ask("one", ignore)
        second = await chat.ask("two", ignore)
        assert chat.undo() == second
        again = await chat.ask("two", ignore)
        assert again.reply == second.reply
        assert again.usage and again.usage.cached_tokens == again.usage.prompt_tokens - 1
        chat.reset()
        assert chat.undo() is None
        assert chat.messages() == []


async def test_what_is_heard_is_the_reply() -> None:
    heard: list[str] = []
    with fake_engine() as fake:
        turn = await Chat(fake.client, GREEDY).ask("hello", heard.append)
    assert len(heard) > 1
    assert "".join(heard) == turn.reply


async def test_a_seed_repeats_the_session_but_an_undone_question_gets_another_reply() -> None:
    async def session() -> list[str]:
        chat = Chat(MockClient(), Sampling(temperature=1.0, seed=4))
        first = await chat.ask("hello", ignore)
        chat.undo()
        return [first.reply, (await chat.ask("hello", ignore)).reply]

    once, again = await session()
    assert once != again
    assert await session() == [once, again]


async def test_an_interrupted_reply_stays_as_far_as_it_came() -> None:
    client = MockClient(lambda prompt, request: "abcdefgh", delta_tokens=2)
    chat = Chat(client, GREEDY)
    await chat.ask("one", ignore)

    def hear(text: str) -> None:
        if text == "cd":
            task.cancel()

    task = asyncio.create_task(chat.ask("two", hear))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.open_streams == 0
    assert [turn.reply for turn in chat.turns] == ["abcdefgh", "abcd"]
    assert (chat.turns[-1].reason, chat.turns[-1].usage) == ("interrupted", None)
    before = settle(client.requests[-1]).ids
    await chat.ask("three", ignore)
    after = settle(client.requests[-1]).ids
    assert after[: len(before) + 4] == (*before, *map(ord, "abcd"))


async def test_the_engine_computes_nothing_twice_after_an_interruption() -> None:
    with fake_engine() as fake:
        chat = Chat(fake.client, Sampling(max_tokens=60, ignore_eos=True))
        heard: list[str] = []

        def hear(text: str) -> None:
            heard.append(text)
            if len(heard) == 8:
                task.cancel()

        task = asyncio.create_task(chat.ask("tell me a story", hear))
        with pytest.raises(asyncio.CancelledError):
            await task
        prompt = fake.client.prepare(Request(segments=chat.turns[-1].history)).prompt
        turn = await chat.ask("go on", ignore)
        assert turn.usage
        n_end = 3  # the markup that closes the reply, and the last token drawn
        assert turn.usage.cached_tokens >= len(prompt.ids) - n_end - fake.cache.page_size


async def test_a_reply_that_fails_leaves_the_history_as_it_was() -> None:
    def script(prompt: str, request: Request) -> str:
        if "bad" in prompt:
            raise PromptTooLong("too long")
        return "fine"

    chat = Chat(MockClient(script), GREEDY)
    await chat.ask("good", ignore)
    with pytest.raises(PromptTooLong):
        await chat.ask("bad", ignore)
    assert len(chat.turns) == 1
    assert (await chat.ask("good again", ignore)).reply == "fine"


async def test_a_stop_string_inside_a_reply_is_handed_on_with_its_tail() -> None:
    chat = Chat(MockClient(lambda prompt, request: "abc|def"), Sampling(stop=("|",)))
    turn = await chat.ask("x", ignore)
    assert turn.reply == "abc"
    assert turn.history[-1] == RoleEnd("assistant")


class Silent:
    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta(text="a", ids=(1,))

    async def aclose(self) -> None:
        pass


async def test_a_client_without_a_finish_is_an_error() -> None:
    with pytest.raises(EngineClosed):
        await Chat(Silent(), GREEDY).ask("x", ignore)


# -- the command ------------------------------------------------------------------------------


class MockEngine:
    made: ClassVar[list[MockEngine]] = []

    def __init__(self, model: str, *, dtype: str, kv_tokens: int | None) -> None:
        self.asked = (model, dtype, kv_tokens)
        self.client = MockClient(cache=True, delta_tokens=3)
        self.closed = False
        self.made.append(self)

    def __enter__(self) -> MockEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[MockEngine]:
    monkeypatch.setattr(MockEngine, "made", [])
    monkeypatch.setattr("branchwork.server.commands.run.Engine", MockEngine)
    return MockEngine.made


def talk(lines: str, *argv: str) -> Result:
    return CliRunner().invoke(app, ["chat", *argv], input=lines)


def test_a_pipe_gets_a_line_a_reply_and_costs_stand_beside(engines: list[MockEngine]) -> None:
    result = talk("hello\n\nand you?\n", "--model", "mine", "--system", "Be kind.")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2
    costs = [line for line in result.stderr.splitlines() if line.startswith("prompt ")]
    assert len(costs) == 2
    assert ", cached 0, computed " in costs[0]
    assert ", cached 0," not in costs[1]
    (engine,) = engines
    assert engine.asked == ("mine", "auto", None)
    assert engine.closed
    assert Text("Be kind.") in engine.client.requests[0].segments


def test_json_is_one_line_a_turn_and_history_is_hits(engines: list[MockEngine]) -> None:
    result = talk("hello\n/undo\nhello\nmore\n/nonsense\n", "--json", "--max-tokens", "9")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each.get("turn") for each in found] == [1, 1, 2, None]
    assert found[0]["reply"] == found[1]["reply"]
    assert found[1]["usage"]["cached_tokens"] == found[1]["usage"]["prompt_tokens"] - 1
    said = found[1]["usage"]["prompt_tokens"] + len(found[1]["reply"])
    assert found[2]["usage"]["cached_tokens"] == said
    assert found[3]["error"]["code"] == "invalid_request"
    assert all(r.sampling.max_tokens == 9 for r in engines[0].client.requests)


def test_commands_do_what_the_help_says(engines: list[MockEngine], tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    lines = ["/help", "one", f"/save {path}", "/reset", "/undo", "//slash", "/quit", "never"]
    result = talk("\n".join(lines))
    assert result.exit_code == 0, result.stderr
    for told in ("/save FILE", "saved 1 turns", "all turns forgotten", "nothing to undo"):
        assert told in result.stderr
    saved = json.loads(path.read_text())["messages"]
    assert [each["role"] for each in saved] == ["user", "assistant"]
    assert saved[0]["content"] == "one"
    last = engines[0].client.requests[-1]
    assert Text("/slash") in last.segments
    assert engines[0].client.n_calls == 2


@pytest.mark.parametrize("line", ["/save", "/save /no/such/folder/file.json", "/unknown"])
def test_a_wrong_command_is_told_and_the_session_goes_on(
    engines: list[MockEngine], line: str
) -> None:
    result = talk(f"{line}\nhello\n")
    assert result.exit_code == 0
    assert "branchwork: " in result.stderr
    assert engines[0].client.n_calls == 1


def test_options_no_sampler_could_honour_are_refused_before_a_model_is_loaded(
    engines: list[MockEngine],
) -> None:
    result = talk("hello\n", "--temperature", "-1")
    assert result.exit_code == 2
    assert "temperature must be" in result.stderr
    assert engines == []


def session_of(client: Client, interactive: bool) -> tuple[Session, Chat]:
    chat = Chat(client, GREEDY)
    return Session(chat, Style(interactive, as_json=False)), chat


def test_ctrl_c_stops_the_reply_and_keeps_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    client = MockClient({"slow<|end|><|assistant|>": "never said"}, delay=5.0)
    session, chat = session_of(client, interactive=True)
    with interrupt_when_busy(client):
        session.run(iter(["slow"]))
    assert client.open_streams == 0
    assert chat.turns == []
    assert "the turn is dropped" in capsys.readouterr().err


def test_a_conversation_beyond_the_context_is_told_how_to_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = {"long<|end|><|assistant|>": PromptTooLong("the context is 9 tokens")}
    client = MockClient(script)
    session, chat = session_of(client, interactive=False)
    session.run(iter(["short", "long", "/undo", "short"]))
    assert "the context is 9 tokens; /undo or /reset makes room" in capsys.readouterr().err
    assert len(chat.turns) == 1
    assert client.n_calls == 3


def test_ctrl_c_ends_a_piped_session() -> None:
    client = MockClient(delay=5.0)
    session, _ = session_of(client, interactive=False)
    with interrupt_when_busy(client), pytest.raises(KeyboardInterrupt):
        session.run(iter(["slow", "never"]))
    assert client.n_calls == 1


def test_an_engine_that_closes_ends_the_session() -> None:
    client = MockClient()
    asyncio.run(client.aclose())
    session, _ = session_of(client, interactive=False)
    with pytest.raises(EngineClosed):
        session.run(iter(["hello"]))


def test_a_person_types_until_ctrl_d_and_ctrl_c_drops_the_line(
    engines: list[MockEngine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["hello", KeyboardInterrupt(), "again", EOFError()])

    def read(prompt: str) -> str:
        found = next(typed)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr("builtins.input", read)
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    app(["chat"], standalone_mode=False)
    assert engines[0].client.n_calls == 2
    assert "/quit or Ctrl-D" in capsys.readouterr().err


def test_the_speed_leaves_the_prompt_out() -> None:
    usage = Usage(prompt_tokens=1200, completion_tokens=11, time_to_first_token=2.0, seconds=4.0)
    turn = Turn(user="u", reply="r", reason="length", usage=usage, history=())
    assert cost(turn) == (
        "prompt 1,200, cached 0, computed 0, drawn 11, 5.0 tok/s, cut off (--max-tokens)"
    )


def test_a_number_that_is_none_is_a_usage_error() -> None:
    assert talk("", "--max-tokens", "many").exit_code == 2
    with pytest.raises(InvalidRequest):
        Sampling(max_tokens=-1)
