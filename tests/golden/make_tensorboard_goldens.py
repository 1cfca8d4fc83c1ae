"""Records of an event file as TensorBoard's own writer makes them, for tests/train/tensorboard_test.cpp.

pip install tensorboard; python3 tests/golden/make_tensorboard_goldens.py > tests/golden/tensorboard_goldens.json
With a folder as argument it lists, with TensorBoard's own reader, the scalars of the event file in it instead.
"""
import json
import struct
import sys

import tensorboard
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c


def record(event):
    data = event.SerializeToString()
    header = struct.pack("<Q", len(data))
    return header + struct.pack("<I", masked_crc32c(header)) + data + struct.pack("<I", masked_crc32c(data))


def goldens():
    header = event_pb2.Event(wall_time=1.5e9, file_version="brain.Event:2")
    values = [("sft/loss", 0.5), ("eval/ppl", 150.25), ("grad_norm", 1e-3), ("policy/stopped_early", 1.0)]
    summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=t, simple_value=v) for t, v in values])
    step = event_pb2.Event(wall_time=1.5e9 + 0.25, step=300, summary=summary)
    return {"version": tensorboard.__version__, "header": record(header).hex(), "step_300": record(step).hex()}


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder)
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


print(json.dumps(scalars(sys.argv[1]) if len(sys.argv) > 1 else goldens(), indent=1))
