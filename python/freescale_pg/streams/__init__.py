"""CUDA streams with a priority, and what a GPU can do. Needs cuda-python, see docs/streams.md.

>>> urgent = freescale_pg.streams.priority_stream(-5)
>>> with torch.cuda.stream(urgent):
...     scores = model(batch)
>>> print(freescale_pg.streams.device_info()[0])
"""

from freescale_pg.streams.device_info import DeviceInfo, Fact, device_info
from freescale_pg.streams.priority_stream import priority_range, priority_stream

__all__ = ["DeviceInfo", "Fact", "device_info", "priority_range", "priority_stream"]
