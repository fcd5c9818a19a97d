#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace freescale {

// While alive, ATen calls of this thread go straight to the kernels. Completions run on whichever
// thread moved the last byte, so they must not be recorded by that thread's autograd, cast by its
// autocast or caught by its dispatch modes (which would also need the GIL).
class PlainDispatch {
 public:
  PlainDispatch()
      : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
               c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::default_excluded_set) {}

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

}  // namespace freescale
