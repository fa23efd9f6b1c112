"""From what was seen to a kind, a first failure and a sentence."""

import signal
import time
from typing import Any

import pytest

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.sentences import say
from orchestrator.supervisor.protocol.orders import STOP_REASONS
from orchestrator.supervisor.verdict.ending import Ending, rank_rows
from orchestrator.supervisor.verdict.rank_reports import RankError
from orchestrator.supervisor.verdict.rules import KIND_OF_STOP, classify, first_failure

HANG = fact(Ended.HUNG, timeout_s=60.0, silent_s=[61.0, 62.0])
KILL, TERM, ABRT, SEGV = -signal.SIGKILL, -signal.SIGTERM, -signal.SIGABRT, -signal.SIGSEGV
VALUE_ERROR = RankError("ValueError", "no such split", 20)
CUDA_OOM = RankError("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", 10)
PEER = RankError("DistBackendError", "[Rank 0] NCCL error: remote process exited", 5)
GLOO_PEER = RankError(
    "RuntimeError", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3", 5
)

CASES: list[tuple[str, Ending, str, int | None]] = [
    ("finished", Ending(1, top=0, finished={0: 0}), "ok", None),
    ("f24: exit code 0 without a marker", Ending(1, top=0), "ok", None),
    ("finished, then torch aborts", Ending(1, top=ABRT, finished={0: 0}), "ok", None),
    ("all finished, one aborts", Ending(2, top=1, finished={0: 0, 1: 0}, codes={1: ABRT, 0: 0}), "ok", None),
    ("one finished, the other aborts", Ending(2, top=1, finished={0: 0}, codes={1: ABRT}), "signal", 1),
    ("exception", Ending(1, top=1, errors={0: VALUE_ERROR}), "user_error", 0),
    (
        "f50: no room for what it wrote",
        Ending(1, top=1, errors={0: RankError("OSError", "[Errno 28] No space left on device", 1)}),
        "infra",
        0,
    ),
    ("f50: no room even for its error", Ending(1, top=1, disk_full=True), "infra", 0),
    (
        "sys.exit with a text",
        Ending(1, top=1, finished={0: 1}, errors={0: RankError("SystemExit", "no folder ./data", 9)}),
        "user_error",
        0,
    ),
    (
        "wrong options",
        Ending(
            1,
            top=2,
            finished={0: 2},
            tails={0: "usage: train.py --data D\ntrain.py: error: --data is missing\n"},
        ),
        "user_error",
        0,
    ),
    ("exit code", Ending(1, top=3, finished={0: 3}), "user_error", 0),
    ("exit code of a rank", Ending(2, top=1, finished={1: 3}, codes={1: 3, 0: TERM}), "user_error", 1),
    (
        "f20: the training library ended a rank that hung",
        Ending(
            2,
            top=1,
            errors={1: RankError("RankHangs", "Rank 1 has made no progress for 61 s.", 9), 0: GLOO_PEER},
            codes={1: KILL, 0: 1},
        ),
        "hang",
        1,
    ),
    ("gpu memory", Ending(1, top=1, errors={0: CUDA_OOM}), "oom_gpu", 0),
    (
        "f74: the earliest exception counts",
        Ending(2, top=1, errors={0: VALUE_ERROR, 1: CUDA_OOM}),
        "oom_gpu",
        1,
    ),
    (
        "f74: the training library ended a step that cannot be repeated",
        Ending(
            2,
            top=1,
            errors={0: GLOO_PEER, 1: RankError("OutOfMemoryInStep", "CUDA out of memory in step 3.", 9)},
        ),
        "oom_gpu",
        1,
    ),
    ("memory error", Ending(1, top=1, errors={0: RankError("MemoryError", "", 1)}), "oom_cpu", 0),
    (
        "torch's allocator on the host",
        Ending(
            1, top=1, errors={0: RankError("RuntimeError", "DefaultCPUAllocator: can't allocate memory", 1)}
        ),
        "oom_cpu",
        0,
    ),
    (
        "a fault of the gpu",
        Ending(
            1,
            top=1,
            errors={0: RankError("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", 1)},
        ),
        "gpu_fault",
        0,
    ),
    (
        "abort with the reason in the log",
        Ending(1, top=ABRT, tails={0: "c10::Error CUDA out of memory."}),
        "oom_gpu",
        0,
    ),
    ("f17: killed from outside", Ending(1, top=KILL), "signal", 0),
    ("f75: killed by the kernel", Ending(1, top=KILL, oom_killed=True), "oom_cpu", 0),
    ("f22: crash", Ending(1, top=SEGV), "signal", 0),
    ("f17: torchrun's -15 is not the cause", Ending(2, top=1, codes={1: TERM, 0: KILL}), "signal", 0),
    (
        "f17: peers raise because one was killed",
        Ending(2, top=1, errors={0: PEER}, codes={0: 1, 1: KILL}),
        "signal",
        1,
    ),
    ("f17: the same with gloo", Ending(2, top=1, errors={0: GLOO_PEER}, codes={0: 1, 1: KILL}), "signal", 1),
    (
        "a real error beats a later kill",
        Ending(2, top=1, errors={0: VALUE_ERROR}, codes={0: 1, 1: KILL}),
        "user_error",
        0,
    ),
    ("a lost peer alone", Ending(2, top=1, errors={0: PEER}, codes={0: 1, 1: TERM}), "user_error", 0),
    (
        "the peer's words come earlier than the error itself",
        Ending(2, top=1, errors={0: GLOO_PEER, 1: VALUE_ERROR}, codes={0: 1, 1: 1}),
        "user_error",
        1,
    ),
    ("sigterm from somebody else", Ending(1, top=TERM), "signal", 0),
    ("f16: torchrun killed", Ending(2, top=KILL, torchrun=True), "signal", None),
    (
        "torchrun fails before any rank",
        Ending(2, top=1, started_ranks=0, launcher_tail="No module named torch"),
        "infra",
        None,
    ),
    (
        "bubblewrap fails",
        Ending(1, top=1, started_ranks=0, launcher_tail="bwrap: no such file\n"),
        "infra",
        None,
    ),
    ("nothing known", Ending(2), "infra", None),
    ("ours", Ending(1, top=0, finished={0: 0}, infra="The disk is full."), "infra", None),
    (
        "memory limit",
        Ending(1, top=KILL, over_memory=fact(Ended.OVER_MEMORY, used_bytes=2 << 30, limit_bytes=1 << 30)),
        "oom_cpu",
        None,
    ),
    ("f20: hang", Ending(2, top=KILL, hang=HANG), "hang", None),
    ("f25: killed after the grace", Ending(1, top=KILL, stop_reason="cancel"), "cancelled", None),
    ("default action of the stop", Ending(1, top=TERM, stop_reason="preempt"), "preempted", None),
    (
        "saved and returned",
        Ending(1, top=0, finished={0: 0}, stop_reason="preempt", stop_heard=True),
        "preempted",
        None,
    ),
    ("f88: finished, deaf to the stop", Ending(1, top=0, finished={0: 0}, stop_reason="cancel"), "ok", None),
    ("f88: finished, then killed", Ending(1, top=KILL, finished={0: 0}, stop_reason="cancel"), "ok", None),
    ("f88: one of two finished", Ending(2, top=1, finished={0: 0}, stop_reason="cancel"), "cancelled", None),
    (
        "raised while stopping",
        Ending(1, top=1, errors={0: VALUE_ERROR}, stop_reason="cancel"),
        "cancelled",
        None,
    ),
    ("stopped before the start", Ending(1, stop_reason="timeout", started_ranks=0), "timeout", None),
]


@pytest.mark.parametrize(
    ("ending", "kind", "first_rank"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_ending_has_its_kind(ending: Ending, kind: str, first_rank: int | None) -> None:
    verdict = classify(ending)

    assert (verdict.kind, verdict.first_rank) == (kind, first_rank)
    assert say(verdict.how).endswith(".")


def test_a_preemption_by_hand_does_not_tell_of_a_job_that_goes_first() -> None:
    detail = say(classify(Ending(1, top=TERM, stop_reason="preempt")).how)

    assert detail == "Stopped before its end; it is queued again and will be resumed."


def test_every_reason_for_a_stop_has_a_kind_and_a_sentence() -> None:
    assert set(KIND_OF_STOP) == set(STOP_REASONS)
    for reason, kind in KIND_OF_STOP.items():
        verdict = classify(Ending(1, top=TERM, stop_reason=reason))
        assert verdict.kind == kind
        assert say(verdict.how).startswith(("Stopped", "Cancelled"))


@pytest.mark.code("F23")
def test_a_rank_that_left_while_the_others_waited_is_named() -> None:
    verdict = classify(Ending(3, top=KILL, hang=HANG, finished={1: 0}))
    all_there = classify(Ending(3, top=KILL, hang=HANG))

    assert (verdict.kind, say(verdict.how)) == ("hang", f"{say(HANG)} Rank 1 had left before the others.")
    assert all_there.how == HANG


def test_an_abort_after_the_end_is_noted() -> None:
    assert "SIGABRT" in say(classify(Ending(1, top=ABRT, finished={0: 0})).how)


def test_only_the_first_line_of_a_long_message_is_in_the_sentence() -> None:
    verdict = classify(Ending(1, top=1, errors={0: RankError("KeyError", "'a'\n" + "b" * 5000, 1)}))

    assert say(verdict.how) == "The script raised KeyError: 'a' on rank 0."


SPAWNED = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/x/torch/multiprocessing/spawn.py", line 95, in _wrap
    fn(i, *args)
  File "/x/work/train.py", line 3, in f
    raise ValueError("no such split")
ValueError: no such split
"""
OF_A_WORKER = "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File \"x\"\nKeyError: 'label'\n"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            RankError("ProcessRaisedException", SPAWNED, 1),
            "The script raised ValueError: no such split (ProcessRaisedException) on rank 0.",
        ),
        (RankError("KeyError", OF_A_WORKER, 1), "The script raised KeyError: 'label' on rank 0."),
        (
            RankError("ProcessRaisedException", f"{SPAWNED}hint: check config\n", 1),
            "The script raised ValueError: no such split (ProcessRaisedException) on rank 0.",
        ),
        (
            RankError("EOFError", "EOF when reading a line", 1),
            "The script raised EOFError: EOF when reading a line on rank 0. "
            "A job has no keyboard: give what the script asks for as an argument.",
        ),
        (
            RankError("EOFError", "Ran out of input", 1),
            "The script raised EOFError: Ran out of input on rank 0.",
        ),
    ],
)
def test_what_another_process_raised_is_said_with_its_own_words(error, sentence) -> None:
    verdict = classify(Ending(1, top=1, errors={0: error}))

    assert (verdict.kind, say(verdict.how)) == ("user_error", sentence)


@pytest.mark.parametrize(
    "error",
    [
        RankError("ProcessExitedException", "process 1 terminated with signal SIGKILL", 1),
        RankError("RuntimeError", "DataLoader worker (pid 12) is killed by signal: Killed. ", 1),
        RankError(
            "RuntimeError",
            "DataLoader worker (pid(s) 12) exited unexpectedly",
            1,
            "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. \n\nThe above exception was the direct cause",
        ),
    ],
)
def test_a_killed_process_of_a_rank_is_no_error_of_the_script(error) -> None:
    killed = classify(Ending(1, top=1, errors={0: error}))
    out_of_memory = classify(Ending(1, top=1, errors={0: error}, oom_killed=True))

    assert (killed.kind, say(killed.how)) == (
        "signal",
        "A process of rank 0 was killed by SIGKILL from outside of Berth.",
    )
    assert (out_of_memory.kind, say(out_of_memory.how)) == (
        "oom_cpu",
        "The kernel killed a process of rank 0 because the machine was out of main memory.",
    )


TAIL_OF_A_STAGE = """== fit
Traceback (most recent call last):
  File "/x/work/fit.py", line 2, in <module>
    raise ValueError("bad shape")
ValueError: bad shape
Traceback (most recent call last):
  File "/x/work/stages.py", line 4, in <module>
    subprocess.run([sys.executable, s], check=True)
subprocess.CalledProcessError: Command '['python', 'fit.py']' returned non-zero exit status 1.
"""


@pytest.mark.parametrize(
    ("message", "tail", "kind", "sentence"),
    [
        (
            "Command '['python', 'fit.py']' returned non-zero exit status 1.",
            TAIL_OF_A_STAGE,
            "user_error",
            "The script raised ValueError: bad shape (CalledProcessError) on rank 0.",
        ),
        (
            "Command '['./tool']' returned non-zero exit status 2.",
            "tool: no such file\n",
            "user_error",
            "The script raised CalledProcessError: Command '['./tool']' returned non-zero exit status 2 on rank 0.",
        ),
        (
            "Command '['python', 'fit.py']' died with <Signals.SIGKILL: 9>.",
            "step 5\n",
            "signal",
            "A process of rank 0 was killed by SIGKILL from outside of Berth.",
        ),
    ],
)
def test_a_program_that_a_script_started_tells_why_the_script_failed(message, tail, kind, sentence) -> None:
    error = RankError("CalledProcessError", message, 1)
    verdict = classify(Ending(1, top=1, errors={0: error}, tails={0: tail}))

    assert (verdict.kind, say(verdict.how)) == (kind, sentence)


OF_THE_LAUNCHER = """Traceback (most recent call last):
  File "/x/work/stages.py", line 4, in <module>
    subprocess.run(command, check=True)
subprocess.CalledProcessError: Command '['gsutil', 'cp']' returned non-zero exit status 2.
"""
OF_ACCELERATE = OF_THE_LAUNCHER.replace("'gsutil', 'cp'", "'accelerate'").replace("status 2", "status 1")
HANDLED = """Traceback (most recent call last):
  File "/x/work/train.py", line 2, in <module>
    step()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
"""


@pytest.mark.parametrize(
    "before",
    [
        f"{HANDLED}smaller batch\nstep 1\n",
        f"{HANDLED}\nDuring handling of the above exception, another exception occurred:\n\n",
        "worker died with <Signals.SIGKILL: 9>, started another\nstep 1\n",
    ],
    ids=["memory", "handled just before", "signal"],
)
def test_what_a_script_handled_before_is_not_why_its_program_failed(before: str) -> None:
    error = RankError("CalledProcessError", "Command '['gsutil', 'cp']' returned non-zero exit status 2.", 1)
    verdict = classify(Ending(1, top=1, errors={0: error}, tails={0: before + OF_THE_LAUNCHER}))

    assert verdict.kind == "user_error"
    assert say(verdict.how).startswith("The script raised CalledProcessError: ")


@pytest.mark.parametrize(
    "between",
    [
        "smaller batch\n",
        "INFO:root:Epoch 3: loss 0.5\n",
        "[2026-03-01 10:00:00,000][__main__][INFO] - epoch 3 loss 0.5\n",
        "[2026-03-01 10:00:00,000] [INFO] epoch 3 loss 0.5\n",
        "\nDuring handling of the above exception, another exception occurred:\n\n",
    ],
    ids=["print", "logging", "Hydra", "own format", "handled just before"],
)
def test_an_exception_that_the_training_went_on_after_is_no_cause(between: str) -> None:
    error = RankError("CalledProcessError", "Command '['accelerate']' returned non-zero exit status 1.", 1)
    verdict = classify(Ending(1, top=1, errors={0: error}, tails={0: f"{HANDLED}{between}{OF_ACCELERATE}"}))

    assert verdict.kind == "user_error"
    assert say(verdict.how).startswith("The script raised CalledProcessError: ")


@pytest.mark.parametrize(
    "between",
    [
        "",
        "E1127 10:00:00.000000 123 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 1)\n",
        "[2024-03-01 10:00:00,000] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1)\n",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 123)\n",
        "wandb: \nwandb: Run summary:\nwandb: loss 0.5\nwandb: Find logs at: ./wandb/offline-run/logs\n",
        "[2024-01-01 12:00:00,000] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 1234\n",
        "Epoch 1:   0%|          | 0/100 [00:01<?, ?it/s]\n",
        "resource_tracker.py:224: UserWarning: resource_tracker: 1 leaked semaphore\n  warnings.warn('x')\n",
    ],
    ids=["nothing", "torch 2.3", "torch 2.2", "torch 1", "wandb", "DeepSpeed", "bar", "warning"],
)
def test_what_a_launcher_writes_at_its_end_hides_no_cause(between: str) -> None:
    error = RankError("CalledProcessError", "Command '['accelerate']' returned non-zero exit status 1.", 1)
    tail = f"Epoch 1\n{HANDLED}{between}{OF_ACCELERATE}"

    assert classify(Ending(1, top=1, errors={0: error}, tails={0: tail})).kind == "oom_gpu"


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. ", "signal"),
        ("OSError: [Errno 98] Address already in use", "infra"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom_gpu"),
    ],
)
def test_a_failure_below_a_launcher_is_judged_like_a_scripts_own(cause: str, kind: str) -> None:
    torchrun = "=" * 60 + "\ntrain.py FAILED\n" + "=" * 60 + "\n"
    tail = (
        f'Traceback (most recent call last):\n  File "x.py", line 1, in f\n{cause}\n'
        "E1128 10:00:00.000000 42 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1)\n"
        f'Traceback (most recent call last):\n  File "y.py", line 1, in f\n'
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{torchrun}{OF_ACCELERATE}"
    )
    error = RankError("CalledProcessError", "Command '['accelerate']' returned non-zero exit status 1.", 1)

    assert classify(Ending(1, top=1, errors={0: error}, tails={0: tail})).kind == kind


PRINTED = """step 20 loss 0.048
Traceback (most recent call last):
  File "/x/work/train.py", line 6, in <module>
    main()
    ^^^^^^
RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""


@pytest.mark.parametrize(
    ("tail", "sentence"),
    [
        (
            f"{PRINTED}exiting\n",
            "Finished with exit code 0, though the log ends with RuntimeError: mat1 and mat2 shapes cannot be multiplied.",
        ),
        (
            f"{PRINTED}\nTraining finished.\n",
            "Finished with exit code 0, though the log ends with RuntimeError: mat1 and mat2 shapes cannot be multiplied.",
        ),
        (PRINTED + "step 21 loss 0.04\n" * 20, "Finished."),
        (PRINTED + "step 21 loss 0.04\n", "Finished."),
        (PRINTED + "INFO skipped the batch, going on\ndone\n", "Finished."),
        (PRINTED + "accuracy 0.97\nTraining finished.\n", "Finished."),
        (PRINTED + "0.9312\n", "Finished."),
        (
            f"done\nException ignored in: <function Loader.__del__ at 0x7f>\n{PRINTED.partition(chr(10))[2]}",
            "Finished.",
        ),
        (
            "done\nException ignored while calling deallocator <function Loader.__del__ at 0x7f>:\n"
            f"{PRINTED.partition(chr(10))[2]}",
            "Finished.",
        ),
        ("done\n", "Finished."),
    ],
)
def test_an_exception_that_a_script_printed_last_is_said_with_its_success(tail, sentence) -> None:
    for ending in (Ending(1, top=0, tails={0: tail}), Ending(1, top=0, finished={0: 0}, tails={0: tail})):
        verdict = classify(ending)

        assert (verdict.kind, say(verdict.how)) == ("ok", sentence)


def test_a_daemon_and_the_exception_that_its_log_ends_with_are_both_said() -> None:
    verdict = classify(Ending(1, top=0, left=1, tails={0: PRINTED}))

    assert say(verdict.how) == (
        "Finished with exit code 0, though the log ends with RuntimeError: mat1 and mat2 shapes cannot be multiplied. "
        "The script exited while 1 process that it had started was still running; it was ended too. "
        "Run the program in the foreground."
    )


@pytest.mark.parametrize(
    ("error", "port"),
    [
        (
            RankError(
                "DistNetworkError",
                "The server socket has failed to listen on any local network address. port: 12355, useIpv6: false, "
                "code: -98, name: EADDRINUSE, message: address already in use",
                1,
            ),
            "Port 12355",
        ),
        (RankError("OSError", "[Errno 98] Address already in use", 1), "The port"),
    ],
)
def test_a_port_that_another_program_has_is_no_error_of_the_script(error, port) -> None:
    verdict = classify(Ending(1, top=1, errors={0: error}))

    assert verdict.kind == "infra"
    assert say(verdict.how).startswith("The script raised ")
    assert say(verdict.how).endswith(
        f" {port} is taken by another program of this server, perhaps another job: use the one in MASTER_PORT, or port 0 "
        "for a free one."
    )


def test_words_of_a_taken_port_in_an_error_of_the_script_are_no_taken_port() -> None:
    error = RankError("ValueError", "config: address already in use by another section", 1)

    assert classify(Ending(1, top=1, errors={0: error})).kind == "user_error"


def test_rows_and_first_failure_tell_codes_from_signals() -> None:
    ending = Ending(2, top=1, errors={1: VALUE_ERROR}, codes={1: 1, 0: TERM})

    assert rank_rows(ending) == [
        {"rank": 0, "code": None, "signal": 15, "finished": False},
        {"rank": 1, "code": 1, "signal": None, "finished": False},
    ]
    assert first_failure(ending, classify(ending)) == {
        "rank": 1,
        "code": 1,
        "signal": None,
        "exception": "ValueError",
        "message": "no such split",
    }


@pytest.mark.parametrize("fields", [{"top": 0}, {"top": KILL, "stop_reason": "cancel"}])
def test_without_a_failure_there_is_no_first_one(fields: dict[str, Any]) -> None:
    ending = Ending(1, **fields)

    assert first_failure(ending, classify(ending)) is None


def test_what_a_gpu_lacked_is_said_with_its_amounts() -> None:
    message = (
        "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB of which 12.73 GiB is "
        "free. Including non-PyTorch memory, this process has 18.73 GiB memory in use."
    )
    verdict = classify(Ending(2, top=1, errors={1: RankError("OutOfMemoryError", message, 10)}))

    assert say(verdict.how).startswith(
        "Rank 1 ran out of GPU memory: it needed 22.78 GiB more, and 12.73 GiB of the device's 31.47 GiB were free."
    )


@pytest.mark.parametrize(
    ("tail", "sentence"),
    [
        (
            "usage: t.py --d D\nt.py: error: --d is missing\n",
            "The script ended itself on rank 0: --d is missing.",
        ),
        (
            "Usage: t.py [OPTIONS]\n\nError: No such option: --x\n",
            "The script ended itself on rank 0: No such option: --x.",
        ),
        ("Error: disk\nstep 5 loss 0.5\n", "The script ended with exit code 2 on rank 0."),
        (
            "Usage: t.py [OPTIONS]\nTry 't.py --help' for help.\n\u256d\u2500 Error \u2500\u256e\n\u2502 Missing command.   \u2502\n\u2570\u2500\u2500\u256f\n",
            "The script ended with exit code 2 on rank 0. Its log says: Missing command.",
        ),
        (
            "epoch 3/3 loss 0.5\nrun.sh: line 4: ./evaluate: No such file or directory\n",
            "The script ended with exit code 2 on rank 0. Its log says: run.sh: line 4: ./evaluate: No such file or directory.",
        ),
        (
            "Primary config directory not found.\nCheck that it exists\n\nSet HYDRA_FULL_ERROR=1 for a stack trace.\n",
            "The script ended with exit code 2 on rank 0. Its log says: Primary config directory not found.",
        ),
        (
            "\x1b[0;31mModuleNotFoundError\x1b[0m: No module named 'matplotlib'\n",
            "The script ended with exit code 2 on rank 0. Its log says: ModuleNotFoundError: No module named 'matplotlib'.",
        ),
        (
            "2026-11-28 W TF-TRT Warning: Could not find TensorRT\nGate not passed: 0.41 < 0.80\n",
            "The script ended with exit code 2 on rank 0. Its log says: Gate not passed: 0.41 < 0.80.",
        ),
        (
            "Using error feedback\nbye\n",
            "The script ended with exit code 2 on rank 0. Its log says: bye.",
        ),
        (
            "2026-11-28 12:00:00 [ERROR] two folders of data\nbye\n",
            "The script ended with exit code 2 on rank 0. Its log says: 2026-11-28 12:00:00 [ERROR] two folders of data.",
        ),
        (
            "Error while it read the data\nbye\n",
            "The script ended with exit code 2 on rank 0. Its log says: Error while it read the data.",
        ),
        (
            "step 9\nval error: 0.3\nbye\n",
            "The script ended with exit code 2 on rank 0. Its log says: bye.",
        ),
    ],
)
def test_wrong_options_are_told_in_the_words_of_the_scripts_parser(tail: str, sentence: str) -> None:
    assert say(classify(Ending(1, top=2, finished={0: 2}, tails={0: tail})).how) == sentence


@pytest.mark.parametrize(
    ("last_line", "said"),
    [
        ("Loss is nan, stopping training", "Loss is nan, stopping training"),
        ("\x1b[31mERROR: cuda is not available\x1b[0m", "ERROR: cuda is not available"),
        ("Please install apex: pip install apex.", "Please install apex: pip install apex"),
    ],
)
def test_what_a_script_says_before_it_exits_is_told(last_line: str, said: str) -> None:
    ending = Ending(1, top=1, finished={0: 1}, tails={0: f"step 5 loss 0.5\n{last_line}\n"})

    assert say(classify(ending).how) == f"The script ended with exit code 1 on rank 0. Its log says: {said}."


@pytest.mark.parametrize("last_line", ["epoch 5/10", "100%|##########| 10/10 [00:01<00:00]", "=====", ""])
def test_what_a_training_prints_is_no_reason_for_its_exit_code(last_line: str) -> None:
    ending = Ending(1, top=3, finished={0: 3}, tails={0: f"{last_line}\n"})

    assert say(classify(ending).how) == "The script ended with exit code 3 on rank 0."


def test_an_exception_that_a_script_prints_before_it_exits_is_the_cause() -> None:
    hydra = (
        "Error executing job with overrides: ['lr=1']\nTraceback (most recent call last):\n"
        '  File "train.py", line 5, in main\n    step()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n\n"
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"
    )
    verdict = classify(Ending(1, top=1, finished={0: 1}, tails={0: hydra}))

    assert (verdict.kind, verdict.first_rank) == ("oom_gpu", 0)


OF_PORT = PRINTED.replace(
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied", "OSError: [Errno 98] Address already in use"
)
OF_SAMPLE = PRINTED.replace("RuntimeError: mat1 and mat2 shapes cannot be multiplied", "KeyError: 'x'")


@pytest.mark.parametrize(
    ("tail", "sentence"),
    [
        (
            f"{OF_PORT}tensorboard did not start, going on without\nerror: dataset 'foo' not found\n",
            "The script ended with exit code 3 on rank 0. Its log says: error: dataset 'foo' not found.",
        ),
        (
            f"{OF_SAMPLE}skipping bad sample\nValidation accuracy 0.41 is below the threshold 0.8, aborting\n",
            "The script ended with exit code 3 on rank 0. Its log says: "
            "Validation accuracy 0.41 is below the threshold 0.8, aborting.",
        ),
        (
            f"{HANDLED}retrying with batch 16\nt.py: error: no file\n",
            "The script ended itself on rank 0: no file.",
        ),
        (f"{OF_SAMPLE}step 9 loss 0.5\n", "The script ended with exit code 3 on rank 0."),
    ],
    ids=["port", "sample", "memory", "training went on"],
)
def test_what_a_script_says_behind_an_exception_that_it_handled_is_why_it_ended(
    tail: str, sentence: str
) -> None:
    verdict = classify(Ending(1, top=3, finished={0: 3}, tails={0: tail}))

    assert (verdict.kind, say(verdict.how)) == ("user_error", sentence)


@pytest.mark.parametrize(
    "behind",
    [
        "",
        "\n\n",
        "exiting\n",
        "ERROR: Aborting...\n",
        "Exiting now.\n",
        "Training failed\n",
        "Exiting with code 1\nExit code: 1\n",
        "Cleaning up\nShutting down...\nDone.\n",
        "Saving checkpoint before exit\n",
        "ERROR:root:Training failed due to the above error\n",
        "[2024-01-01 10:00:00,123][__main__][INFO] - Exiting\n",
        f"{'=' * 80}\n",
        "50%|#####     | 5/10 [00:01<00:01]\n",
        "wandb: Find logs at: ./wandb/offline-run/logs\n",
        "/usr/lib/python3/multiprocessing/resource_tracker.py:254: UserWarning: 1 leaked\n  warnings.warn('x')\n",
    ],
)
def test_what_says_nothing_more_behind_an_exception_leaves_it_the_cause(behind: str) -> None:
    verdict = classify(Ending(1, top=1, finished={0: 1}, tails={0: HANDLED + behind}))

    assert verdict.kind == "oom_gpu"


NO_TERMINAL = "A job has no terminal: give the script a fixed width, or turn its own progress bar off."
NO_CUDA = "Its torch is built without CUDA: take a build for GPUs, or let the script train on the CPU."
STTY = (
    'Traceback (most recent call last):\n  File "utils.py", line 45, in <module>\n'
    "    _, term_width = os.popen('stty size', 'r').read().split()\n    ^^^^^^^^^^^^^\n"
    "ValueError: not enough values to unpack (expected 2, got 0)\n"
)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            RankError("ValueError", "not enough values to unpack (expected 2, got 0)", 1, STTY),
            f"The script raised ValueError: not enough values to unpack (expected 2, got 0) on rank 0. {NO_TERMINAL}",
        ),
        (
            RankError("OSError", "[Errno 25] Inappropriate ioctl for device", 1),
            f"The script raised OSError: [Errno 25] Inappropriate ioctl for device on rank 0. {NO_TERMINAL}",
        ),
        (
            RankError("AssertionError", "Torch not compiled with CUDA enabled", 1),
            f"The script raised AssertionError: Torch not compiled with CUDA enabled on rank 0. {NO_CUDA}",
        ),
        (
            RankError("AttributeError", "module 'torch._C' has no attribute '_cuda_setDevice'", 1),
            "The script raised AttributeError: module 'torch._C' has no attribute '_cuda_setDevice' on rank 0. "
            + NO_CUDA,
        ),
        (
            RankError(
                "ValueError", "no such split", 1, "os.system('stty size')\nmore()\nValueError: no such split"
            ),
            "The script raised ValueError: no such split on rank 0.",
        ),
    ],
)
def test_what_a_script_lacked_is_told_behind_its_error(error: RankError, sentence: str) -> None:
    assert say(classify(Ending(1, top=1, errors={0: error})).how) == sentence


def test_a_trace_of_one_long_line_is_judged_at_once() -> None:
    trace = "stty " * 40 + " " * 120_000 + "x\nValueError: no such split"
    began_s = time.process_time()

    classify(Ending(1, top=1, errors={0: RankError("ValueError", "no such split", 1, trace)}))

    assert time.process_time() - began_s < 1.0
