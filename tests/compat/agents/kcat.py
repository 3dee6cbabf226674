"""The agent of kcat: it runs the command line tool, and reads what that prints."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from itertools import groupby
from typing import IO, Any

from tests.compat.agents.loop import Driver, Json, Partition, Refusal, record, serve, unhex

FORMAT = r"%p %o %T %K %S %h\n%k%s\n"  # sizes first, so that keys and values may hold any byte
KEY_END, MESSAGE_END = "\x1f", "\x1e"
ASSIGNED = re.compile(r"\S+ \[\d+\]")


class Kcat(Driver):
    """kcat, asked for what a command line can say."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.member: subprocess.Popen[bytes] | None = None
        self.found: queue.Queue[Json] = queue.Queue()
        self.held: set[Partition] = set()

    def refusal(self, error: Exception) -> Refusal:
        return Refusal(None, repr(error))

    def _run(self, *arguments: str, data: bytes = b"") -> bytes:
        done = subprocess.run(["kcat", "-b", self.bootstrap, *arguments], input=data, capture_output=True, check=False)
        if done.returncode:
            raise Refusal(None, done.stderr.decode(errors="replace"))
        return done.stdout

    def produce(self, topic: str, records: list[Json], codec: str, acks: int, options: Json) -> list[list[int]]:
        def run_of(item: Json) -> tuple[Any, ...]:
            return item["partition"], item["headers"], item["value"] is None

        settings = {"acks": acks, "enable.idempotence": str(options.get("idempotent", False)).lower()}
        for (partition, headers, tombstone), items in groupby(records, run_of):
            place = [] if partition is None else ["-p", str(partition)]
            named = [f"-H{name}={(unhex(value) or b'').decode()}" for name, value in headers]
            extra = [f"-X{name}={value}" for name, value in (settings | options.get("native", {})).items()]
            data = b"".join(self._line(item) for item in items)
            nulls = ["-Z"] if tombstone else []
            ends = ["-K", KEY_END, "-D", MESSAGE_END]
            self._run("-P", "-t", topic, "-z", codec, *place, *named, *extra, *nulls, *ends, data=data)
        return [[-1, -1] for _ in records]

    @staticmethod
    def _line(item: Json) -> bytes:
        key, value = unhex(item["key"]), unhex(item["value"]) or b""
        return (b"" if key is None else key + KEY_END.encode()) + value + MESSAGE_END.encode()

    def read(self, topic: str, partitions: list[int], isolation: str) -> list[Json]:
        found: list[Json] = []
        level = f"-Xisolation.level={isolation}"
        for number in partitions:
            output = self._run("-C", "-t", topic, "-p", str(number), "-o", "beginning", "-e", "-q", level, "-f", FORMAT)
            found.extend(_parse(output))
        return found

    def offsets(self, topic: str, partition: int, timestamp: int) -> Json:
        asked = {"earliest": -2, "latest": -1, "at": timestamp}
        answer = {}
        for name, time in asked.items():
            output = self._run("-Q", "-t", f"{topic}:{partition}:{time}").decode()
            offset = int(output.rsplit(" ", 1)[1])
            answer[name] = None if offset < 0 else offset
        return answer

    # --- a member of a group
    def join(self, group: str, topics: list[str], options: Json) -> None:
        settings = {
            "auto.offset.reset": options.get("reset", "earliest"),
            "session.timeout.ms": options.get("session_ms", 6000),
            "heartbeat.interval.ms": 500,
            "auto.commit.interval.ms": 100,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        native = [f"-X{name}={value}" for name, value in settings.items()]
        wanted = [options["pattern"]] if "pattern" in options else topics
        command = ["kcat", "-b", self.bootstrap, *native, "-f", FORMAT, "-u", "-G", group, *wanted]
        self.member = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.member.stdout is not None
        assert self.member.stderr is not None
        threading.Thread(target=self._watch_records, args=(self.member.stdout,), daemon=True).start()
        threading.Thread(target=self._watch_assignments, args=(self.member.stderr,), daemon=True).start()
        self.joined = True

    def _watch_records(self, output: IO[bytes]) -> None:
        while head := output.readline():
            sizes = [max(0, int(size)) for size in head.split(b" ", 5)[3:5]]
            for item in _parse(head + output.read(sum(sizes) + 1)):
                self.found.put(item)

    def _watch_assignments(self, output: IO[bytes]) -> None:
        for line in output:
            text = line.decode(errors="replace")
            sys.stderr.write(text)
            if "assigned:" in text:
                names = ASSIGNED.findall(text.split("assigned:", 1)[1])
                self.held = {(name.split(" ")[0], int(name.split("[")[1][:-1])) for name in names}
            elif "revoked:" in text:
                self.held = set()

    def poll(self) -> tuple[list[Json], set[Partition]]:
        found: list[Json] = []
        try:
            found.append(self.found.get(timeout=0.1))
        except queue.Empty:
            return found, self.held
        while not self.found.empty():
            found.append(self.found.get())
        return found, self.held

    def leave(self) -> None:
        assert self.member is not None
        os.kill(self.member.pid, signal.SIGTERM)
        self.member.wait(30)
        self.joined = False
        self.held = set()
        self.found = queue.Queue()

    # --- administration
    def list_topics(self) -> list[str]:
        return sorted(re.findall(r'^  topic "(.*)" with', self._run("-L").decode(), re.MULTILINE))

    def describe_topic(self, topic: str) -> Json:
        text = self._run("-L", "-t", topic).decode()
        leaders = [int(leader) for leader in re.findall(r"partition \d+, leader (\d+)", text)]
        return {"partitions": len(leaders), "leaders": leaders}

    def describe_cluster(self) -> Json:
        text = self._run("-L").decode()
        found = re.findall(r"broker (\d+) at (\S+):(\d+)( \(controller\))?", text)
        controller = next(int(number) for number, _, _, leads in found if leads)
        return {"brokers": [[int(n), host, int(port)] for n, host, port, _ in found], "controller": controller}


def _parse(output: bytes) -> list[Json]:
    found, position = [], 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        partition, offset, timestamp, key_size, value_size, headers = output[position:line_end].split(b" ", 5)
        key_end = line_end + 1 + max(0, int(key_size))
        value_end = key_end + max(0, int(value_size))
        key = None if int(key_size) < 0 else output[line_end + 1 : key_end]
        value = None if int(value_size) < 0 else output[key_end:value_end]
        named = [pair.split("=", 1) for pair in headers.decode().split(",") if pair]
        pairs = [(name, None if text == "NULL" else text.encode()) for name, text in named]
        found.append(record(int(partition), int(offset), int(timestamp), key, value, pairs))
        position = value_end + 1
    return found


if __name__ == "__main__":
    serve(Kcat(sys.argv[1]))
