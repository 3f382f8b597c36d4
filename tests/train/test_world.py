"""One process, and several that really talk to each other."""

import os
import random
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn

from relmo.errors import ConfigError
from relmo.train.world import World, join_world

PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in PLACE:
        monkeypatch.delenv(name, raising=False)


def test_alone():
    with join_world("cpu") as world:
        assert (world.rank, world.size, world.device.type, world.is_first) == (0, 1, "cpu", True)
        tensor = torch.tensor([1.0, 2.0])
        world.sum(tensor)
        assert tensor.tolist() == [1.0, 2.0]
        assert world.gather(tensor) is tensor
        assert world.union(torch.tensor([5, 1, 5, 3])).tolist() == [1, 3, 5]
        world.barrier()
        module = nn.Linear(2, 1)
        assert world.wrap(module) is module
    assert not torch.distributed.is_initialized()


def test_torchrun_with_one_process_needs_no_others(monkeypatch):
    for name, value in zip(PLACE, ("0", "1", "0", "localhost", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with join_world("cpu") as world:
        assert world == World()


@pytest.mark.parametrize(
    "place", [{"RANK": "0"}, {"WORLD_SIZE": "2", "RANK": "0"}, dict.fromkeys(PLACE, "two")]
)
def test_half_an_environment_is_refused(monkeypatch, place):
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="torchrun"), join_world():
        pass


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "cuda:x", "mps"])
def test_a_device_that_is_not_there(device):
    with (
        pytest.raises(ConfigError, match=f"There is no device '{device}'"),
        join_world(device),
    ):
        pass


PRELUDE = """
import os, signal, sys, time, torch
from relmo.errors import RelmoError
from relmo.train.world import join_world
torch.set_num_threads(1)
try:
    with join_world("cpu") as world:
"""
END = """
except RelmoError as error:
    print("Error:", error, flush=True)
    os._exit(2)  # as the command line does: threads of gloo can abort a Python that winds down
"""


def run_ranks(n, body):
    """Run `body` in n processes; what each printed, how it ended and when."""
    program = PRELUDE + textwrap.indent(textwrap.dedent(body), " " * 8) + END
    port = str(random.randrange(20_000, 40_000))
    processes = []
    for rank in range(n):
        place = dict(zip(PLACE, (str(rank), str(n), str(rank), "127.0.0.1", port), strict=True))
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", program],
                env={**os.environ, **place},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    started = time.monotonic()
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    return outputs, [process.returncode for process in processes], time.monotonic() - started


@pytest.mark.slow
def test_three_ranks_talk():
    outputs, codes, _ = run_ranks(
        3,
        """
        a, b = torch.tensor([1.0, world.rank]), torch.tensor(world.rank)
        world.sum(a, b)
        rows = [[7, 1, 7], [], [3, 0, 2**40, 1]][world.rank]
        union = world.union(torch.tensor(rows, dtype=torch.int64))
        none = world.union(torch.zeros(0, dtype=torch.int64))
        net = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(net.weight, world.rank)
        wrapped = world.wrap(net)  # takes the first rank's weights
        wrapped(torch.full((1, 1), float(world.rank))).sum().backward()
        world.barrier()
        weight = net.weight.item(), net.weight.grad.item()
        side_by_side = world.gather(torch.full((1, 2), world.rank).t(), dim=1)
        assert side_by_side.tolist() == [[0, 1, 2]] * 2
        print(a.tolist(), b.item(), union.tolist(), len(none), *weight)
        """,
    )
    assert codes == [0, 0, 0]
    assert outputs == [f"[3.0, 3.0] 3 [0, 1, 3, 7, {2**40}] 0 0.0 1.0\n"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "waits",
    ["world.barrier()", "world.sum(torch.ones(3))", "net(torch.ones(1, 1)).sum().backward()"],
)
def test_a_rank_that_dies_is_noticed_at_once(waits):
    outputs, codes, seconds = run_ranks(
        2,
        f"""
        net = world.wrap(torch.nn.Linear(1, 1))
        {waits}
        if world.rank == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        {waits}
        """,
    )
    assert codes == [2, -9]
    assert outputs[0].startswith("Error: Process 0: another process of this job ended")
    assert "resume the run" in outputs[0]
    assert seconds < 60  # mostly imports; the limit without a word is half an hour


@pytest.mark.slow
def test_an_error_of_one_rank_ends_the_others_too():
    outputs, codes, _ = run_ranks(
        2,
        """
        if world.rank == 0:
            raise RelmoError("no text")
        world.barrier()
        """,
    )
    assert codes == [2, 2]
    assert outputs[0] == "Error: no text\n"
    assert outputs[1].startswith("Error: Process 1: another process")


@pytest.mark.slow
def test_our_own_mistakes_stay_what_they_are():
    program = PRELUDE + "        raise RuntimeError('a bug')" + END
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "RuntimeError: a bug" in done.stderr
