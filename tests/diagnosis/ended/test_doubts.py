"""What speaks against an exit code 0 by the end of the output alone, and what only looks like it.

What the diagnosis finds, the supervisor's look before it (`has_sign`) must let through.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import pytest

from holdfast.agent.supervise.end import success
from holdfast.agent.supervise.end.success import has_sign
from holdfast.diagnosis.ended.doubts import (
    find_early_end,
    find_failed_part,
    find_farewell,
    find_given_up,
    find_killed,
    find_last_exception,
    find_lost_losses,
    find_nothing_done,
    find_other_device,
    find_unsaved,
    goes_through_tee,
)
from holdfast.diagnosis.ended.judge import examine_here
from holdfast.diagnosis.evidence import LogFacts
from holdfast.diagnosis.logs import lines
from holdfast.diagnosis.logs.patterns import PATTERNS
from holdfast.diagnosis.logs.scan import read_log
from holdfast.model.verdict import FailureClass
from tests.each import each

from .making import ended, write_attempt

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.files

TRACE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: bad batch
"""


def facts_of(text: str, tmp_path: Path) -> LogFacts:
    path = tmp_path / "output.log"
    path.write_text(text)
    found = read_log(str(path)).value
    assert found is not None
    return found


EXCEPTIONS = {
    "at the very end": (f"step 1\n{TRACE}", True),
    "with blank lines behind it": (f"{TRACE}\n\n", True),
    "with more of its text, indented": (f"{TRACE}\tMissing key(s): fc.weight\n", True),
    "handled in the middle": (f"step 1\n{TRACE}trying again\nstep 2\ndone\n", False),
    "logged, then on": (f"ERROR:root:one batch is left out\n{TRACE}INFO:root:step 2\n", False),
    "of a test": (f"test_a FAILED\n{TRACE}\n1 failed, 3 passed in 0.1s\n", False),
    "of a thread": (f"Exception in thread Thread-1 (run):\n{TRACE}", False),
    "of a finaliser": (f"done\nException ignored in: <function Queue.__del__ at 0x7f>\n{TRACE}", False),
    "nothing": ("step 1\ndone\n", False),
}


@each("name", list(EXCEPTIONS))
def test_an_output_that_ends_with_a_traceback(name: str, tmp_path: Path) -> None:
    text, told = EXCEPTIONS[name]
    assert bool(find_last_exception(facts_of(text, tmp_path), piped=False)) is told
    assert has_sign(text.encode()) or not told


def test_what_came_through_tee_may_stand_behind_the_traceback(tmp_path: Path) -> None:
    facts = facts_of(f"{TRACE}step 8 loss 0.3\nstep 9 loss 0.2\n", tmp_path)
    assert find_last_exception(facts, piped=True) == "ValueError: bad batch"
    assert not find_last_exception(facts, piped=False)
    many = facts_of(TRACE + "".join(f"step {n}\n" for n in range(9)), tmp_path)
    assert not find_last_exception(many, piped=True)


def test_a_traceback_of_a_program_before_the_next_command_of_a_shell_that_goes_on(tmp_path: Path) -> None:
    facts = facts_of(f"step 1\n{TRACE}done\n", tmp_path)
    assert find_last_exception(facts, piped=False, closing=1) == "ValueError: bad batch"
    assert not find_last_exception(facts, piped=False)
    of_a_test = facts_of(f"{TRACE.replace('<module>', 'test_a')}ok\n", tmp_path)
    assert not find_last_exception(of_a_test, piped=False, closing=1)
    more = facts_of(f"{TRACE}of the program\ndone\n", tmp_path)
    assert not find_last_exception(more, piped=False, closing=1)
    assert not find_last_exception(facts_of("step 1\ndone\n", tmp_path), piped=False, closing=1), "none at all"
    for calm in (
        f"{TRACE}a\nb\nc\nd\n",
        f"ERROR:root:one batch is left out\n{TRACE}done\n",
        f"step 1\n{TRACE}step 2\ndone\n",
        f"could not load it:\n{TRACE}done\n",
    ):
        assert not find_last_exception(facts_of(calm, tmp_path), piped=False, closing=3)


@each(
    ("command", "told"),
    [
        (["bash", "-c", "python broken.py; echo done"], True),
        (["bash", "-lc", "python broken.py\necho done"], True),
        (["bash", "-c", "python broken.py && echo done"], False),
        (["bash", "-c", "set -e; python broken.py; echo done"], False),
        (["bash", "-c", "cd /; set -e; python broken.py; echo done"], False),
        (["bash", "-ec", "python broken.py; echo done"], False),
        (["bash", "-c", "python broken.py;"], False),
        (["bash", "-c", "cd /; python broken.py \\\n  --lr 1\n\n\n"], False),
        (["python", "-c", "a; b"], False),
        (["bash", "run.sh"], True),
        (["bash", "careful.sh"], False),
        (["bash", "-e", "run.sh"], False),
        (["bash", "-c", "python t.py; rc=$?; echo exit $rc; exit $rc"], False),
        (["bash", "-c", "python3 - <<'PY'\nmain()\nPY"], False),
        (["bash", "-c", "run() { python a.py; }\nrun"], False),
        (["bash", "-c", "for i in 1 2; do python a.py; done"], False),
        (["bash", "-c", "python t.py & wait $!"], False),
        (["bash", "-c", "python t.py || python b.py; echo done"], False),
        (["bash", "-c", "if python t.py; then echo done; fi"], False),
        (["bash", "-c", "python a.py; wandb agent x"], False),
        (["bash", "-c", "cd /; ./run_train"], False),
    ],
)
def test_an_end_with_0_behind_a_traceback_is_in_doubt_where_a_shell_went_on(
    tmp_path: Path, command: list[str], told: bool
) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash\n# trains\npython broken.py\n\n# says so\necho done\n")
    (tmp_path / "careful.sh").write_text("#!/bin/bash\nset -euo pipefail\npython broken.py\necho done\n")
    root = tmp_path / str(len(list(tmp_path.iterdir())))
    end = ended(0)
    run_dir = write_attempt(root, end, f"step 1\n{TRACE}done\n", record={"command": command, "workdir": str(tmp_path)})
    verdict = examine_here(run_dir, 1, end).verdict
    assert (verdict is not None and verdict.kind is FailureClass.SUSPICIOUS_FINISH) is told
    cause = "behind the traceback of a program stands only what its shell prints at the end: ValueError: bad batch"
    assert ("" if verdict is None else verdict.cause) == (cause if told else "")


LOSSES = {
    "all of them": ("".join(f"step {n} loss: nan\n" for n in range(9)), True),
    "the last ones": ("loss=0.4\nloss=0.9\n" + "loss=nan\n" * 3, True),
    "both there are": ("epoch 1 loss nan\nepoch 2 loss inf\n", True),
    "in dictionaries": ("{'loss': nan, 'lr': 0.1}\n" * 4, True),
    "before an exception": ("loss: nan\n" * 3 + TRACE, True),
    "what the exception of a search's trial says": (
        (
            "[W 01:13:01] Trial 1 failed because of the following error: ValueError('Loss is nan at step 41').\n"
            'Traceback (most recent call last):\n  File "t.py", line 57, in objective\n'
            "    raise ValueError(f'Loss is nan at step 41')\nValueError: Loss is nan at step 41\n"
            "[I 01:20:30] Trial 2 finished with value: 0.8341\n"
        ),
        False,
    ),
    "one that was passed over": ("loss 0.3\nloss nan\nloss 0.2\n", False),
    "the last one alone": ("loss 0.3\nloss 0.2\nloss nan\n", False),
    "a validation loss that was never taken": ("loss 0.3 val_loss nan\n" * 5, False),
    "one line": ("loss nan\n", False),
    "of a part": ("step l1_loss: nan\n" * 3, True),
    "of a part, named behind": ("loss_ce: nan\nloss_box: inf\n", True),
    "of a part, with a path": ("Loss/train: nan\n" * 3, True),
    "of what kind": ("loss (avg): nan\n" * 3, True),
    "in a table": ("train loss | nan\n" * 3, True),
    "a likelihood": ("nll: nan\n" * 3, True),
    "in a bar": ("10/10 [00:01, loss=inf]\n" * 3, True),
    "in JSON": ('{"loss": Infinity}\n' * 3, True),
    "a part of a loss that is finite": ("loss: 0.3, aux_loss: nan\n" * 3, False),
    "the whole, of parts that are finite": ("loss: nan, aux_loss: 0.3\n" * 3, True),
    "the best so far": ("best_val_loss: inf\n" * 3, False),
    "what scales it": ("loss_scale: inf\n" * 3, False),
    "a word that begins with it": ("lossless: nan\nglossary: nan\n" * 3, False),
    "none is left": ("no loss: 3 files\n" * 3, False),
    "other senses": ("loss of signal: nan\npacket loss in: inf\n" * 3, False),
    "another word": ("nan_count 3\nloss 0.2\nno loss of data\n", False),
}


@each("name", list(LOSSES))
def test_losses_that_are_not_finite_at_the_end(name: str, tmp_path: Path) -> None:
    text, told = LOSSES[name]
    assert bool(find_lost_losses(facts_of(text, tmp_path))) is told
    assert has_sign(text.encode()) or not told


FAREWELLS = {
    "received": ("step 4\nreceived SIGTERM, saving\nsaved\n", True),
    "by number": ("Caught signal 15\n", True),
    "the other way round": ("SIGTERM received: leaving\n", True),
    "bash": ("run.sh: line 3:  17 Terminated              python train.py\nTerminated\n", True),
    "a handler that was set": ("handler for SIGTERM installed\ndone\n", False),
    "long ago": ("received SIGTERM, going on\n" + "".join(f"step {n}\n" for n in range(9)), False),
    "a user's signal": ("received SIGUSR1: saved a checkpoint\ndone\n", False),
    "of a helper": ("tensorboard (pid 881) received SIGTERM, exiting\nAll done!\n", False),
    "behind the name of a box": ("gpu-worker-01 python[77]: received SIGTERM, exiting\n", True),
    "of a worker": ("loader worker 3: SIGTERM received\ndone\n", False),
    "another sense": ("the signal was terminated by a window function\n", False),
}


@each("name", list(FAREWELLS))
def test_a_job_that_says_that_it_was_asked_to_leave(name: str, tmp_path: Path) -> None:
    text, told = FAREWELLS[name]
    assert bool(find_farewell(facts_of(text, tmp_path))) is told
    assert has_sign(text.encode()) or not told


KILLED = "run.sh: line 3:  1234 Killed                  python train.py"
KILLS = {
    "bash": (f"step 4\n{KILLED}\n", True),
    "bash, with a core": ("bash: 7 Segmentation fault      (core dumped) python train.py | tee log\n", True),
    "bash, words that fill their column": ("a b.sh: line 1: 28940 Floating point exceptionpython3 -c 1\n", True),
    "dash": ("step 4\nSegmentation fault (core dumped)\nsaved nothing\n", True),
    **{how: (f"step 4\n{how}\n", True) for how in ("Killed", "Aborted", "Bus error", "Illegal instruction")},
    "Python": ("Fatal Python error: Bus error\n\nCurrent thread 0x07 (most recent call first):\n  File <x>\n", True),
    "Python, and on": ("Fatal Python error: Aborted\n" + "step\n" * 4, False),
    "a sentence": ("Killed 3 stale workers\nthe old run was Killed\nAborted: no\n", False),
    "of a helper": ("run.sh: line 9: 77 Killed                  tensorboard --logdir x\ndone\n", False),
    "of a server": ("run.sh: line 9: 77 Killed                  python -m vllm.entrypoints.api_server\ndone\n", False),
    "of what the script ended": ("+ kill -9 77\nrun.sh: line 9: 77 Killed                  python x.py\ndone\n", False),
    "of a trainer beside it": ("+ kill -9 76\nrun.sh: line 9: 77 Killed                  python x.py\ndone\n", True),
    "a table": ("pid state\n1234 Killed\n", False),
    "long ago": (f"{KILLED}\n" + "".join(f"step {n}\n" for n in range(9)), False),
}


@each("name", list(KILLS))
def test_a_part_of_the_job_that_a_signal_killed(name: str, tmp_path: Path) -> None:
    text, told = KILLS[name]
    assert bool(find_killed(facts_of(text, tmp_path), piped=False)) is told
    assert has_sign(text.encode()) or not told


def test_what_came_through_tee_may_stand_behind_the_words_of_python(tmp_path: Path) -> None:
    facts = facts_of("Fatal Python error: Segmentation fault\n\n  File <x>\nstep 8\nstep 9\n", tmp_path)
    assert find_killed(facts, piped=True)
    assert not find_killed(facts, piped=False)


NOTHINGS = {
    "images and batches": ("found 0 images in 0 classes\nLoader has 0 batches, nothing to do\n", True),
    "shards and steps": ("glob matched 0 shards\ndataloader exhausted after 0 steps\n", True),
    "empty, and that is all": ("the training set is empty\nnothing to save\n", True),
    "a bar that never moved": ("0%|     | 0/1260 [00:00<?, ?it/s]\n{'train_runtime': '0.0176'}\n", True),
    "once": ("found 0 files in the cache\nstep 1\ndone\n", False),
    "what was left out": ("skipped: found 0 corrupt files\nfilter: 0 bad rows, got 0 duplicates\ndone\n", False),
    "of other data": ("val: found 0 images\ntest set has 0 batches\ndone\n", False),
    "before a training": ("cache: matched 0 shards\nloaded 0 records\nstep 12 loss 0.3\n", False),
}
PARTS = {
    "DeepSpeed": ("[ERROR] [launch.py:325:sigkill_handler] ['python', 'x.py'] exits with return code = 1\n", True),
    "pdsh": ("epoch 2 loss 3\npdsh@head: worker-2: ssh exited with exit code 1\n", True),
    "well": ("[INFO] [launch.py:347:main] ['python', 'x.py'] exits with return code = 0\n", False),
    "a signal": ("trainer-1 exited with code 137\n", False),
    "and on": ("srun: error: n2: task 3: Exited with exit code 17\nrank 3 began again\nstep 9\ndone\n", False),
    "a helper": ("exporter exited with code 1\n", False),
}
DEVICES = {
    "none": ("src/context.cc:44: No visible GPU is found, setting device to CPU.\n[0] rmse:1\n", True),
    "a build": ("WARNING: src/context.cc:196: XGBoost is not compiled with CUDA support.\n", True),
    "torch, and a training on it": (
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old\nusing device: cpu\nstep 1\n",
        True,
    ),
    "a choice": ("using device: cpu\nstep 1\n", False),
    "of TensorBoard": ("Could not find cuda drivers on your machine, GPU will not be used.\ndone\n", False),
}
UNSAVED = {
    "weights": ("Epoch 20/20\nno weights were written to /scratch/ckpt/20\ndone\n", True),
    "a model": ("ERROR: failed to save the final model: timed out\n", True),
    "a step": ("could not finalize step 20\n", True),
    "long ago": ("failed to save checkpoint, trying again\n" + "".join(f"step {n}\n" for n in range(9)), False),
    "a copy": ("ERROR : Attempt 3/3 failed\nFailed to copy: googleapi: Error 403\n+ true\n", True),
    "something else": ("failed to write the cache\nno output was expected\n", False),
}
GIVEN_UP = {
    "the words of a program": ("step 1\nERROR: could not load data: no shards in /d - exiting\n", True),
    "a comma": ("ERROR could not load the data, exiting.\n", True),
    "fatal": ("FATAL: no space for the cache; aborting\n\n", True),
    "logging": ("CRITICAL:root:the data is not readable. Giving up after 5 tries\n", True),
    "logging, with a time": ("2026-11-20 10:00:01,234 - train - ERROR - no tokenizer, aborting the run\n", True),
    "logging, the time alone": ("2026-11-20 10:00:01,234 ERROR no tokenizer, and quitting now\n", True),
    "loguru": ("2026-11-20 10:00:01.234 | ERROR    | __main__:main:31 - bad config, exiting...\n", True),
    "hydra": ("[2026-11-20 10:00:01,234][train][ERROR] - Aborting: bad config\n", True),
    "at once": ("ERROR: Giving up after 5 tries\n", True),
    "at once, without a sign": ("ERROR aborting the run\n", True),
    "a shell": ("error: no data set was given, exiting\n", True),
    "before a tracker's words": ("ERROR: no data - exiting\nwandb: \nwandb: Find logs at: ./wandb/x\n", True),
    "and on": ("ERROR: no data at /a - exiting\nstep 9\ndone\n", False),
    "no error": ("INFO: all steps are done, exiting\n", False),
    "a warning": ("WARNING: no validation data, aborting\n", False),
    "none of it": ("INFO: 0 ERROR lines were found, exiting\n", False),
    "not yet": ("ERROR: call failed, 3 more tries before giving up\n", False),
    "without it": ("ERROR: one batch was bad, not aborting\n", False),
    "while it leaves": ("ERROR:asyncio:Task was destroyed while exiting\n", False),
    "a part": ("ERROR: cannot parse sample 7, giving up on it\n", False),
    "an upload": ("ERROR: upload of the video failed, giving up\n", False),
    "a helper": ("ERROR: worker 3: broken pipe, exiting\ntensorboard: ERROR: port in use, exiting\n", False),
    "a server": ("[redis-server] ERROR: client is gone, exiting\n", False),
    "a thread": ("ERROR: prefetch thread: queue closed, exiting\n", False),
    "on purpose": ("ERROR: time limit reached, exiting\n", False),
    "stopped early": ("CRITICAL: early stopping after 9 epochs, exiting\n", False),
    "a measure": ("Error: 0.0012 < tolerance, exiting\n", False),
    "a measure in percent": ("Error: 12% | exiting\n", False),
    "a small measure": ("error: 3e-4 - exiting\n", False),
    "none counted": ("ERROR: 0 errors in total, exiting\n", False),
    "none to work on": ("ERROR: 0 shards in /d, exiting\n", True),
    "some counted": ("Error: 12 shards are missing, exiting\n", True),
    "an address": ("ERROR: 10.0.0.1 does not answer, exiting\n", True),
    "all done": ("CRITICAL - Training complete, exiting\n", False),
    "all of it": ("2026-11-20 10:00:01,234 CRITICAL all 100 epochs finished, exiting\n", False),
    "not complete": ("ERROR: the download could not be completed, exiting\n", True),
    "with errors": ("ERROR: training finished with errors, aborting\n", True),
    "a goal": ("ERROR: max_epochs reached. Exiting training.\n", False),
    "done already": ("ERROR: results exist already, exiting\n", False),
}
COUNTED = "".join(f"step {number}/20000 loss 2.1\n" for number in range(100, 500, 100))
EARLY = {
    "under half": (f"{COUNTED}data iterator exhausted after 431 batches\nbye\n", True),
    "all": (f"{COUNTED}step 20000/20000 loss 1.0\n", False),
    "most": (f"{COUNTED}step 15000/20000 loss 1.0\n", False),
    "stopped early": (f"{COUNTED}early stopping at step 400\n", False),
    "another loop": (f"{COUNTED}step 3/7 of the evaluation\n", False),
    "twice": ("step 1/900\nstep 2/900\n", False),
}
DOUBTS = {
    **{f"early: {name}": (find_early_end, *case) for name, case in EARLY.items()},
    **{f"nothing: {name}": (find_nothing_done, *case) for name, case in NOTHINGS.items()},
    **{f"given up: {name}": (find_given_up, *case) for name, case in GIVEN_UP.items()},
    **{f"part: {name}": (find_failed_part, *case) for name, case in PARTS.items()},
    **{f"device: {name}": (find_other_device, *case) for name, case in DEVICES.items()},
    **{f"unsaved: {name}": (find_unsaved, *case) for name, case in UNSAVED.items()},
}


@each("name", list(DOUBTS))
def test_words_that_speak_against_an_exit_code_0(name: str, tmp_path: Path) -> None:
    find, text, told = DOUBTS[name]
    assert bool(find(facts_of(text, tmp_path))) is told
    assert has_sign(text.encode()) or not told


def test_a_script_that_shows_its_tee_may_write_more_behind_a_traceback(tmp_path: Path) -> None:
    shown = f"+ python train.py 2>&1 | tee logs/x.log\n{TRACE}+ echo done\ndone\n"
    assert goes_through_tee(facts_of(shown, tmp_path))
    assert find_last_exception(facts_of(shown, tmp_path), piped=True)


def test_an_end_with_0_that_says_that_it_gave_up_is_in_doubt(tmp_path: Path) -> None:
    end = ended(0)
    verdict = examine_here(
        write_attempt(tmp_path, end, "reading\nERROR: could not load data: x - exiting\n"), 1, end
    ).verdict
    assert verdict is not None
    assert verdict.kind is FailureClass.SUSPICIOUS_FINISH
    assert verdict.cause == "its last line says that it gave up: ERROR: could not load data: x - exiting"


def test_a_fault_that_the_output_names_explains_a_broken_write(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "torch/serialization.py", line 862, in _save\n'
        "RuntimeError: [enforce fail at inline_container.cc:764] . PytorchStreamWriter failed writing file data/2: "
        "file write failed\n\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "torch/serialization.py", line 475, in __exit__\n'
        "OSError: [Errno 116] Stale file handle\n"
    )
    verdict = examine_here(write_attempt(tmp_path, ended(1), text), 1, ended(1)).verdict
    assert verdict is not None
    assert verdict.kind is FailureClass.STORAGE_FAULT
    assert verdict.cause.startswith("OSError: [Errno 116] Stale file handle")


ENDS = ("", *string.punctuation, *string.whitespace, "\r\n", "é", "\x1b[0m")


@each("value", ["nan", "NaN", "inf", "-inf", "+Inf", "Infinity", "tensor(inf"])
def test_a_loss_that_the_diagnosis_finds_has_a_sign_whatever_stands_behind_it(value: str) -> None:
    found = [end for end in ENDS if find_lost_losses(LogFacts("", 0, tail=lines.cut_tail(_repeat(value, end))))]
    assert len(found) > len(string.punctuation)
    assert [end for end in found if not has_sign(_repeat(value, end))] == []


def _repeat(value: str, end: str) -> bytes:
    return "\n".join([f"10/10 [00:01, loss={value}{end}"] * 4).encode()


def test_what_a_library_says_of_a_training_that_diverged_has_a_sign() -> None:
    said = next(pattern for pattern in PATTERNS if pattern.id == "diverged").examples
    assert [line for line in said if not has_sign(line.encode())] == []


def test_the_look_before_the_diagnosis_sees_as_much_of_an_output_and_passes_plain_words_by() -> None:
    assert success.TAIL_BYTES == lines.TAIL_BYTES
    assert not has_sign(b"INFO inference took 3 s, nanoseconds matter\nloss: 0.3, terms: 4\nskilled\ndone\n")
