"""Whether calls keep their place in the order of streams."""

from __future__ import annotations

import torch
import torch.distributed as dist

import freescale_pg as fs
from gpu_check.ranks.setting import Setting


def _elements(setting: Setting) -> int:
    return 20_000 if setting.short else 2_000_000


def _sent(setting: Setting, source: int, call: int) -> int:
    return 1 + source + setting.size * call


def _is_right(setting: Setting, output: torch.Tensor, call: int) -> bool:
    values = torch.tensor([_sent(setting, source, call) for source in range(setting.size)])
    expected = values.repeat_interleave(output.numel() // setting.size)
    return torch.equal(output.cpu(), expected)


def _input_is_written_late(setting: Setting) -> bool:
    """The kernel that writes the input runs after the call was made."""
    elements = _elements(setting) * setting.size
    source = torch.zeros(elements, dtype=torch.int64, device=setting.device)
    output = torch.zeros_like(source)
    setting.synchronize()
    with setting.side_stream():
        setting.delay()
        source.fill_(_sent(setting, setting.rank, 0))
        dist.all_to_all_single(output, source)
        # After the call, on its stream: must not be sent.
        source.fill_(-1)
        copy = output.clone()
        output.fill_(-1)
    setting.synchronize()
    return _is_right(setting, copy, 0)


def _memory_is_reused(setting: Setting) -> bool:
    """Tensors that nobody holds any more while their call is in flight."""
    elements = _elements(setting) * setting.size
    outputs, works = [], []
    for call in range(8):
        source = torch.full((elements,), _sent(setting, setting.rank, call), device=setting.device)
        output = torch.zeros_like(source)
        works.append(dist.all_to_all_single(output, source, async_op=True))
        outputs.append(output)
        # The allocator may give its memory to the next one.
        del source
    for work in works:
        assert work is not None
        work.wait()
    return all(_is_right(setting, output, call) for call, output in enumerate(outputs))


def _groups_and_priorities(setting: Setting) -> bool:
    """Calls of several groups at all priorities, waited for last to first, on several streams."""
    groups = [dist.new_group(backend="freescale") for _ in range(3)]
    elements = _elements(setting) * setting.size
    calls = []
    for call in range(3 * len(fs.Priority)):
        with setting.side_stream(), fs.priority(list(fs.Priority)[call % len(fs.Priority)]):
            source = torch.full(
                (elements,), _sent(setting, setting.rank, call), device=setting.device
            )
            output = torch.zeros_like(source)
            work = dist.all_to_all_single(output, source, group=groups[call % 3], async_op=True)
        assert work is not None
        calls.append((call, output, work))
    right = True
    for call, output, work in reversed(calls):
        work.wait()
        right = _is_right(setting, output, call) and right
    return right


def run(setting: Setting) -> None:
    """Tells whether each rule holds."""
    setting.expect(
        "a call waits for its input, and what follows for it", _input_is_written_late(setting)
    )
    setting.expect("memory of calls in flight is not reused", _memory_is_reused(setting))
    setting.expect("groups, priorities and streams do not mix", _groups_and_priorities(setting))
