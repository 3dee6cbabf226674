"""What becomes of messages that were removed before they were read.

Rule 1: with failOnDataLoss (the default) a loss ends the query, and says what is lost.
Rule 2: without, each loss is a row of the table `lossLog`, a folder of JSON files that `spark.read.json` reads, or a
        warning in the log if there is no such folder. A row has a name of its own: a batch that is repeated adds none.
"""

import json
import logging
import posixpath
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from runnel.pipelines.connector.reading.ranges import Lost
from runnel.pipelines.errors import DataLoss

ADVICE = {
    "expired": "retention removed them before they were read",
    "rewound": "the log ends before them: the topic was made anew, or lost its end",
    "replaced": "the topic was deleted and made anew",
    "gone": "the partition is gone: its topic was deleted",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Losses:
    """Told of every loss. Tasks have it too: retention does not wait for them."""

    fail: bool
    folder: str = ""

    def __call__(self, lost: Lost) -> None:
        if self.fail:
            raise DataLoss(
                f"messages of {lost} can't be read: {ADVICE[lost.reason]}; "
                "give failOnDataLoss=false to go on without them"
            )
        if self.folder:
            self._write(lost)
        else:
            log.warning("messages of %s can't be read: %s", lost, ADVICE[lost.reason])

    def _write(self, lost: Lost) -> None:
        """Written beside its place first: readers of the folder see whole rows only."""
        from pyarrow.fs import FileSystem

        uri = self.folder if "://" in self.folder else Path(self.folder.removeprefix("file:")).absolute().as_uri()
        files, folder = FileSystem.from_uri(uri)
        files.create_dir(folder, recursive=True)
        topic, partition = lost.where
        name = f"{topic}-{partition}-{lost.first}-{lost.end}-{lost.reason}.json"
        row = {"topic": topic, "partition": partition, "first": lost.first, "end": lost.end, "reason": lost.reason}
        row["foundAt"] = datetime.now(UTC).isoformat()
        draft = posixpath.join(folder, f"_{name}")
        with files.open_output_stream(draft) as out:
            out.write(json.dumps(row).encode() + b"\n")
        files.move(draft, posixpath.join(folder, name))
