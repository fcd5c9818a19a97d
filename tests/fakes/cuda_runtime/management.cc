// A look-alike of libnvidia-ml.so.1. torch, which wants all of these functions or none, asks them
// whether memory can be shared between hosts (fabric handles): it cannot.

// A function returns nvmlReturn_t.
#define FAKE_NVML_EXPORT extern "C" __attribute__((visibility("default"))) int

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;

}  // namespace

FAKE_NVML_EXPORT nvmlInit_v2() { return kSuccess; }

FAKE_NVML_EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static char any = 0;
  *device = &any;
  return kSuccess;
}

// Callers begin with "not supported", and so it stays.
FAKE_NVML_EXPORT nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kSuccess; }

FAKE_NVML_EXPORT nvmlDeviceGetNvLinkRemoteDeviceType() { return kNotSupported; }
FAKE_NVML_EXPORT nvmlDeviceGetNvLinkRemotePciInfo_v2() { return kNotSupported; }
FAKE_NVML_EXPORT nvmlDeviceGetComputeRunningProcesses() { return kNotSupported; }
FAKE_NVML_EXPORT nvmlSystemGetCudaDriverVersion_v2() { return kNotSupported; }
