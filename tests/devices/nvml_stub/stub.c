/* A libnvidia-ml.so.1 without a GPU: answers what a control file says.
 *
 * The file is named by NVML_STUB_CONTROL and read again at every call, so a test changes it while
 * the program runs.  One "key value" a line; keys that end in .N are about GPU N:
 *
 *   count 8                 how many GPUs there are (8)
 *   init 18                 what nvmlInit answers (0; 9 = driver not loaded, 18 = version mismatch)
 *   total.N bytes           memory of a GPU (141 GiB)
 *   used.N bytes            memory in use (the sum of its processes)
 *   reserved.N bytes        memory that the driver keeps for itself (0); the first version of the call has it in use
 *   memory_v2.N code        what the second version of the call answers (0; 13 = the driver has no such call)
 *   used_v2.N 1             in the second version too, memory in use has the reserved memory in it, as older drivers say
 *   utilization.N percent   (0)    temperature.N C  (40)    power.N mW  (100000)    energy.N mJ  (0)    mig.N 1  (0)
 *   error.N code            what every call about the GPU answers (0; 15 = lost, 999 = unknown)
 *   open.N code             what opening it answers (0)
 *   driver 535              the first number of the driver's version (570), minor 86 the second (0)
 *   capability.N 75         compute capability of a GPU, ten times (90)
 *   hang.N seconds          each call about it takes so long (0);  hang seconds: each call to the driver
 *   process.N pid bytes     a process on it; may be repeated
 *   xid.N number            an error it reports; may be repeated.  Lines that are added later come later, each once
 *   throttle.N mask         what slows its clocks down, as nvmlClocksThrottleReasons (0)
 *   slice.N profile GiB     a MIG slice of GPU N, which has mig.N 1; may be repeated.  The k-th slice (from 0) is GPU
 *                           number 100 * (N + 1) + k in the keys above
 *   vanish N                GPU N is gone: those after it move up by one index, UUIDs stay
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TIMEOUT 10
#define INSUFFICIENT_SIZE 7
#define UNINITIALIZED 1
#define ARGUMENT_VERSION_MISMATCH 25
#define MEMORY_V2 (sizeof(MemoryV2) | 2U << 24)
#define GIB (1ULL << 30)

typedef struct { int number; } Gpu;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

#define SLICES_FROM 100
#define MOST_SLICES 8

static Gpu gpus[64];
static Gpu slices[64][MOST_SLICES];
static int started;

/* Calls visit for each line "key value"; value is the rest of the line. */
static void each_line(const char *key, void (*visit)(const char *value, void *into), void *into) {
    const char *path = getenv("NVML_STUB_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    size_t length = strlen(key);
    if (!file) return;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') visit(line + length + 1, into);
    fclose(file);
}

static void take_number(const char *value, void *into) { *(long long *)into = strtoll(value, NULL, 10); }

static long long driver_value(const char *key, long long otherwise) {
    each_line(key, take_number, &otherwise);
    return otherwise;
}

static long long value_of(const char *key, int number, long long otherwise) {
    char name[64];
    snprintf(name, sizeof name, "%s.%d", key, number);
    return driver_value(name, otherwise);
}

static void pause_for(long long seconds) {
    if (seconds > 0) sleep((unsigned)seconds);
}

static int ask_driver(void) {
    pause_for(driver_value("hang", 0));
    return started ? SUCCESS : UNINITIALIZED;
}

struct cut { int wanted, seen, gib; char profile[32]; };

static void take_slice(const char *value, void *into) {
    struct cut *cut = into;
    struct cut one = {0, 0, 0, ""};
    if (sscanf(value, "%31s %d", one.profile, &one.gib) != 2) return;
    if (cut->seen++ == cut->wanted) {
        cut->gib = one.gib;
        memcpy(cut->profile, one.profile, sizeof cut->profile);
    }
}

/* The line of a slice; gib is 0 where there is no such slice (any more). */
static struct cut cut_of(int number) {
    struct cut cut = {number % SLICES_FROM, 0, 0, ""};
    char key[64];
    snprintf(key, sizeof key, "slice.%d", number / SLICES_FROM - 1);
    each_line(key, take_slice, &cut);
    return cut;
}

static int ask(const Gpu *gpu) {
    if (gpu->number >= SLICES_FROM && !cut_of(gpu->number).gib) return NOT_FOUND;
    pause_for(value_of("hang", gpu->number, 0));
    return (int)value_of("error", gpu->number, SUCCESS);
}

static void count_vanished(const char *value, void *into) { (void)value; ++*(int *)into; }

static void skip_vanished(const char *value, void *into) {
    int *state = into; /* index, then one flag for each GPU */
    int number = atoi(value);
    if (number >= 0 && number < 64) state[1 + number] = 1;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pause_for(driver_value("hang", 0));
    int answer = (int)driver_value("init", SUCCESS);
    started = answer == SUCCESS;
    return answer;
}

int nvmlShutdown(void) { started = 0; return SUCCESS; }

const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "%lld.%lld.00-stub", driver_value("driver", 570), driver_value("minor", 0));
    return ask_driver();
}

int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    long long capability = value_of("capability", gpu->number, 90);
    *major = (int)(capability / 10);
    *minor = (int)(capability % 10);
    return ask(gpu);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int vanished = 0, answer = ask_driver();
    int init = (int)driver_value("init", SUCCESS);
    each_line("vanish", count_vanished, &vanished);
    *count = (unsigned)(driver_value("count", 8) - vanished);
    return init ? init : answer;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    int state[65] = {0};
    unsigned left = index;
    each_line("vanish", skip_vanished, state);
    for (int number = 0; number < driver_value("count", 8) && number < 64; number++) {
        if (state[1 + number]) continue;
        if (left-- == 0) {
            gpus[number].number = number;
            *gpu = &gpus[number];
            return (int)value_of("open", number, SUCCESS);
        }
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(const Gpu *gpu, char *text, unsigned size) {
    const char *kind = gpu->number < SLICES_FROM ? "GPU" : "MIG";
    snprintf(text, size, "%s-00000000-0000-0000-0000-%012d", kind, gpu->number);
    return SUCCESS;
}

int nvmlDeviceGetName(const Gpu *gpu, char *text, unsigned size) {
    if (gpu->number < SLICES_FROM) snprintf(text, size, "NVIDIA H200");
    else snprintf(text, size, "NVIDIA H200 MIG %s", cut_of(gpu->number).profile);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(const Gpu *gpu, unsigned *count) {
    (void)gpu;
    *count = MOST_SLICES;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(const Gpu *gpu, unsigned index, Gpu **slice) {
    if (index >= MOST_SLICES) return INVALID_ARGUMENT;
    *slice = &slices[gpu->number][index];
    (*slice)->number = SLICES_FROM * (gpu->number + 1) + (int)index;
    return cut_of((*slice)->number).gib ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetMinorNumber(const Gpu *gpu, unsigned *minor) { *minor = (unsigned)gpu->number; return SUCCESS; }

int nvmlDeviceGetPciInfo_v3(const Gpu *gpu, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "0000ABCD:%02X:00.0", (unsigned)gpu->number);
    return SUCCESS;
}

int nvmlDeviceGetNumaNodeId(const Gpu *gpu, int *node) { *node = gpu->number / 4; return SUCCESS; }

int nvmlDeviceGetMigMode(const Gpu *gpu, unsigned *now, unsigned *pending) {
    *now = *pending = (unsigned)value_of("mig", gpu->number, 0);
    return SUCCESS;
}

/* Pairs: 0-1, 2-3, ... */
int nvmlDeviceGetP2PStatus(const Gpu *one, const Gpu *other, int capability, int *status) {
    *status = capability == 2 && one->number / 2 == other->number / 2 ? 0 : 5;
    return SUCCESS;
}

struct processes { Process *list; unsigned room, count; unsigned long long bytes; };

static void take_process(const char *value, void *into) {
    struct processes *found = into;
    unsigned pid = 0;
    unsigned long long bytes = 0;
    if (sscanf(value, "%u %llu", &pid, &bytes) != 2) return;
    if (found->count < found->room) found->list[found->count] = (Process){pid, bytes, ~0U, ~0U};
    found->count++;
    found->bytes += bytes;
}

static struct processes processes_on(const Gpu *gpu, Process *list, unsigned room) {
    struct processes found = {list, room, 0, 0};
    char key[64];
    snprintf(key, sizeof key, "process.%d", gpu->number);
    each_line(key, take_process, &found);
    return found;
}

static MemoryV2 memory_of(const Gpu *gpu) {
    struct processes found = processes_on(gpu, NULL, 0);
    long long gib = gpu->number < SLICES_FROM ? 141 : cut_of(gpu->number).gib;
    MemoryV2 memory = {0};
    memory.total = (unsigned long long)value_of("total", gpu->number, gib * (long long)GIB);
    memory.reserved = (unsigned long long)value_of("reserved", gpu->number, 0);
    memory.used = (unsigned long long)value_of("used", gpu->number, (long long)found.bytes);
    memory.free = memory.total - memory.used - memory.reserved;
    return memory;
}

int nvmlDeviceGetMemoryInfo(const Gpu *gpu, Memory *memory) {
    MemoryV2 whole = memory_of(gpu);
    *memory = (Memory){whole.total, whole.free, whole.used + whole.reserved};
    return ask(gpu);
}

int nvmlDeviceGetMemoryInfo_v2(const Gpu *gpu, MemoryV2 *memory) {
    int answer = (int)value_of("memory_v2", gpu->number, SUCCESS);
    if (answer) return answer;
    if (memory->version != MEMORY_V2) return ARGUMENT_VERSION_MISMATCH;
    *memory = memory_of(gpu);
    memory->version = MEMORY_V2;
    if (value_of("used_v2", gpu->number, 0)) memory->used += memory->reserved;
    return ask(gpu);
}

int nvmlDeviceGetUtilizationRates(const Gpu *gpu, Utilization *rates) {
    rates->gpu = (unsigned)value_of("utilization", gpu->number, 0);
    rates->memory = 0;
    return gpu->number < SLICES_FROM ? ask(gpu) : NOT_SUPPORTED;
}

int nvmlDeviceGetTemperature(const Gpu *gpu, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = (unsigned)value_of("temperature", gpu->number, 40);
    return ask(gpu);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(const Gpu *gpu, unsigned long long *reasons) {
    *reasons = (unsigned long long)value_of("throttle", gpu->number, 0);
    return ask(gpu);
}

int nvmlDeviceGetPowerUsage(const Gpu *gpu, unsigned *milliwatt) {
    *milliwatt = (unsigned)value_of("power", gpu->number, 100000);
    return ask(gpu);
}

int nvmlDeviceGetTotalEnergyConsumption(const Gpu *gpu, unsigned long long *millijoule) {
    *millijoule = (unsigned long long)value_of("energy", gpu->number, 0);
    return ask(gpu);
}

int nvmlDeviceGetComputeRunningProcesses_v3(const Gpu *gpu, unsigned *count, Process *list) {
    struct processes found = processes_on(gpu, list, list ? *count : 0);
    unsigned room = list ? *count : 0;
    *count = found.count;
    int answer = ask(gpu);
    return answer ? answer : found.count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(const Gpu *gpu, unsigned *count, Process *list) {
    (void)list;
    *count = 0;
    return ask(gpu);
}

/* One set of events for all; what of a GPU's errors was told already is counted. */
typedef struct { Gpu *gpu; unsigned long long type, data; unsigned instance, compute; } Event;
struct errors { int wanted, seen; long long number; };

static int told[64], watched[64];

static void take_error(const char *value, void *into) {
    struct errors *errors = into;
    if (errors->seen++ == errors->wanted) errors->number = strtoll(value, NULL, 10);
}

int nvmlEventSetCreate(void **set) { *set = told; return SUCCESS; }

int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

int nvmlDeviceRegisterEvents(const Gpu *gpu, unsigned long long types, void *set) {
    (void)types, (void)set;
    watched[gpu->number] = 1;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    (void)set, (void)milliseconds;
    for (int number = 0; number < 64; number++) {
        struct errors errors = {told[number], 0, 0};
        char key[64];
        snprintf(key, sizeof key, "xid.%d", number);
        if (watched[number]) each_line(key, take_error, &errors);
        if (errors.seen <= told[number]) continue;
        told[number]++;
        *event = (Event){&gpus[number], 8, (unsigned long long)errors.number, ~0U, ~0U};
        return SUCCESS;
    }
    return TIMEOUT;
}
