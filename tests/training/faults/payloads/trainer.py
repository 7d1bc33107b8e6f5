"""A trainer whose state says of which step it is, in every number.

`trainer.py DIRECTORY NUMBERS loop|ask [OPTION...]`: with `loop` it saves after every step until killed; with
`ask` it does what the lines of its input say: `save`, `wait`, `fork`, `quit`. It prints JSON lines. Option: `mirror=M`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from array import array
from typing import Any

from holdfast import training
from tests.waiting import wait_until


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Trainer:
    def __init__(self, run: Any, numbers: int) -> None:
        self.run = run
        self.state: dict[str, Any] = {
            "w": array("d", [0.0]) * numbers,
            "m": array("f", [0.0]) * numbers,
            "step": 0,
            "deep": [{"step": 0}],
        }
        self.first = {"x": array("q", [0]) * 100}
        run.track(first=self.first, second=self.state)

    def fill(self, step: int) -> None:
        self.state["w"][:] = array("d", [float(step)]) * len(self.state["w"])
        self.state["m"][:] = array("f", [float(step)]) * len(self.state["m"])
        self.first["x"][:] = array("q", [step]) * 100
        self.state["step"] = self.state["deep"][0]["step"] = step

    def whose(self) -> list[float]:
        plain = {self.state["step"], self.state["deep"][0]["step"]}
        return sorted(plain.union(*map(distinct, (self.state["w"], self.state["m"], self.first["x"]))))

    def save(self) -> Any:
        step = self.run.step + 1
        self.fill(step)
        self.run.beat(step)
        durable = self.run.last_durable
        say(saving=step, durable=durable and durable[0])
        save = self.run.save()
        # What is saved must be the copy: the state changes at once.
        self.fill(-1)
        self.state["step"] = self.state["deep"][0]["step"] = -1
        return save


def distinct(numbers: array[Any]) -> set[float]:
    """The different values; quickly when there is one."""
    same = array(numbers.typecode, [numbers[0]]) * len(numbers)
    return {numbers[0]} if numbers.tobytes() == same.tobytes() else set(numbers)


def find_writer() -> int | None:
    """The child that is the library's writer."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        for pid in file.read().split():
            with open(f"/proc/{pid}/cmdline", "rb") as command:
                if b"holdfast.training.storage.write.writer" in command.read():
                    return int(pid)
    return None


def fork_child() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    say(child=pid)


def main() -> None:
    directory, numbers, mode, *options = sys.argv[1:]
    settings = dict(option.split("=", 1) for option in options)
    with training.run(directory, every=None, keep_last=2, **settings) as run:  # type: ignore[arg-type]
        trainer = Trainer(run, int(numbers))
        say(resumed=run.resume(), whose=trainer.whose())
        while mode == "loop":
            trainer.save()
        save = None
        for line in sys.stdin:
            if line == "save\n":
                save = trainer.save()
                # Its command line shows a moment after it was started.
                say(writer=wait_until(find_writer))
            elif line == "wait\n":
                try:
                    say(path=save and save.result())
                except training.SaveFailed as error:
                    say(failed=str(error))
            elif line == "fork\n":
                fork_child()
            else:
                break


main()
