#include "tests/cpp/stand_in_pair.h"

#include <sys/socket.h>

#include <string>

#include "tests/cpp/processes.h"

namespace freescale::testing {

void on_two_processes(const Environment& environment, const PairBody& first,
                      const PairBody& second) {
  int ends[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd one(ends[0]), two(ends[1]);
  const auto run = [&](UniqueFd& mine, UniqueFd& other, const PairBody& body) {
    return ChildProcess([&] {
      other.reset();  // so that each notices when the other is gone
      StandIn stand_in(environment);
      body(stand_in, Channel(std::move(mine)));
    });
  };
  ChildProcess running_first = run(one, two, first);
  ChildProcess running_second = run(two, one, second);
  one.reset();
  two.reset();
  running_first.expect_success();
  running_second.expect_success();
}

void on_two_processes_each_version(const PairBody& first, const PairBody& second,
                                   Environment environment) {
  environment.emplace_back("FAKE_CUDA_VERSION", "");
  for (int version : kDriverVersions) {
    environment.back().second = std::to_string(version);
    on_two_processes(environment, first, second);
  }
}

}  // namespace freescale::testing
