"""Files of weights in the layouts in which people and publishers store them, with random weights."""

import argparse
import contextlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from oodbench.errors import UserError
from oodbench.networks.base import build
from oodbench.networks.weights import existing, read_weights, sha256

pytestmark = pytest.mark.slow

timm: Any = pytest.importorskip("timm")
State = Mapping[str, Tensor]
VIT = "vit_tiny_patch16_224"
HEADS = {"dino_head.mlp.0.weight": torch.zeros(4, 4), "ibot_head.last.weight": torch.zeros(2)}


def states(model: str, **settings: Any) -> dict[str, Tensor]:
    torch.manual_seed(3)
    return timm.create_model(model, **{"num_classes": 0, **settings}).state_dict()  # type: ignore[no-any-return]


def under(prefix: str, state: State) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in state.items()}


def chunked(state: State, blocks: int = 3) -> dict[str, Tensor]:
    """As DINOv2 names blocks that are sharded in chunks."""

    def name(match: re.Match[str]) -> str:
        return f"blocks.{int(match[1]) // blocks}.{match[1]}."

    return {re.sub(r"\bblocks\.(\d+)\.", name, k): v for k, v in state.items()}


@contextlib.contextmanager
def quick_initialization() -> Iterator[None]:
    """Zeros for the random weights that a file's replace, whose draws take half of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "uniform_", lambda self, *bounds, **options: self.zero_())
        patch.setattr(Tensor, "erfinv_", Tensor.zero_)
        yield


def read(
    state: object, folder: Path, model: str = VIT, size: int = 32, key: str = ""
) -> tuple[State, str]:
    """The weights that a network has from a file of `state`, and what is said of it."""
    torch.save(state, folder / "file.pth")
    values = {"model": model, "weights": f"{folder / 'file.pth'}{key}", "size": size}
    with warnings.catch_warnings(record=True) as said, quick_initialization():
        warnings.simplefilter("always")
        network = build("timm", values, (3, size, size), 2, 0)
    body: Any = network.get_submodule("featurizer.1")
    return body.state_dict(), " ".join(str(warning.message) for warning in said)


def equal(found: State, wanted: State) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[k], wanted[k]) for k in wanted)


@pytest.fixture(scope="module")
def vit() -> dict[str, Tensor]:
    return states(VIT, img_size=32)


def trained(vit: State) -> dict[str, tuple[object, str]]:
    """What trainings write, and what is to be said of it."""
    arguments = argparse.Namespace(arch="vit")
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}}
    backbone = under("backbone.", vit) | HEADS
    teacher = under("teacher.backbone.", chunked(vit)) | under("teacher.", HEADS)
    return {
        "teacher": ({"teacher": backbone, "iteration": 3}, "`backbone.` is removed"),
        "in depth": ({"run": {"best": {"model": {"ema": vit}}}, "args": arguments}, ""),
        "optimizer": ({"network": under("module.", vit), "optimizer": optimizer}, "`module.`"),
        "chunks": (chunked(vit) | HEADS, "heads are left out (dino_head, ibot_head)"),
        "chunks of a teacher": (teacher, "left out (teacher.dino_head, teacher.ibot_head)"),
        "parts": ({"encoder": under("module.", vit), "head": {"w": torch.zeros(2)}}, "(head.w)"),
        "compiled": (under("module._orig_mod.", vit), "`module._orig_mod.` is removed"),
        "the same twice": ({"state_dict": vit, "state_dict_ema": vit}, "`state_dict.` is removed"),
        "plain": (vit, ""),
    }


def test_what_trainings_write_is_read_and_said(vit: State, tmp_path: Path) -> None:
    for form, (state, wanted) in trained(vit).items():
        found, said = read(state, tmp_path)
        assert equal(found, vit), form
        assert (wanted in said) if wanted else not said, form


def test_two_that_fit_are_refused_one_that_does_not_is_no_rival(vit: State, tmp_path: Path) -> None:
    other = {name: value + 1 for name, value in vit.items()}
    for first, second in (("student", "teacher"), ("state_dict", "state_dict_ema"), ("a", "b")):
        message = rf"`{first}\.` and `{second}\.`: choose one .*#{first}`"
        with pytest.raises(UserError, match=message):
            read({first: vit, second: other, "epoch": 3}, tmp_path)
        for key, wanted in ((first, vit), (second, other)):
            assert equal(read({first: vit, second: other}, tmp_path, key=f"#{key}")[0], wanted)
    assert equal(read({"student": vit, "epoch": 3}, tmp_path, key="#student")[0], vit)
    with pytest.raises(UserError, match=r"unknown key 'studnt' .*; did you mean student\?"):
        read({"student": vit, "teacher": other}, tmp_path, key="#studnt")
    file = tmp_path / "file.pth"
    parts = [sha256(Path(f"{file}{key}")) for key in ("", "#student", "#teacher")]
    assert len({*parts}) == 3
    momentum = under("module.encoder_q.", vit) | under("module.encoder_k.", other)
    with pytest.raises(UserError, match=r"`module\.encoder_k\.` and `module\.encoder_q\.`"):
        read({"state_dict": momentum}, tmp_path)
    larger = states("vit_small_patch16_224", img_size=32)
    found, said = read({"student": vit, "teacher": larger}, tmp_path)
    assert equal(found, vit) and "`student.` is removed" in said


def test_errors_name_what_the_file_has_and_what_is_wanted(vit: State, tmp_path: Path) -> None:
    once = r"pth: the blocks in the chunks `blocks\.CHUNK\.BLOCK\.` should be 0, 1, 2, .* are "
    by_chunk = {
        re.sub(r"(blocks\.1)\.(\d+)", lambda m: f"{m[1]}.{int(m[2]) - 6}", k): v
        for k, v in chunked(vit, 6).items()
    }
    shorter = {k: v for k, v in vit.items() if not k.startswith("blocks.11.")}
    scales = {f"blocks.{i}.ls1.gamma": torch.ones(192) for i in range(12)}
    forms: dict[str, object] = {
        once + "0, 1, 2, 3, 4, 5, 0, 1": by_chunk,
        once + "0, 1, 2, 3, 4, 5, 6, 8": {k: v for k, v in chunked(vit).items() if ".7." not in k},
        "missing: 12 names, such as 'blocks.11.norm1.weight'$": shorter,
        r"'cls_token' \(\[1, 1, 384\] in the file, \[1, 1, 192\] wanted\)": states("vit_small_patch16_224"),
        "unknown: 12 names, such as 'blocks.0.ls1.gamma'$": {**vit, **scales},
        "missing: 150 names, such as 'cls_token'; unknown: .* 'conv1.0.weight'": states("resnet10t"),
        "unknown: 1 name, such as 'dist_token'": states("deit_tiny_distilled_patch16_224"),
        "does not hold a state_dict of tensors but epoch$": {"epoch": 3},
        "does not hold a state_dict of tensors but a list$": [vit],
        "does not hold a state_dict of tensors but nothing$": {},
        "does not hold a state_dict of tensors but a$": {"a": torch.ones(2, device="meta")},
        "not all values of 'model.norm.bias' are finite": under(
            "model.", {**vit, "norm.bias": vit["norm.bias"] / 0}
        ),
        "'model.norm.bias' is int8: quantized weights are not read": under(
            "model.", {**vit, "norm.bias": vit["norm.bias"].char()}
        ),
        "holds timm.models.resnet.ResNet, save a state_dict": {"model": timm.create_model("resnet10t")},
    }  # fmt: skip
    for message, state in forms.items():
        with pytest.raises(UserError, match=message) as caught:
            read(state, tmp_path)
        assert "\n" not in str(caught.value)
    registers = states("vit_small_patch14_reg4_dinov2")
    registers["register_tokens"] = registers.pop("reg_token")
    with pytest.raises(UserError, match="such as 'register_tokens'"):
        read(registers, tmp_path, "vit_small_patch14_dinov2", 28)


@pytest.mark.parametrize("name", ["a.safetensors", "a.bin", "a.ckpt"])
def test_a_file_is_read_as_what_it_is_whatever_its_ending(name: str, tmp_path: Path) -> None:
    state = {"x": torch.ones(2)}
    torch.save(state, tmp_path / name)
    assert equal(read_weights(tmp_path / name), state)
    safetensors.torch.save_file(state, tmp_path / f"other-{name}")
    assert equal(read_weights(tmp_path / f"other-{name}"), state)


@pytest.mark.parametrize("ending", [".safetensors", ".bin"])
def test_shards_are_read_by_their_index(ending: str, tmp_path: Path) -> None:
    values = {name: torch.full((2,), float(i)) for i, name in enumerate("abc")}
    names = {name: f"model-{1 + (name > 'a'):05}-of-00002{ending}" for name in values}
    for shard in {*names.values()}:
        part = {name: value for name, value in values.items() if names[name] == shard}
        save = safetensors.torch.save_file if ending == ".safetensors" else torch.save
        save(part, tmp_path / shard)
    index = tmp_path / f"model{ending}.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert equal(read_weights(index), values)
    before = sha256(index)
    save({name: values[name] + 1 for name in "bc"}, tmp_path / names["b"])
    assert sha256(index) != before
    with pytest.raises(UserError, match=rf"one of several shards: give their index, {index}"):
        read_weights(tmp_path / names["a"])
    with pytest.raises(UserError, match=r"is a folder: name a file of it .it holds model-00001"):
        existing(str(tmp_path), "a file")
    (tmp_path / names["b"]).unlink()
    with pytest.raises(UserError, match=f"names {names['b']}, which is not in the same folder"):
        sha256(index)
    wrong: object
    for wrong in ({"weight_map": []}, [], {}):
        index.write_text(json.dumps(wrong))
        with pytest.raises(UserError, match="is not an index of shards"):
            sha256(index)


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(1), np.int64(3), np.bool_(1)])
def test_numbers_of_numpy_lie_beside_weights(number: object, tmp_path: Path) -> None:
    state = {"x": torch.ones(2)}
    torch.save({"state_dict": state, "best_accuracy": number}, tmp_path / "a.pth")
    assert equal(read_weights(tmp_path / "a.pth"), state)


@pytest.mark.parametrize("registers", [False, True])
def test_dinov2s_layout(registers: bool, tmp_path: Path) -> None:
    model = f"vit_small_patch14_{'reg4_' * registers}dinov2"
    wanted = states(model)
    published = wanted | {"mask_token": torch.zeros(1, 384)}
    if registers:
        zero = torch.zeros(1, 1, 384)
        published["pos_embed"] = torch.cat([zero, wanted["pos_embed"]], 1)
        published["register_tokens"] = published.pop("reg_token")
    assert published["pos_embed"].shape == (1, 1370, 384)
    for form in (published, {"teacher": under("backbone.", chunked(published)) | HEADS}):
        found, _ = read(form, tmp_path, model, 28)
        assert found["pos_embed"].shape[1] == 5 - registers
        resampled = {k: found[k] if k == "pos_embed" else v for k, v in wanted.items()}
        assert equal(found, resampled)


def swapped(name: str, swaps: Mapping[str, str]) -> str:
    for old, new in swaps.items():
        name = re.sub(old, new, name)
    return name


def clips_names(state: State) -> dict[str, Tensor]:
    """The names of CLIP's authors for timm's."""
    swaps = {
        r"^norm\.": "ln_post.", r"norm_pre": "ln_pre", r"\.norm(\d)": r".ln_\1",
        r"^blocks": "transformer.resblocks",
        r"qkv\.": "in_proj_", r"attn\.proj": "attn.out_proj", r"fc1": "c_fc", r"fc2": "c_proj",
        r"^patch_embed\.proj": "conv1", r"^pos_embed": "positional_embedding",
        "^cls_token": "class_embedding",
    }  # fmt: skip
    inside: dict[str, tuple[int, ...]] = {"cls_token": (0, 0), "pos_embed": (0,)}
    return {swapped(name, swaps): value[inside.get(name, ())] for name, value in state.items()}


def test_open_clips_layouts(vit: State, tmp_path: Path) -> None:
    model = "vit_xsmall_patch16_clip_224"
    wanted = states(model)
    tower = clips_names(wanted) | {"proj": torch.zeros(256, 128)}
    text = {"positional_embedding": torch.zeros(77, 128), "logit_scale": torch.zeros(())}
    text["transformer.resblocks.0.ln_1.weight"] = torch.zeros(128)
    whole = under("visual.", tower) | text
    training = {"epoch": 1, "name": "mine", "state_dict": under("module.", whole)}
    for state, left in ((whole, 4), (training, 4), (tower, 1), (under("model.clip.", whole), 4)):
        found, said = read(state, tmp_path, model, 224)
        assert equal(found, wanted)
        assert f"CLIP's image tower is read, {left} other tensor" in said
    trunk = under("visual.trunk.", vit) | {"visual.head.proj.weight": torch.zeros(5, 192)} | text
    found, said = read(trunk, tmp_path)
    assert equal(found, vit) and "`visual.trunk.` is removed" in said
    with pytest.raises(UserError, match=r"under `a\.visual\.` and `b\.visual\.`: save one"):
        read(under("a.visual.", tower) | under("b.visual.", tower), tmp_path, model, 224)


def test_published_heads_go_in_silence_and_others_are_named(vit: State, tmp_path: Path) -> None:
    for classes, said in ((1000, ""), (7, "heads are left out (fc)")):
        state = states("resnet18", num_classes=classes)
        found, now = read(state, tmp_path, "resnet18")
        assert equal(found, {k: v for k, v in state.items() if k in found})
        assert said in now and bool(said) == bool(now)
    decoder = {"mask_token": torch.zeros(1, 1, 8), "decoder_blocks.0.norm1.weight": torch.ones(8)}
    found, now = read({"model": {**vit, **decoder}}, tmp_path)
    assert equal(found, vit) and "(decoder_blocks)" in now


def facebooks_names(state: State) -> dict[str, Tensor]:
    """The names of ConvNeXt's authors for timm's."""
    swaps = {
        r"^head\.fc\.": "head.", r"^head\.norm": "norm", r"^stem": "downsample_layers.0",
        r"\.blocks\.": ".",
        r"^stages\.(\d)\.downsample": r"downsample_layers.\1", r"conv_dw": "dwconv", r"mlp\.fc": "pwconv",
    }  # fmt: skip
    renamed = {swapped(name, swaps): value for name, value in state.items()}
    return {n: v.flatten(1) if "pwconv" in n and v.dim() > 1 else v for n, v in renamed.items()}


def test_names_of_the_authors_of_convnext_and_swin(tmp_path: Path) -> None:
    convnext = states("convnext_atto", num_classes=9)
    found, _ = read({"model": facebooks_names(convnext)}, tmp_path, "convnext_atto")
    assert equal(found, {k: v for k, v in convnext.items() if not k.startswith("head.fc")})
    swin = states("swin_tiny_patch4_window7_224")

    def earlier(match: re.Match[str]) -> str:
        return f"layers.{int(match[1]) - 1}.downsample"

    authors = {re.sub(r"layers\.(\d)\.downsample", earlier, k): v for k, v in swin.items()}
    authors |= {"head.weight": torch.zeros(9, 768), "layers.0.blocks.1.attn_mask": torch.zeros(2)}
    found, _ = read({"model": authors}, tmp_path, "swin_tiny_patch4_window7_224", 224)
    assert equal(found, swin)
