#pragma once

#include <c10/util/intrusive_ptr.h>

#include "backend/work.h"

namespace freescale {

// DDP waits for the works of a backward pass through their futures, in a callback at the end of
// that pass; nobody can look into a future's wait(). So when a future is asked for in a backward
// pass, this adds callbacks around those that come: what of the time between them a work took to
// end, it was waited for. Nothing is done while nobody wants to know of waits.
void note_future_in_backward(const c10::intrusive_ptr<Work>& work);

}  // namespace freescale
