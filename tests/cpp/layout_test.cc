#include "cpp/scheduler/layout.h"

#include "tests/cpp/check.h"

namespace freescale {
namespace {

constexpr int64_t kMostElements = (int64_t{1} << 35) - 1;

void expect_same(const Layout& layout) {
  const Layout back = Layout::unpack(layout.pack());
  CHECK_EQ(back.root, layout.root);
  CHECK_EQ(back.reduction, layout.reduction);
  CHECK_EQ(back.tensors, layout.tensors);
  CHECK_EQ(back.elements, layout.elements);
  CHECK_EQ(back.by_host, layout.by_host);
}

}  // namespace

TEST(a_layout_survives_packing) {
  expect_same({});
  expect_same({.root = 0});
  expect_same({.root = 65534, .reduction = 8, .tensors = 254, .elements = kMostElements});
  expect_same({.reduction = 0, .tensors = 1, .elements = 1});
  expect_same({.tensors = 254, .elements = kMostElements, .by_host = true});
}

TEST(a_layout_that_says_nothing_is_zero) { CHECK_EQ(Layout{}.pack(), uint64_t{0}); }

TEST(too_many_tensors_do_not_spill_into_other_fields) {
  const Layout back = Layout::unpack(Layout{.root = 3, .tensors = 1000}.pack());
  CHECK_EQ(back.root, 3);
  CHECK_EQ(back.reduction, -1);
  CHECK_EQ(back.tensors, 255);
}

TEST(a_layout_describes_what_it_says) {
  CHECK_EQ(Layout({.root = 2}).describe(), std::string("root 2"));
  CHECK_EQ(Layout({.reduction = 4, .tensors = 1, .elements = 7}).describe(),
           std::string("MAX, 1 tensor, 7 elements"));
  CHECK_EQ(Layout({.by_host = true}).describe(), std::string("equal parts, gathered by host"));
  CHECK_EQ(Layout{}.describe(),
           std::string("no root, reduction, number of tensors or equal parts"));
}

}  // namespace freescale
