// Runs a fuzz target where libFuzzer is not to be had: each file of the corpus, then mutations of
// them. It knows nothing of coverage, so it finds less; but the same seed does the same again.
// Takes the options of libFuzzer that it knows, in its spelling, and ignores the others:
//
//   mailbox_fuzz [-runs=N] [-max_total_time=SECONDS] [-seed=N] [-max_len=BYTES] [FILE or FOLDER]...
//
// An input that crashes is left in the current folder.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sanitizer/common_interface_defs.h>
#define FREESCALE_SANITIZED 1
#endif

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

constexpr unsigned kLimitSeconds = 25;  // for one input: a target that hangs is a finding

struct Options {
  uint64_t runs = 0;
  uint64_t seconds = 0;
  uint64_t seed = 1;
  size_t longest = 1024;
  std::vector<std::filesystem::path> corpus;
};

Bytes current;  // read by those who are called when the target dies

void keep_input(const char* what) {
  // The process ends here in any case, so whether these calls are safe matters little.
  std::string name = what;
  name += "-" + std::to_string(getpid());
  std::ofstream(name, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()),
             static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input of %zu bytes is in %s\n", current.size(), name.c_str());
}

void on_signal(int number) {
  keep_input(number == SIGALRM ? "timeout" : "crash");
  signal(number, SIG_DFL);
  raise(number);
}

void watch_for_death() {
  signal(SIGALRM, on_signal);
  signal(SIGABRT, on_signal);
#ifdef FREESCALE_SANITIZED
  __sanitizer_set_death_callback([] { keep_input("crash"); });
#else
  signal(SIGSEGV, on_signal);
  signal(SIGBUS, on_signal);
#endif
}

void run(const Bytes& input) {
  current = input;
  alarm(kLimitSeconds);
  // A copy of its own size, so that AddressSanitizer sees reads beyond it.
  const Bytes exact(current.begin(), current.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  alarm(0);
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Bytes> read_corpus(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::filesystem::path> files;
  for (const auto& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry);
  }
  std::sort(files.begin(), files.end());  // a folder has no order, and a seed has to repeat itself
  std::vector<Bytes> corpus;
  for (const auto& file : files) corpus.push_back(read_file(file));
  return corpus;
}

class Mutator {
 public:
  explicit Mutator(const Options& options) : longest_(options.longest), random_(options.seed) {}

  size_t below(size_t limit) { return random_() % limit; }

  Bytes mutate(const std::vector<Bytes>& pool) {
    Bytes bytes = pool[below(pool.size())];
    for (size_t changes = 1 + below(6); changes > 0; --changes) change(bytes, pool);
    if (bytes.size() > longest_) bytes.resize(longest_);
    return bytes;
  }

 private:
  void change(Bytes& bytes, const std::vector<Bytes>& pool) {
    constexpr uint8_t kTelling[] = {0, 1, 2, 63, 64, 127, 128, 191, 192, 239, 240, 254, 255};
    const size_t place = below(bytes.size() + 1);
    const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(place);
    switch (below(6)) {
      case 0:
        if (at != bytes.end()) *at ^= static_cast<uint8_t>(1 << below(8));
        return;
      case 1:
        if (at != bytes.end()) *at = kTelling[below(std::size(kTelling))];
        return;
      case 2:
        bytes.insert(at, 1 + below(8), kTelling[below(std::size(kTelling))]);
        return;
      case 3:
        bytes.insert(at, static_cast<uint8_t>(random_()));
        return;
      case 4:
        bytes.erase(at, at + static_cast<std::ptrdiff_t>(below(bytes.size() - place + 1)));
        return;
      default:
        return splice(bytes, place, pool[below(pool.size())]);
    }
  }

  void splice(Bytes& bytes, size_t place, Bytes other) {
    const size_t from = below(other.size() + 1);
    const size_t length = below(other.size() - from + 1);
    const auto start = other.begin() + static_cast<std::ptrdiff_t>(from);
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(place), start,
                 start + static_cast<std::ptrdiff_t>(length));
  }

  const size_t longest_;
  std::mt19937_64 random_;
};

// Some mutations replace members of the pool, so that later ones start further away.
uint64_t run_mutations(const Options& options, std::vector<Bytes> pool) {
  Mutator mutator(options);
  pool.resize(std::max<size_t>(pool.size(), 64));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options.seconds);
  uint64_t count = 0;
  const auto more = [&] {
    if (options.runs > 0 && count >= options.runs) return false;
    return options.seconds == 0 || std::chrono::steady_clock::now() < end;
  };
  for (; more(); ++count) {
    Bytes input = mutator.mutate(pool);
    run(input);
    if (mutator.below(16) == 0) pool[mutator.below(pool.size())] = std::move(input);
  }
  return count;
}

Options parse(int argc, char** argv) {
  Options options;
  const auto number = [](std::string_view text, std::string_view name, auto* value) {
    if (!text.starts_with(name)) return;
    *value = std::strtoull(text.data() + name.size(), nullptr, 10);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    if (!text.starts_with("-")) options.corpus.emplace_back(text);
    number(text, "-runs=", &options.runs);
    number(text, "-max_total_time=", &options.seconds);
    number(text, "-seed=", &options.seed);
    number(text, "-max_len=", &options.longest);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  watch_for_death();
  const std::vector<Bytes> corpus = read_corpus(options.corpus);
  for (const Bytes& input : corpus) run(input);
  uint64_t mutations = 0;
  if (options.runs > 0 || options.seconds > 0) mutations = run_mutations(options, corpus);
  std::printf("%zu inputs of the corpus and %llu mutations: nothing found\n", corpus.size(),
              static_cast<unsigned long long>(mutations));
  return 0;
}
