"""What the numbers of each mode mean: shown by ``freescale bench <mode> --help``."""

COLLECTIVES = """\
All contestants live in the same processes and take turns in a shuffled order, so that other load on
the machine hits all alike. What a number means:

* *size* is the bytes of one rank's input tensor, so each of W peers gets size / W in an
  all-to-all and an all-gather's output has W * size bytes.
* a *time* is from the moment a rank enters the call (all leave a barrier together) until it
  returns; of the ranks the slowest counts; the median over the rounds is printed. With CUDA tensors
  the device is idle at the beginning, and the time lasts until it is idle again
  (torch.cuda.synchronize): the launch of the call and the waiting for the device are in it.
* *GB/s* is the output bytes of the rank that receives most, its own part included, over that time.
* *limit* is a copy of those bytes out of memory shared with the source, all ranks at once. With
  CUDA tensors it is one copy of as many bytes on the rank's own device.
* *floor* is torch's dispatch of a call that does nothing, and then the limit's copies: what a torch
  backend called from Python cannot go below. MPI is called past that dispatch. CPU tensors only.
* *vs x* is the time of x over the time of freescale: above 1, freescale is faster.

Ranks of several hosts share no memory: they meet over the network before each call, which adds up
to its latency to the times, and there is neither limit nor floor.

Each contestant's result is checked once per cell, on poisoned outputs with data that differs by
rank and element. One whose result is wrong, or whose call fails, is left out of the cell; one that
fails on some ranks only is left out from then on, since its ranks may be out of step. A call that
fails later, while it is timed, ends the run.
"""

PRIORITY = """\
Each backend gets two groups of all ranks. For freescale their priorities are URGENT and
BACKGROUND; others have no priorities and show what the machine does without them. Three kinds of
trial take turns in a shuffled order, all on one schedule: the main thread sleeps until the next
tick (--rate ticks a second), meets the other ranks in a barrier, and then

* *idle*: makes an urgent all_to_all_single; nothing else is in flight;
* *loaded*: the same, with a bulk all_to_all_single in flight since before the first tick;
* *bulk*: does nothing at the ticks, with the bulk exchange in flight.

Urgent latency is from the moment the last rank enters the call until the last rank has returned
(between hosts, whose clocks differ: the longest time that a rank spends in the call); calls that
the bulk exchange did not outlast on every rank are left out (*missed*). Bulk time is from its issue
until its future is set, on the slowest rank; its loss compares *loaded* with *bulk*. Medians are
printed. Sizes are bytes of a rank's input. Both exchanges of a backend are checked once, on
poisoned outputs. A bulk exchange that is over before the first tick is met by no call: give a
larger --bulk or --rate.

With CUDA tensors each exchange has a stream of its own, and its time is that of the stream, by CUDA
events recorded before the call and behind the wait() for it: of the ranks the longest one counts.
The launch of an urgent call is in it, as its stream is idle when it begins; the host waits for its
end before the next tick. A backend whose wait() holds up the host until the bytes have moved, as
gloo's does, has no calls beside its bulk exchange.
"""

OVERLAP = """\
Every rank looks up --ids different ids of --dim float32 in each step, in a table dealt to
all ranks, and sends their gradients back. Computing (30 % forward, 60 % backward, 10 % optimizer)
is a sleep: it takes no CPU, as it would not with a GPU, and lasts --compute times as long as
the link needs for the ids, vectors and gradients of a step. *Shared* is the part of a batch's rows
that the batch before had as well.

The link has a given rate: freescale's by FREESCALE_EMULATED_LINK_RATE, those of others on
network namespaces with the kernel's token bucket (root and iproute2; else they are left out). Rates
are low so that what few cores need for copying is small beside them; what matters is the ratio of
computing to exchange.

With --device cuda tables and ids are on the device, links are what they are (their rate is measured
first, on an exchange of a batch's vectors), and computing is a kernel of one thread that keeps the
stream of the step busy. All times of a step are those of that stream, by CUDA events: it waits
where a wait() holds it up, and where the host waits for the thread that fetches rows beside the
step. What it does while it waits for the host is in *rest*. The exchange of the shared rows'
vectors alone has the time that the engine knows, from when the last host has asked: what its
streams have to do before is in *urgent ms*, and not in *idle ms*.

*Exposed* is the time for which a step waits for messages, of the rank that waits longest, median
over the steps. *Rest* is what is left beside it and the sleeps: processor time of look-ups and
copies, which a device would do beside its other work. The freescale schedules take turns in the
same processes, a few steps each, whose first two are not counted. *blocking*: ids, vectors and
gradients when they are needed. *FIFO*: the overlapped schedule with one priority for all messages.
*prioritised*: with the priorities of freescale_pg.embedding.overlap. *Urgent ms* is how long the
exchange of the shared rows' vectors takes from the moment the last rank asks, and *idle ms* what it
takes on links with nothing else to do; the difference should be no more than a chunk that is on the
wire (*chunk ms*). All ranks are on one host.
"""
