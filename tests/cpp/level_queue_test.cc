#include "cpp/scheduler/level_queue.h"

#include <vector>

#include "tests/cpp/check.h"

namespace freescale {
namespace {

struct Item {
  int level;
  uint64_t serial;
};

constexpr Nanoseconds kAging = 100;

TEST(level_queue_gives_the_oldest_of_a_level) {
  LevelQueue<Item> queue;
  Item items[] = {{2, 5}, {2, 3}, {2, 9}, {0, 7}};
  for (Item& item : items) queue.add(&item, 0);
  CHECK(queue.front(0) == &items[3]);
  CHECK(queue.front(1) == nullptr);
  for (uint64_t serial : {3u, 5u, 9u}) {
    CHECK_EQ(queue.front(2)->serial, serial);
    queue.pop(2);
  }
  CHECK(!queue.empty());
  queue.pop(0);
  CHECK(queue.empty());
}

TEST(level_queue_starved_level_sends_its_oldest_up) {
  LevelQueue<Item> queue;
  Item old{4, 1};
  Item young{4, 2};
  queue.add(&young, 1000);
  queue.add(&old, 1050);
  queue.age(0, 1099, kAging);
  CHECK_EQ(old.level, 4);
  queue.age(0, 1100, kAging);
  CHECK_EQ(old.level, 3);
  CHECK_EQ(young.level, 4);
  CHECK(queue.front(3) == &old);
  CHECK(queue.front(4) == &young);
}

TEST(level_queue_climbs_one_level_at_a_time_to_the_top) {
  LevelQueue<Item> queue;
  Item item{4, 1};
  queue.add(&item, 0);
  for (int step = 1; step <= 4; ++step) {
    queue.age(0, step * kAging - 1, kAging);
    CHECK_EQ(item.level, 5 - step);
    queue.age(0, step * kAging, kAging);
    CHECK_EQ(item.level, 4 - step);
  }
  queue.age(0, 10 * kAging, kAging);
  CHECK_EQ(item.level, 0);
}

// Work that queues behind its own kind must not climb: its level gets chunks.
TEST(level_queue_served_level_does_not_age) {
  LevelQueue<Item> queue;
  Item front{3, 1};
  Item behind{3, 2};
  queue.add(&front, 0);
  queue.add(&behind, 0);
  for (Nanoseconds now = 0; now < 20 * kAging; now += kAging / 2) {
    queue.served(3, now);
    queue.age(0, now, kAging);
  }
  CHECK_EQ(front.level, 3);
  CHECK_EQ(behind.level, 3);
}

TEST(level_queue_ages_only_below_what_is_served) {
  LevelQueue<Item> queue;
  Item items[] = {{1, 1}, {2, 2}, {3, 3}};
  for (Item& item : items) queue.add(&item, 0);
  queue.age(2, 5 * kAging, kAging);
  CHECK_EQ(items[0].level, 1);
  CHECK_EQ(items[1].level, 2);
  CHECK_EQ(items[2].level, 2);
}

TEST(level_queue_empty_time_is_not_starvation) {
  LevelQueue<Item> queue;
  Item item{2, 1};
  queue.add(&item, 50 * kAging);
  queue.age(0, 50 * kAging + 1, kAging);
  CHECK_EQ(item.level, 2);
}

TEST(level_queue_remove_if_counts) {
  LevelQueue<Item> queue;
  std::vector<Item> items;
  for (int i = 0; i < 20; ++i) items.push_back({i % kPriorityLevels, static_cast<uint64_t>(i)});
  for (Item& item : items) queue.add(&item, 0);
  queue.remove_if([](const Item* item) { return item->serial % 2 == 0; });
  CHECK(!queue.empty());
  for (int level = 0; level < kPriorityLevels; ++level) {
    while (const Item* item = queue.front(level)) {
      CHECK_EQ(item->serial % 2, 1u);
      CHECK_EQ(item->level, level);
      queue.pop(level);
    }
  }
  CHECK(queue.empty());
}

}  // namespace
}  // namespace freescale
