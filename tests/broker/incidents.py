"""A page of docs/operations/incidents as a person follows it at night, and the account afterwards.

A page has three parts: `## First command`, `## Cure`, `## Right again`. In each of them a block `sh` is typed
as it stands, line by line, and a block `text` is what the last of these lines says, trimmed: `…` stands for
anything. A first part without `sh` shows the worker's log. Where a line says CASE or ID, the reader copies
what an earlier command has printed. A test calls keys as the pages do; brokers, group and source are its own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.broker.kafka import REPOSITORY
from tests.broker.operating import CANARY, Desk, typed
from tests.cli.command import Said
from tests.waiting import eventually

PAGES = REPOSITORY / "docs" / "operations" / "incidents"
FIRST: Final = "First command"
CURE: Final = "Cure"
AGAIN: Final = "Right again"
MAX_CURE: Final = 3
MAX_LOOKS: Final = 5
KEY: Final = "customer-17"
"""The key that the pages are about."""

OPENING: Final = (
    "laneway lanes list -b localhost:9092 -g reminders",
    "laneway offsets show -b localhost:9092 -g reminders",
    "laneway review list -b localhost:9092 -g reminders",
    "laneway dlq list -b localhost:9092 -g reminders",
)
"""What anyone types first, knowing nothing."""

_CHANGES: Final = frozenset({"resolve", "replay", "reset", "rerun", "pause", "resume"})
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_CASE = re.compile(r"\b[a-z]+(?:-[a-z]+)*-[0-9a-f]{12}\b")
_LETTER = re.compile(r"\S+\.dlq/\d+@\d+")
_LEADS_ON = re.compile(
    r"laneway (?:(?:lanes explain|review show|dlq show|ledger lookup) \S+|\w+ (?:list|show))[^`;\n]*"
)
_VARIES: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?"), "TIME"),
    (re.compile(r"\b(?:\d+(?:ms|[smhd]))+\b"), "AGE"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "HEX"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Step:
    """A line to type, "" for the worker's log; and what the page says that it says."""

    line: str
    says: tuple[str, ...] = ()


def page(name: str) -> Mapping[str, Sequence[Step]]:
    """The parts of a page, as steps."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    _, *parts = _SECTION.split(text)
    found: dict[str, Sequence[Step]] = {}
    for title, part in zip(parts[::2], parts[1::2], strict=True):
        steps: list[Step] = []
        for kind, block in _BLOCK.findall(part):
            lines = [line.strip() for line in block.splitlines() if line.strip()]
            if kind == "sh":
                steps += [Step(line) for line in lines]
            else:
                line = steps.pop().line if steps else ""
                steps.append(Step(line, tuple(lines)))
        found[title] = steps
    assert list(found) == [FIRST, CURE, AGAIN], f"the parts of {name}: {list(found)}"
    assert len(found[FIRST]) == 1, f"{name}: more than one first command"
    assert len(found[CURE]) <= MAX_CURE, f"{name}: more than {MAX_CURE} commands"
    assert found[FIRST][0].says, f"{name} does not show what the first command says"
    assert all(step.says for step in found[AGAIN]), f"{name} does not show what is right again"
    assert found[AGAIN], f"{name} does not show that it is right again"
    return found


@dataclass
class Night:
    """A reader of a page: who types, and copies what was said."""

    at: Desk
    name: str
    said: str = ""
    steps: Mapping[str, Sequence[Step]] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = page(self.name)

    def first(self) -> str:
        """Type the first command until it says what the page shows; what it said."""
        return self._until(self.steps[FIRST][0])

    def cure(self, reads: Callable[[str], None] = lambda text: None) -> None:
        """Type each line of the cure once: it works, and says what the page shows.

        Args:
            reads: gets what each line said, and does what the page says between two of them.
        """
        for step in self.steps[CURE]:
            said = self._type(step.line)
            assert said.code == 0, (step.line, said)
            absent = missing(step.says, self.shown(said, payload="--show-payload" in step.line))
            assert absent is None, (step.line, absent, said)
            reads(said.out)

    def again(self) -> None:
        """Look until it is right again, as the page shows it."""
        for step in self.steps[AGAIN]:
            self._until(step)

    def shown(self, said: Said, *, payload: bool = False) -> str:
        """What a command wrote, with the names of the pages; of payloads nothing, unless it was asked for."""
        text = said.out + said.err
        assert payload or CANARY not in text
        for own, of_page in (
            (self.at.cluster.bootstrap, "localhost:9092"),
            (self.at.names.source, "invoices"),
            (self.at.names.group, "reminders"),
        ):
            text = text.replace(own, of_page)
        return text

    def _until(self, step: Step) -> str:
        """A person looks once more before it is called wrong."""

        def same() -> str:
            text = self.shown(self._type(step.line))
            absent = missing(step.says, text)
            assert absent is None, f"no line {absent!r} in\n{text}"
            return text or "\n"

        words = f"what {self.name} shows of {step.line or 'the log'}"
        return eventually(same, 30, f"{words}\n{self.at.worker.stderr()[-2000:]}", poll_s=0.2)

    def _type(self, line: str) -> Said:
        said = typed(*self.words(line)) if line else Said(0, self.at.worker.stderr(), "")
        self.said += said.out + said.err
        return said

    def words(self, line: str) -> list[str]:
        """A line of a page as it is typed in this test; a question is answered with yes."""
        own = {"localhost:9092": self.at.cluster.bootstrap, "reminders": self.at.names.group}
        command, *words = shlex.split(line)
        assert command == "laneway", line
        if "CASE" in words:
            own["CASE"] = _copied(_CASE, self.said)
        if "ID" in words:
            own["ID"] = _copied(_LETTER, self.said)
        yes = ["-y"] if _CHANGES & set(words[:2]) else []
        return [*(own.get(word, word) for word in words), *yes]


def leads_to(night: Night, cause: str, opening: Sequence[str] = OPENING) -> None:
    """Whatever is typed first tells the cause, or names the command that does, or one that names it.

    A worker tells once a second how it stands, and a partition may move: who sees nothing looks once more.

    Args:
        cause: a pattern of the words that tell it.
    """

    def led() -> bool:
        _lead(night, cause, opening)
        return True

    eventually(led, 30, f"the way to the cause\n{night.at.worker.stderr()[-2000:]}", poll_s=0.2)


def _lead(night: Night, cause: str, opening: Sequence[str]) -> None:
    said: dict[str, str] = {}
    for line in opening:
        heard: list[str] = []
        seen: set[str] = set()
        further = {line}
        while further and len(seen) < MAX_LOOKS and not any(re.search(cause, text) for text in heard):
            seen |= further
            for each in sorted(further - said.keys()):
                said[each] = night.shown(typed(*night.words(each)))
            news = [said[each] for each in further]
            heard += news
            further = {each.strip() for text in news for each in _LEADS_ON.findall(text)} - seen
        assert any(re.search(cause, text) for text in heard), (
            f"{line} does not lead to {cause!r}:\n" + "\n".join(heard)
        )


def accounted(at: Desk, key: str, ran: Sequence[str], dropped: Mapping[int, str] | None = None) -> None:
    """Every record of a key has its one end: it ran once, in order, or a person has said why it does not.

    Args:
        ran: effects that happened, in order; each of them once.
        dropped: sequences that did not run, and the action that closed the case of each.
    """
    at.settled()
    assert [line.split()[1] for line in at.runs(key) if line.startswith("ran ")] == list(ran)
    assert len(set(ran)) == len(ran)
    said = at.laneway("lanes", "explain", key, "--recent", "1000", "-o", "json")
    assert said.code == 0, said
    [row] = said.items
    assert (row["state"], row["parked"], row["case"], row["other_cases"]) == (["free"], 0, None, []), row
    cases = at.cases(key, open_only=False)
    assert all(case["state"] == "resolved" for case in cases), cases
    # Who did it, and why: of each case that a person has closed.
    assert all(case["resolved_by"] and case["said"] for case in cases if case["command"]), cases
    closed = {case["sequence"]: case["resolution"] for case in cases}
    dropped = dropped or {}
    assert {sequence: closed.get(sequence) for sequence in dropped} == dropped
    known = json.loads(said.out)["recent"]
    assert {each["effect_key"] for each in known if each["state"] == "succeeded"} == set(ran), known
    assert {each["sequence"] for each in known if each["state"] != "succeeded"} <= set(dropped), known


def missing(says: Sequence[str], text: str) -> str | None:
    """The first line of a page that is not among those that were said, in this order."""
    lines = iter([_plain(line) for line in text.splitlines()])
    for line in says:
        pattern = re.compile(".*".join(re.escape(part) for part in _plain(line).split("…")))
        if not any(pattern.fullmatch(each) for each in lines):
            return line
    return None


def _plain(text: str) -> str:
    """Without what differs from night to night."""
    for varies, name in _VARIES:
        text = varies.sub(name, text)
    return text.strip()


def _copied(what: re.Pattern[str], said: str) -> str:
    found = what.findall(said)
    assert found, f"nothing to copy was said:\n{said}"
    return str(found[-1])
