"""All rows, in the order in which they are asked: what everything else rests on comes first."""

from __future__ import annotations

from gpu_check.row import Row

_DRIVER_ROWS = (
    Row(
        "driver.spin",
        "Which copies go on while a kernel of this process fills every SM?",
        "Whether exchanges overlap with computing at all, and which copies between ranks of one "
        "device have to go by way of the host.",
        ("spin_copy",),
        limit=600.0,
    ),
    Row(
        "driver.spin_elsewhere",
        "The same, with the kernel in another process on the device.",
        "Whether ranks that share a device can exchange while one of them computes.",
        ("spin_copy", "other"),
        limit=600.0,
    ),
    Row(
        "driver.head_of_line",
        "Do copies that wait hold up others that are ready, with 1 to 40 streams?",
        "The way copies are submitted: ahead where they do not, by the proxy where they do; and "
        "how many streams may be used.",
        ("head_of_line",),
    ),
    Row(
        "driver.lock",
        "Which calls of the driver hang while another thread holds its lock (lazy loading)?",
        "Whether a proxy that calls the driver can deadlock with the program's own launches.",
        ("driver_lock",),
        environment={"CUDA_MODULE_LOADING": "LAZY"},
    ),
    Row(
        "driver.lock_eager",
        "The same, with CUDA_MODULE_LOADING=EAGER.",
        "Whether it is worth while to ask users for that setting.",
        ("driver_lock",),
        environment={"CUDA_MODULE_LOADING": "EAGER"},
    ),
    Row(
        "driver.flag_order",
        "Are bytes there when the word that follows them on the stream is?",
        "Whether a word in pinned memory may signal a copy to another process, the base of every "
        "exchange of device memory.",
        ("flag_order",),
        limit=300.0,
    ),
    Row(
        "driver.host_registration",
        "Can several processes register the same host memory, and do streams see its words?",
        "Whether all ranks of a host can share one segment of flags.",
        ("host_registration",),
    ),
    Row(
        "driver.poison",
        "Does a store of the host end a stream's waiting, also while the driver's lock is held?",
        "Whether an abort works: if not, a lost peer is a hang of the GPU.",
        ("poison",),
    ),
    Row(
        "driver.latency",
        "What do words and copies of each size cost?",
        "From which size on a copy is worth its own signal, and when small messages go by way of "
        "the host.",
        ("latency",),
    ),
    Row(
        "driver.chunks_ahead",
        "What do size and number of chunks in flight cost bulk and urgent copies, submitted ahead?",
        "The default size of a chunk, and the windows of CopyPacer.",
        ("chunk",),
    ),
    Row(
        "driver.chunks_proxy",
        "The same, handed over by the proxy.",
        "What the proxy costs where it has to be used.",
        ("chunk", "proxy"),
    ),
    Row(
        "driver.handles",
        "Can a process have more than 1000 allocations of another one open?",
        "Whether opened allocations must be closed by age, and what an uncached exchange costs.",
        ("handle",),
        limit=300.0,
    ),
    Row(
        "driver.freed_mapping",
        "What does a process see of memory that its owner has freed?",
        "How soon a peer has to be told that memory is gone.",
        ("freed_mapping",),
    ),
    Row(
        "driver.mapped_memory",
        "Can memory of expandable segments be shared?",
        "Whether PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is supported.",
        ("mapped_memory",),
    ),
    Row(
        "driver.capture",
        "Which operations of an exchange can be captured into a CUDA graph?",
        "Whether exchanges in graphs are possible without windows that are registered beforehand.",
        ("capture",),
    ),
)

_TORCH_ROWS = (
    Row(
        "torch.collectives",
        "Do all collectives give the right values?",
        "Whether the backend is right on GPUs.",
        ("collectives",),
        on_torch=True,
        limit=300.0,
    ),
    Row(
        "torch.order",
        "The same with asynchronous calls, side streams, several groups and all priorities.",
        "Whether the backend keeps the order of streams that torch promises.",
        ("order",),
        on_torch=True,
        limit=300.0,
    ),
    Row(
        "torch.reductions",
        "Do reductions by exchange give the right values, and the same bits on all ranks?",
        'Whether Options(reductions="exchange") is right on GPUs, also where ranks share one.',
        ("reductions", "--reductions=exchange"),
        on_torch=True,
        ranks=3,  # sums of two are the same in any order
        limit=300.0,
    ),
    Row(
        "torch.reductions_nccl",
        "Do reductions by NCCL give the right values?",
        "Whether calls are handed on to NCCL as they should be.",
        ("reductions", "--reductions=nccl"),
        on_torch=True,
        devices=2,
        limit=300.0,
    ),
    Row(
        "torch.ddp",
        "Does DistributedDataParallel give the gradients of one process, by exchange?",
        "Whether training works without NCCL, also where ranks share a GPU.",
        ("ddp", "--reductions=exchange"),
        on_torch=True,
        ranks=3,
        limit=300.0,
    ),
    Row(
        "torch.ddp_nccl",
        "The same by NCCL.",
        "Whether training works, whose reductions NCCL does.",
        ("ddp", "--reductions=nccl"),
        on_torch=True,
        devices=2,
        limit=300.0,
    ),
    Row(
        "torch.example",
        "Does the example with its sharded table train on GPUs as it does on the CPU?",
        "Whether ShardedEmbedding, its overlap and DDP work together on GPUs.",
        ("example", "--reductions=exchange"),
        on_torch=True,
        ranks=3,
        limit=300.0,
    ),
    Row(
        "torch.kernels",
        "How many kernels do our exchanges launch?",
        "Whether they are free of SMs, as promised for contiguous tensors. (Copies within one "
        "device may use SMs without being kernels: driver.spin.)",
        ("kernels",),
        on_torch=True,
        limit=300.0,
    ),
    Row(
        "torch.speed",
        "How long does an all-to-all take per size, compared with NCCL's?",
        "What is said about speed, and from which size on it pays.",
        ("speed",),
        on_torch=True,
        limit=600.0,
    ),
    Row(
        "torch.speed_zero_cta",
        "The same, compared with NCCL's copy-engine collectives (zero CTA).",
        "What we have that NCCL has not.",
        ("speed", "--zero-cta"),
        on_torch=True,
        devices=2,
        limit=600.0,
    ),
    Row(
        "torch.overlap",
        "How much slower are matrix products beside our all-to-all, and beside NCCL's?",
        "Whether the copy engines are worth it: the reason for all of this.",
        ("overlap",),
        on_torch=True,
        limit=600.0,
    ),
    Row(
        "torch.overlap_zero_cta",
        "The same, compared with NCCL's copy-engine collectives (zero CTA).",
        "Whether NCCL has the same advantage by now.",
        ("overlap", "--zero-cta"),
        on_torch=True,
        devices=2,
        limit=600.0,
    ),
    Row(
        "torch.urgent",
        "How long does an urgent exchange take beside bulk, compared with one alone?",
        "Whether priorities hold on GPUs.",
        ("urgent",),
        on_torch=True,
        limit=600.0,
    ),
)

ROWS = _DRIVER_ROWS + _TORCH_ROWS
