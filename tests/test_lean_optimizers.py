import json
import subprocess
import sys
from typing import Any

PROGRAM = """
import json, sys
import torch
from torch.optim import SGD, Adam, AdamW
if sys.argv[1] == "lean":
    from oodbench.lean_optimizers import spare_the_compiler
    spare_the_compiler()
    spare_the_compiler()

def trained(make):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer, hooked = make(model.parameters()), []
    optimizer.register_step_post_hook(lambda *_: hooked.append(1))
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        if step == 2:
            state = optimizer.state_dict()
            optimizer = make(model.parameters())
            optimizer.load_state_dict(state)
    assert len(hooked) == 3 and not any(p.grad is None for p in model.parameters())
    return [p.tolist() for p in model.parameters()]

print(json.dumps([
    trained(lambda p: Adam(p, 0.1, fused=True)),
    trained(lambda p: AdamW(p, 0.1, weight_decay=0.1)),
    trained(lambda p: SGD(p, 0.1, momentum=0.9)),
    "torch._dynamo" in sys.modules,
]))
"""


def said(how: str) -> list[Any]:
    command = [sys.executable, "-c", PROGRAM, how]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: list[Any] = json.loads(found.stdout)
    return answer


def test_lean_optimizers_compute_the_same_bits_without_the_compiler() -> None:
    plain, lean = said("plain"), said("lean")
    assert lean[:3] == plain[:3]
    assert lean[3] is False


def test_a_run_trains_without_the_compiler() -> None:
    code = """
import sys, tempfile
from pathlib import Path
from oodbench.plan import single
from oodbench.records import Results
from oodbench.execute import execute
from oodbench.job import Settings

for algorithm in ("ERM", "IRM", "ANDMask"):
    run = single({"name": "LinearSEM", "num_examples": 40}, {"name": algorithm}, steps=4)
    assert execute(run, Results(Path(tempfile.mkdtemp())).run(run.id), Settings()) == ("done", "")
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
