"""The simulator's queues serve in the order of the scheduler's."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from freescale_pg.simulate.level_queue import LEVELS, Item, LevelQueue
from freescale_pg.simulate.send_queue import Chunk, SendQueue

ROOT = Path(__file__).parents[2]
AGING = 100

# Reads a line for each call and prints the front of every level after it.
DRIVER = """
#include <cstdint>
#include <deque>
#include <iostream>
#include <string>

#include "cpp/scheduler/level_queue.h"

struct Item {
  int level;
  uint64_t serial;
};

int main() {
  freescale::LevelQueue<Item> queue;
  std::deque<Item> items;
  std::string call;
  long long now, argument, serial;
  while (std::cin >> call >> now >> argument >> serial) {
    const int level = static_cast<int>(argument);
    if (call == "add") queue.add(&items.emplace_back(level, serial), now);
    if (call == "served") queue.served(level, now);
    if (call == "pop") queue.pop(level);
    if (call == "age") queue.age(level, now, 100);
    for (int i = 0; i < freescale::kPriorityLevels; ++i) {
      const Item* front = queue.front(i);
      std::cout << (front ? static_cast<long long>(front->serial) : -1) << ' ';
    }
    std::cout << '\\n';
  }
}
"""


def fronts(queue: LevelQueue) -> list[int]:
    items = [queue.front(level) for level in range(LEVELS)]
    return [-1 if item is None else item.serial for item in items]


def random_calls(count: int) -> tuple[list[str], list[list[int]]]:
    """Calls of a queue, and what its twin has at the front of each level after each."""
    chance = random.Random(1)
    queue, now = LevelQueue(), 0
    serials = iter(chance.sample(range(10 * count), count))
    lines, expected = [], []
    for _ in range(count):
        now += chance.choice([0, 1, 30, 99, 100])
        filled = [level for level in range(LEVELS) if queue.front(level) is not None]
        call = chance.choice(["add", "age", "served", "pop", "add"] if filled else ["add"])
        level = chance.choice(filled if call in ("pop", "served") else range(LEVELS))
        serial = next(serials) if call == "add" else 0
        match call:
            case "add":
                queue.add(Item(level, serial), now)
            case "served":
                queue.served(level, now)
            case "pop":
                queue.pop(level)
            case "age":
                queue.age(level, now, AGING)
        lines.append(f"{call} {now} {level} {serial}")
        expected.append(fronts(queue))
    return lines, expected


def test_level_queue_is_the_twin_of_the_schedulers(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source, program = tmp_path / "driver.cc", tmp_path / "driver"
    source.write_text(DRIVER)
    build = [compiler, "-std=c++20", "-O0", f"-I{ROOT}", str(source), "-o", str(program)]
    subprocess.run(build, check=True, timeout=100)
    lines, expected = random_calls(3000)
    told = subprocess.run(
        [program], input="\n".join(lines), check=True, capture_output=True, text=True, timeout=60
    ).stdout
    actual = [[int(word) for word in line.split()] for line in told.splitlines()]
    assert actual == expected
    # The calls reached every level, and let some item climb.
    assert all(any(front[level] >= 0 for front in expected) for level in range(LEVELS))


def drain(queue: SendQueue[str], chunks: int, now: float = 0.0) -> list[tuple[str, int]]:
    taken = [queue.take(now) for _ in range(chunks)]
    return [(chunk.message, chunk.peer) for chunk in taken if isinstance(chunk, Chunk)]


def test_most_urgent_goes_first_whatever_its_peer() -> None:
    """Protocol::move_chunks: all peers at a level, before any at the next."""
    queue: SendQueue[str] = SendQueue(3, 10)
    queue.add("bulk", 0, 4, 20, 0.0)
    queue.add("low", 1, 3, 10, 0.0)
    queue.add("urgent", 2, 0, 20, 0.0)
    order = drain(queue, 6)
    assert order == [("urgent", 2), ("urgent", 2), ("low", 1), ("bulk", 0), ("bulk", 0)]


def test_peers_of_a_level_take_turns_by_chunks() -> None:
    """Protocol::move_level: who comes after the last peer that got a chunk comes first."""
    queue: SendQueue[str] = SendQueue(3, 10)
    for peer, name in enumerate("abc"):
        queue.add(name, peer, 2, 20, 0.0)
    assert drain(queue, 6) == [("a", 0), ("b", 1), ("c", 2), ("a", 0), ("b", 1), ("c", 2)]
    queue.add("a", 0, 2, 10, 0.0)
    assert drain(queue, 1) == [("a", 0)]
    for peer, name in enumerate("ab"):
        queue.add(name, peer, 2, 10, 0.0)
    assert drain(queue, 2) == [("b", 1), ("a", 0)]


def test_one_peer_gets_the_oldest_message_of_a_level_first() -> None:
    """LevelQueue::front: by serial."""
    queue: SendQueue[str] = SendQueue(1, 10)
    queue.add("first", 0, 2, 20, 0.0)
    queue.add("second", 0, 2, 10, 0.0)
    assert [name for name, _ in drain(queue, 3)] == ["first", "first", "second"]


def test_urgent_message_waits_for_no_further_chunk() -> None:
    """Protocol::put_next: what is next is decided chunk by chunk."""
    queue: SendQueue[str] = SendQueue(1, 10)
    queue.add("bulk", 0, 4, 30, 0.0)
    assert drain(queue, 1) == [("bulk", 0)]
    queue.add("urgent", 0, 0, 15, 0.0)
    assert [name for name, _ in drain(queue, 4)] == ["urgent", "urgent", "bulk", "bulk"]


def test_last_chunk_is_what_is_left() -> None:
    queue: SendQueue[str] = SendQueue(1, 10)
    queue.add("message", 0, 2, 25, 0.0)
    chunks = [queue.take(0.0) for _ in range(4)]
    assert [(c.size, c.is_last) for c in chunks if c] == [(10, False), (10, False), (5, True)]
    assert chunks[3] is None


def test_starved_level_climbs_to_what_moves() -> None:
    """Protocol::relieve_starved: a level of a peer that got nothing for `aging` climbs by one."""
    queue: SendQueue[str] = SendQueue(2, 10, aging=AGING)
    queue.add("bulk", 0, 4, 10, 0.0)
    queue.add("urgent", 1, 0, 1000, 0.0)
    order = [queue.take(number * AGING / 2) for number in range(12)]
    served = [chunk.message for chunk in order if chunk is not None]
    # Levels 4 to 0 take four times the aging; then it competes with the urgent one in turn.
    assert served.index("bulk") == 9
