"""What torch's errors about many runs trained as one program mean for the author of a method."""

import traceback
from pathlib import Path

HOOKS = ("prepare", "outputs", "next_buffers", "objective", "combine", "predict")
"""The functions of a method that are called once for many runs."""
ADVICE = {
    "data-dependent control flow": "branches in Python on a tensor (`if`, `or`, `max`): write arithmetic "
    "or `torch.where`",
    ".item()": "makes a Python number of a tensor (`.item()`, `float`, functions of `math`): stay with "
    "tensors and torch's functions, and give metrics detached",
    "random operation": "draws random numbers: draw them in `draw`, with its generator, and take them from "
    "`batch.draws`",
    "dynamic shape": "picks by values, so that the shape depends on them (a mask as an index, `nonzero`, "
    "`unique`): multiply by the mask or write `torch.where`",
    "data pointer": "leaves torch (`.numpy()`, `.tolist()`): stay with tensors",
    "inplace": "changes a tensor in place: return a buffer's next value from `next_buffers`",
    "doesn't match the broadcast shape": "changes a tensor in place: return a buffer's next value from "
    "`next_buffers`",
}
"""What a function did, and what to write instead, by words of torch's message."""


def explained(error: BaseException) -> str | None:
    """One sentence: which function of the method `vmap` cannot take, where, and what to write instead.

    None for an error that is not known to be `vmap`'s.
    """
    text = str(error)
    advice = next((advice for words, advice in ADVICE.items() if words in text), None)
    if advice is None:
        return None
    frames = traceback.extract_tb(error.__traceback__)
    hooks = [i for i, frame in enumerate(frames) if frame.name in HOOKS]
    if not hooks:
        return f"the method {advice}"
    file = frames[hooks[-1]].filename
    place = [frame for frame in frames[hooks[-1] :] if frame.filename == file][-1]
    return f"`{frames[hooks[-1]].name}` ({Path(file).name}, line {place.lineno}) {advice}"
