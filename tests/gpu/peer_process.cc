#include "tests/gpu/peer_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace freescale::probe {

PeerProcess::PeerProcess(const std::function<void(const Channel&)>& body) : channel_(UniqueFd()) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    require(Status::from_errno("socketpair", errno));
  }
  UniqueFd mine(sockets[0]);
  UniqueFd theirs(sockets[1]);
  pid_ = fork();
  if (pid_ < 0) require(Status::from_errno("fork", errno));
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mine.reset();
    body(Channel(std::move(theirs)));
    std::_Exit(EXIT_SUCCESS);
  }
  channel_ = Channel(std::move(mine));
}

void PeerProcess::join() {
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) require(Status::from_errno("waitpid", errno));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS) {
    give_up("the other process of the probe has failed");
  }
}

}  // namespace freescale::probe
