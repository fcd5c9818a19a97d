#pragma once

namespace freescale::probe {

// Threads in a block of fs_fill: a divisor of what an SM holds on every architecture (1536, 2048).
inline constexpr unsigned kFillThreads = 512;

// fs_fill: the first thread of each block counts the block in `started`, and polls `until` until it
// is not zero or `limit_ns` have passed; the others wait for it, and so keep their places on the
// SM. Both words are pinned memory of the host. fs_empty: does nothing.
//
// Written by hand, for every device from sm_80 on; `ptxas -arch=sm_90` compiles it.
inline constexpr char kKernelCode[] = R"(
.version 7.0
.target sm_80
.address_size 64

.visible .entry fs_fill(
    .param .u64 until,
    .param .u64 started,
    .param .u64 limit_ns
)
.maxntid 512, 1, 1
{
    .reg .pred %over;
    .reg .u32 %thread, %word, %old;
    .reg .u64 %until, %started, %limit, %begin, %now, %spent;

    mov.u32 %thread, %tid.x;
    setp.ne.u32 %over, %thread, 0;
    @%over bra TOGETHER;

    ld.param.u64 %until, [until];
    ld.param.u64 %started, [started];
    ld.param.u64 %limit, [limit_ns];
    cvta.to.global.u64 %until, %until;
    cvta.to.global.u64 %started, %started;
    mov.u64 %begin, %globaltimer;
    atom.global.sys.add.u32 %old, [%started], 1;
LOOK:
    ld.volatile.global.u32 %word, [%until];
    setp.ne.u32 %over, %word, 0;
    @%over bra TOGETHER;
    mov.u64 %now, %globaltimer;
    sub.u64 %spent, %now, %begin;
    setp.lt.u64 %over, %spent, %limit;
    @%over bra LOOK;
TOGETHER:
    bar.sync 0;
    ret;
}

.visible .entry fs_empty()
{
    ret;
}
)";

}  // namespace freescale::probe
