"""Writes metrics and texts as event files, with TensorBoard's own package.

board = Board(run / "tensorboard", step=500)
board.add("loss", 3.2, step=501)
board.add("sample", "Once upon a time", step=501)
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class Board:
    def __init__(self, folder: Path, step: int) -> None:
        """Continues after `step`: what an interrupted run wrote beyond it is not shown."""
        self._writer = EventFileWriter(str(folder))
        if step:
            self._write(step, file_version="brain.Event:2")
            self._write(step, session_log=SessionLog(status=SessionLog.START))

    def add(self, name: str, value: float | str, step: int) -> None:
        self._write(
            step, summary=Summary(value=[_text(name, value) if isinstance(value, str) else _scalar(name, value)])
        )

    def _write(self, step: int, **content: Any) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, **content))

    def close(self) -> None:
        self._writer.close()


def _scalar(name: str, value: float) -> Any:
    return Summary.Value(tag=name, simple_value=float(value))


def _text(name: str, text: str) -> Any:
    plugin = SummaryMetadata.PluginData(plugin_name="text", content=TextPluginData(version=0).SerializeToString())
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    return Summary.Value(
        tag=f"{name}/text_summary",
        metadata=SummaryMetadata(plugin_data=plugin),
        tensor=TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape),
    )
