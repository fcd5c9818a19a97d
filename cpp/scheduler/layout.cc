#include "cpp/scheduler/layout.h"

#include <algorithm>
#include <iterator>

namespace freescale {
namespace {

// From the lowest bit up: elements, by_host, tensors, reduction + 1, root + 1.
constexpr int kElementBits = 35;
constexpr int kTensorBits = 8;
constexpr int kReductionBits = 4;
constexpr int kByHostShift = kElementBits;
constexpr int kTensorShift = kByHostShift + 1;
constexpr int kReductionShift = kTensorShift + kTensorBits;
constexpr int kRootShift = kReductionShift + kReductionBits;

constexpr uint64_t low_bits(int bits) { return (uint64_t{1} << bits) - 1; }

std::string reduction_text(int reduction) {
  constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                    "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  if (reduction < static_cast<int>(std::size(kNames))) return kNames[reduction];
  return "reduction " + std::to_string(reduction);
}

}  // namespace

uint64_t Layout::pack() const {
  const auto count = static_cast<uint64_t>(std::clamp<int64_t>(tensors, 0, low_bits(kTensorBits)));
  return (static_cast<uint64_t>(root + 1) << kRootShift) |
         ((static_cast<uint64_t>(reduction + 1) & low_bits(kReductionBits)) << kReductionShift) |
         (count << kTensorShift) | (static_cast<uint64_t>(by_host) << kByHostShift) |
         (static_cast<uint64_t>(elements) & low_bits(kElementBits));
}

Layout Layout::unpack(uint64_t packed) {
  Layout layout;
  layout.root = static_cast<int>(packed >> kRootShift) - 1;
  layout.reduction = static_cast<int>((packed >> kReductionShift) & low_bits(kReductionBits)) - 1;
  layout.tensors = static_cast<int>((packed >> kTensorShift) & low_bits(kTensorBits));
  layout.by_host = ((packed >> kByHostShift) & 1) != 0;
  layout.elements = static_cast<int64_t>(packed & low_bits(kElementBits));
  return layout;
}

std::string Layout::describe() const {
  std::string text;
  const auto add = [&text](const std::string& part) {
    if (!text.empty()) text += ", ";
    text += part;
  };
  if (root >= 0) add("root " + std::to_string(root));
  if (reduction >= 0) add(reduction_text(reduction));
  if (tensors > 0) add(std::to_string(tensors) + (tensors == 1 ? " tensor" : " tensors"));
  if (elements > 0 || reduction >= 0) add(std::to_string(elements) + " elements");
  if (by_host) add("equal parts, gathered by host");
  return text.empty() ? "no root, reduction, number of tensors or equal parts" : text;
}

}  // namespace freescale
