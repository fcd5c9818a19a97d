#include <utility>

#include "backend/backend.h"
#include "backend/tensor_lists.h"
#include "backend/validate.h"
#include "cpp/collectives/collectives.h"

namespace freescale {

c10::intrusive_ptr<Work> Backend::start_send(const Call& call, int peer, uint32_t tag,
                                             const at::Tensor& tensor) {
  Staging staging;
  Plan plan = plan_send(peer, {staging.input(tensor)});
  return launch(call, std::move(plan), /*layout=*/{}, tag, {{tensor}, {}, {}, {}},
                std::move(staging),
                [](Engine& engine, Request request) { engine.submit(std::move(request)); });
}

c10::intrusive_ptr<Work> Backend::start_receive(const Call& call, int peer, uint32_t tag,
                                                const at::Tensor& tensor) {
  Staging staging;
  Plan plan = plan_receive(peer, {staging.output(tensor)});
  return launch(call, std::move(plan), /*layout=*/{}, tag, {{}, {tensor}, {}, {}},
                std::move(staging),
                [](Engine& engine, Request request) { engine.submit(std::move(request)); });
}

c10::intrusive_ptr<c10d::Work> Backend::send(std::vector<at::Tensor>& tensors, int peer, int tag) {
  const Call call = begin(OpKind::kSend, dtype_of(tensors), c10d::kUnsetTimeout, /*async_op=*/true,
                          /*numbered=*/false);
  check_count(call.site, "tensors", tensors.size(), 1, "the number of tensors must be");
  check_tensor(call.site, tensors[0], "the tensor");
  check_peer(call.site, peer, size_);
  check_tag(call.site, tag);
  return start_send(call, peer, static_cast<uint32_t>(tag), tensors[0]);
}

c10::intrusive_ptr<c10d::Work> Backend::receive_from(std::vector<at::Tensor>& tensors, int peer,
                                                     int tag) {
  Call call = begin(OpKind::kRecv, dtype_of(tensors), c10d::kUnsetTimeout, /*async_op=*/true,
                    /*numbered=*/false);
  call.from_anyone = peer == kAnySource;
  check_count(call.site, "tensors", tensors.size(), 1, "the number of tensors must be");
  check_output(call.site, tensors[0], "the tensor");
  if (peer != kAnySource) check_peer(call.site, peer, size_);
  check_tag(call.site, tag);
  return start_receive(call, peer, static_cast<uint32_t>(tag), tensors[0]);
}

c10::intrusive_ptr<c10d::Work> Backend::recv(std::vector<at::Tensor>& tensors, int peer, int tag) {
  const CallSite site{rank_, OpKind::kRecv, 0};
  check_peer(site, peer, size_);
  return receive_from(tensors, peer, tag);
}

c10::intrusive_ptr<c10d::Work> Backend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  return receive_from(tensors, kAnySource, tag);
}

}  // namespace freescale
