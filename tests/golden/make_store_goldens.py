"""Writes tests/golden/store/: weight files made by PyTorch, safetensors, huggingface_hub and h5py, and what they hold.

usage: python make_store_goldens.py [FOLDER]     (torch 2.x, safetensors, huggingface_hub, h5py, numpy)

expected.json maps a file (or folder) to its tensors: name -> [dtype, shape, little-endian row-major bytes in hexadecimal].
The names of dtypes are tercet's; torch.bool is read as uint8.
"""

import json
import pathlib
import sys

import h5py
import numpy
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file

DTYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.int64: "int64", torch.int32: "int32", torch.uint8: "uint8", torch.bool: "uint8",
}


def describe(tensor):
    tensor = tensor.detach().contiguous()
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return [DTYPES[tensor.dtype], list(tensor.shape), raw.hex()]


def describe_all(state):
    return {name: describe(tensor) for name, tensor in state.items()}


def every_dtype(generator):
    values = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    state = {"values." + name: values.to(dtype) for dtype, name in DTYPES.items() if dtype.is_floating_point}
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 6e-8, 65504.0, 3e38])
    state.update({"special." + name: special.to(dtype) for dtype, name in DTYPES.items() if dtype.is_floating_point})
    state["integers.int64"] = torch.tensor([[-(2**63), -1], [2**62, 7]])
    state["integers.int32"] = torch.tensor([-(2**31), 5, 2**31 - 1], dtype=torch.int32)
    state["integers.uint8"] = torch.arange(250, 256).to(torch.uint8)
    state["mask"] = torch.tensor([True, False, True])
    state["scalar"] = torch.tensor(2.5)
    state["empty"] = torch.zeros(0, 4)
    return state


def strided(generator):
    base = torch.randn(6, 8, generator=generator)
    embedding = torch.randn(7, 4, generator=generator).to(torch.bfloat16)
    cube = torch.arange(2 * 3 * 4, dtype=torch.float16).reshape(2, 3, 4)
    return {
        "transposed": base.t(), "offset": base[2:5], "columns": base[:, 3:6], "every_other": base[::2, 1::3],
        "permuted": cube.permute(2, 0, 1), "one_row": base[3:4, :2], "embed_tokens": embedding, "lm_head": embedding,
        "parameter": torch.nn.Parameter(base[1]), "frozen": torch.nn.Parameter(base[:, 0], requires_grad=False),
    }


def module():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2, bias=False)).half()
    return model.state_dict()


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "store")
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1234)
    torch.manual_seed(1234)
    expected = {}

    state = every_dtype(generator)
    save_file(state, folder / "dtypes.safetensors", metadata={"format": "pt"})
    torch.save(state, folder / "dtypes.bin")
    expected["dtypes.safetensors"] = expected["dtypes.bin"] = describe_all(state)

    state = strided(generator)
    torch.save(state, folder / "strided.bin")
    expected["strided.bin"] = describe_all(state)
    torch.save(module(), folder / "module.bin")
    expected["module.bin"] = describe_all(torch.load(folder / "module.bin"))

    state = {f"layers.{i}.weight": torch.randn(8, 8, generator=generator).to(torch.float16) for i in range(6)}
    state["embed.weight"] = torch.randn(10, 8, generator=generator)
    for name, safe in (("sharded_safetensors", True), ("sharded_bin", False)):
        (folder / name).mkdir(exist_ok=True)
        pattern = "model{suffix}.safetensors" if safe else "pytorch_model{suffix}.bin"
        save_torch_state_dict(state, folder / name, filename_pattern=pattern, max_shard_size=400, safe_serialization=safe)
        expected[name] = describe_all(state)

    torch.save({"w": torch.ones(2)}, folder / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save({"w": torch.ones(2)}, folder / "protocol4.bin", pickle_protocol=4)
    torch.save(torch.nn.Linear(2, 2), folder / "whole_module.bin")
    torch.save({"model": {"w": torch.ones(2)}, "step": 3}, folder / "nested.bin")
    torch.save({"w": torch.ones(2, dtype=torch.uint16)}, folder / "uint16.bin")
    torch.save({"w": torch.ones(2, dtype=torch.int16)}, folder / "int16.bin")
    torch.save({"w": torch.ones(1).expand(4)}, folder / "expanded.bin")
    save_file({"w": torch.ones(4).to(torch.float8_e4m3fn)}, folder / "float8.safetensors")
    for name, block in (("foreign.h5", 0), ("foreign_user_block.h5", 512)):
        with h5py.File(folder / name, "w", userblock_size=block) as file:
            file["weights"] = numpy.ones((2, 2), numpy.float32)

    lines = ",\n".join(
        json.dumps(file) + ": {\n" + ",\n".join(" " + json.dumps(n) + ": " + json.dumps(t) for n, t in tensors.items()) + "}"
        for file, tensors in expected.items())
    (folder / "expected.json").write_text("{" + lines + "}\n")


main()
