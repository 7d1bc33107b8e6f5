/*
 * A small libnvidia-ml.so.1 for tests: the real Python binding loads it by its soname, so struct layouts, error codes
 * and the loader path are exercised without a card.
 *
 * Every call reads its answer from the text file named by FAKE_NVML_STATE, "key=value" a line, so a test changes the
 * machine while it runs. Card keys are "<card>.<what>", MIG keys "<card>.mig.<slot>.<what>". Faults, looked up before
 * any answer, with <card> optional:
 *   rc.<function>.<card>=<NVML return code>    rc.*.<card>=15 is a card that fell off the bus
 *   hang.<function>.<card>=1                   blocks for as long as the line is there
 *   slow.<function>.<card>=<milliseconds>
 *   crash.<function>.<card>=1                  the process dies in the call
 *   hang.load=1                                loading the library itself blocks
 * Xids wait in the file named by FAKE_NVML_EVENTS, "<card> <code> [<GPU instance>]" a line, and are taken from its
 * beginning, each once, by a process that listened to the card before.
 * Compiled with -DOLD_DRIVER it lacks the symbols that drivers before 535 lack.
 *
 * Struct layouts: nvml.h of CUDA 12 (nvmlMemory_v2_t, nvmlProcessInfo_v2_t, nvmlPciInfo_t, nvmlDeviceAttributes_t).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define NOT_AVAILABLE UINT64_MAX
#define STATE_MAX (256 * 1024)
#define VALUE_MAX 8192
#define SLOTS 16

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMED_OUT = 10, MISMATCH = 25, UNKNOWN = 999
};

typedef struct card *device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct {
    unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mb;
} attributes_t;

static atomic_int initialised;

/* Device pointers are numbers: card * 64 + MIG slot + 1 (0 = the card itself) + 4096. */
static device_t make_device(int card, int slot) { return (device_t)(uintptr_t)(4096 + card * 64 + slot + 1); }
static int card_of(device_t device) { return ((int)(uintptr_t)device - 4096) / 64; }
static int slot_of(device_t device) { return ((int)(uintptr_t)device - 4096) % 64 - 1; }

static int read_state(char *text)
{
    const char *path = getenv("FAKE_NVML_STATE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t size, total = 0;
    if (fd < 0)
        return -1;
    while ((size = read(fd, text + total, STATE_MAX - 1 - total)) > 0)
        total += size;
    close(fd);
    text[total] = 0;
    return size < 0 ? -1 : 0;
}

/* Copies the value of the formatted key; returns 0 when the key is absent. */
static int find(char *value, const char *format, ...)
{
    char key[256], *text = malloc(STATE_MAX), *line, *rest;
    va_list arguments;
    int found = 0;
    size_t length;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    length = strlen(key);
    if (text && read_state(text) == 0)
        for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
            if (!strncmp(line, key, length) && line[length] == '=') {
                snprintf(value, VALUE_MAX, "%s", line + length + 1);
                found = 1;
                break;
            }
    free(text);
    return found;
}

static void sleep_ms(long milliseconds)
{
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static int find_fault(char *value, const char *kind, const char *function, int card)
{
    if (card >= 0 && (find(value, "%s.%s.%d", kind, function, card) || find(value, "%s.*.%d", kind, card)))
        return 1;
    return find(value, "%s.%s", kind, function);
}

/* The faults asked for on this function and card (-1: a call without a card). */
static int enter(const char *function, int card)
{
    char value[VALUE_MAX];
    if (find_fault(value, "slow", function, card))
        sleep_ms(atol(value));
    if (find_fault(value, "crash", function, card))
        _exit(139);
    while (find_fault(value, "hang", function, card))
        sleep_ms(5);
    if (find_fault(value, "rc", function, card))
        return atoi(value);
    if (!initialised && strncmp(function, "nvmlInit", 8))
        return UNINITIALIZED;
    return OK;
}

#define ENTER(card) do { int fault = enter(__func__, card); if (fault) return fault; } while (0)

/* A value of a card or of one of its MIG slots. */
static int lookup(device_t device, const char *what, char *value)
{
    if (slot_of(device) >= 0)
        return find(value, "%d.mig.%d.%s", card_of(device), slot_of(device), what);
    return find(value, "%d.%s", card_of(device), what);
}

static int get_number(device_t device, const char *what, unsigned long long *number)
{
    char value[VALUE_MAX];
    if (!lookup(device, what, value))
        return NOT_SUPPORTED;
    *number = strtoull(value, NULL, 0);
    return OK;
}

static int get_unsigned(device_t device, const char *what, unsigned *number)
{
    unsigned long long wide;
    int rc = get_number(device, what, &wide);
    if (rc == OK)
        *number = (unsigned)wide;
    return rc;
}

static int get_text(device_t device, const char *what, char *text, unsigned length)
{
    char value[VALUE_MAX];
    if (!lookup(device, what, value))
        return NOT_SUPPORTED;
    if (strlen(value) + 1 > length)
        return INSUFFICIENT_SIZE;
    strcpy(text, value);
    return OK;
}

__attribute__((constructor)) static void load(void)
{
    char value[VALUE_MAX];
    while (find(value, "hang.load"))
        sleep_ms(5);
}

API int nvmlInitWithFlags(unsigned flags)
{
    char value[VALUE_MAX];
    (void)flags;
    ENTER(-1);
    if (!find(value, "driver"))
        return DRIVER_NOT_LOADED;
    initialised = 1;
    return OK;
}

API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }
API int nvmlShutdown(void) { ENTER(-1); initialised = 0; return OK; }

API const char *nvmlErrorString(int rc)
{
    switch (rc) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 3: return "Not Supported";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "Other Error";
    }
}

static int system_text(const char *function, const char *key, char *text, unsigned length)
{
    char value[VALUE_MAX];
    int fault = enter(function, -1);
    if (fault)
        return fault;
    if (!find(value, "%s", key))
        return UNKNOWN;
    snprintf(text, length, "%s", value);
    return OK;
}

API int nvmlSystemGetDriverVersion(char *text, unsigned length) { return system_text(__func__, "driver", text, length); }
API int nvmlSystemGetNVMLVersion(char *text, unsigned length) { return system_text(__func__, "driver", text, length); }

API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    char value[VALUE_MAX];
    ENTER(-1);
    if (!find(value, "cuda"))
        return NOT_FOUND;
    *version = atoi(value);
    return OK;
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
    char value[VALUE_MAX];
    ENTER(-1);
    *count = find(value, "cards") ? (unsigned)atoi(value) : 0;
    return OK;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device)
{
    char value[VALUE_MAX];
    ENTER((int)index);
    if (!find(value, "cards") || index >= (unsigned)atoi(value))
        return INVALID_ARGUMENT;
    *device = make_device((int)index, -1);
    return OK;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device)
{
    char value[VALUE_MAX];
    int card, slot, cards;
    ENTER(-1);
    cards = find(value, "cards") ? atoi(value) : 0;
    for (card = 0; card < cards; card++)
        for (slot = -1; slot < SLOTS; slot++)
            if (lookup(make_device(card, slot), "uuid", value) && !strcmp(value, uuid)) {
                *device = make_device(card, slot);
                return OK;
            }
    return NOT_FOUND;
}

API int nvmlDeviceGetIndex(device_t device, unsigned *index)
{
    ENTER(card_of(device));
    *index = (unsigned)card_of(device);
    return OK;
}

API int nvmlDeviceGetUUID(device_t device, char *text, unsigned length)
{
    ENTER(card_of(device));
    return get_text(device, "uuid", text, length);
}

API int nvmlDeviceGetName(device_t device, char *text, unsigned length)
{
    ENTER(card_of(device));
    return get_text(device, "name", text, length);
}

API int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *pci)
{
    ENTER(card_of(device));
    memset(pci, 0, sizeof *pci);
    return get_text(device, "pci", pci->bus_id, sizeof pci->bus_id);
}

/* Answers one unsigned value of a card under the given key. */
#define UNSIGNED_CALL(function, key)                              \
    API int function(device_t device, unsigned *number)          \
    {                                                             \
        ENTER(card_of(device));                                   \
        return get_unsigned(device, key, number);                 \
    }

UNSIGNED_CALL(nvmlDeviceGetMinorNumber, "minor")
UNSIGNED_CALL(nvmlDeviceGetPowerUsage, "power_mw")
UNSIGNED_CALL(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
UNSIGNED_CALL(nvmlDeviceGetPersistenceMode, "persistence")
UNSIGNED_CALL(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")
UNSIGNED_CALL(nvmlDeviceGetMaxMigDeviceCount, "mig.slots")
UNSIGNED_CALL(nvmlDeviceGetGpuInstanceId, "gpu_instance")
UNSIGNED_CALL(nvmlDeviceGetComputeInstanceId, "compute_instance")
UNSIGNED_CALL(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
UNSIGNED_CALL(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UNSIGNED_CALL(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
UNSIGNED_CALL(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")

/* Answers one unsigned value of a card, of a kind that the caller numbers. */
#define KIND_CALL(function, ...)                                                      \
    API int function(device_t device, unsigned kind, unsigned *number)               \
    {                                                                                 \
        static const char *const keys[] = {__VA_ARGS__};                              \
        ENTER(card_of(device));                                                       \
        if (kind >= sizeof keys / sizeof *keys)                                       \
            return INVALID_ARGUMENT;                                                  \
        return get_unsigned(device, keys[kind], number);                              \
    }

KIND_CALL(nvmlDeviceGetClockInfo, "clock.graphics", "clock.sm", "clock.memory", "clock.video")
KIND_CALL(nvmlDeviceGetMaxClockInfo, "clock_max.graphics", "clock_max.sm", "clock_max.memory", "clock_max.video")
KIND_CALL(nvmlDeviceGetTemperatureThreshold, "limit.shutdown", "limit.slowdown", "limit.memory_max", "limit.gpu_max")

typedef struct { unsigned long long reference, violation; } violation_t;

API int nvmlDeviceGetViolationStatus(device_t device, unsigned policy, violation_t *status)
{
    static const char *const keys[] = {"violation.power", "violation.thermal"};
    ENTER(card_of(device));
    if (policy >= sizeof keys / sizeof *keys)
        return NOT_SUPPORTED;
    status->reference = 0;
    return get_number(device, keys[policy], &status->violation);
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned kind;
    int rc;
    union { double d; unsigned u; unsigned long ul; unsigned long long ull; } value;
} field_t;

/* Each value has a code of its own, as in real drivers. */
API int nvmlDeviceGetFieldValues(device_t device, int count, field_t *values)
{
    int at;
    ENTER(card_of(device));
    for (at = 0; at < count; at++) {
        char key[32];
        snprintf(key, sizeof key, "field.%u", values[at].field);
        values[at].kind = 1;
        values[at].rc = get_unsigned(device, key, &values[at].value.u);
    }
    return OK;
}

/* One NUMA node as a set of one bit; the second word and on stay empty. */
API int nvmlDeviceGetMemoryAffinity(device_t device, unsigned size, unsigned long *nodes, int scope)
{
    unsigned node;
    int rc;
    (void)scope;
    ENTER(card_of(device));
    if ((rc = get_unsigned(device, "numa", &node)))
        return rc;
    memset(nodes, 0, size * sizeof *nodes);
    if (node < size * 64)
        nodes[node / 64] |= 1ul << node % 64;
    return OK;
}

API int nvmlDeviceGetTemperature(device_t device, int sensor, unsigned *celsius)
{
    (void)sensor;
    ENTER(card_of(device));
    return get_unsigned(device, "temperature", celsius);
}

API int nvmlDeviceGetMemoryInfo(device_t device, memory_t *memory)
{
    unsigned long long reserved = 0, free_bytes;
    int rc;
    ENTER(card_of(device));
    if ((rc = get_number(device, "memory.total", &memory->total)) || (rc = get_number(device, "memory.used", &memory->used)))
        return rc;
    get_number(device, "memory.reserved", &reserved);
    memory->used += reserved; /* the first version counts what the driver keeps as used */
    memory->free = get_number(device, "memory.free", &free_bytes) == OK ? free_bytes : memory->total - memory->used;
    return OK;
}

#ifndef OLD_DRIVER
API int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *memory)
{
    unsigned long long free_bytes;
    int rc;
    ENTER(card_of(device));
    if (memory->version != 0x02000028)
        return MISMATCH;
    if ((rc = get_number(device, "memory.total", &memory->total)) || (rc = get_number(device, "memory.used", &memory->used)))
        return rc;
    memory->reserved = 0;
    get_number(device, "memory.reserved", &memory->reserved);
    memory->free = get_number(device, "memory.free", &free_bytes) == OK ? free_bytes
                                                                       : memory->total - memory->used - memory->reserved;
    return OK;
}

API int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *reasons)
{
    ENTER(card_of(device));
    return get_number(device, "clock_reasons", reasons);
}

API int nvmlDeviceGetSupportedClocksEventReasons(device_t device, unsigned long long *reasons)
{
    ENTER(card_of(device));
    return get_number(device, "clock_reasons_supported", reasons);
}
#endif

API int nvmlDeviceGetSupportedClocksThrottleReasons(device_t device, unsigned long long *reasons)
{
    ENTER(card_of(device));
    return get_number(device, "clock_reasons_supported", reasons);
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *reasons)
{
    ENTER(card_of(device));
    return get_number(device, "clock_reasons", reasons);
}

API int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *rates)
{
    char value[VALUE_MAX];
    ENTER(card_of(device));
    if (slot_of(device) >= 0 || (find(value, "%d.mig", card_of(device)) && atoi(value)))
        return NOT_SUPPORTED; /* as real drivers answer under MIG */
    if (get_unsigned(device, "utilisation.memory", &rates->memory))
        rates->memory = 0;
    return get_unsigned(device, "utilisation", &rates->gpu);
}

API int nvmlDeviceGetTotalEccErrors(device_t device, int kind, int counter, unsigned long long *count)
{
    char key[64];
    ENTER(card_of(device));
    snprintf(key, sizeof key, "ecc.%s.%s", counter ? "aggregate" : "volatile", kind ? "uncorrected" : "corrected");
    return get_number(device, key, count);
}

API int nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                  unsigned *failed)
{
    char value[VALUE_MAX];
    ENTER(card_of(device));
    if (!lookup(device, "remapped", value))
        return NOT_SUPPORTED;
    return sscanf(value, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? OK : UNKNOWN;
}

API int nvmlDeviceGetRetiredPages(device_t device, int cause, unsigned *count, unsigned long long *addresses)
{
    unsigned pages = 0, room = *count;
    int rc;
    (void)cause;
    ENTER(card_of(device));
    if ((rc = get_unsigned(device, "retired", &pages)))
        return rc;
    *count = pages;
    if (pages > room)
        return INSUFFICIENT_SIZE;
    if (pages)
        memset(addresses, 0, pages * sizeof *addresses);
    return OK;
}

/* "pid:bytes[:gpu instance]" separated by spaces, bytes "N/A" where the driver does not say. */
static int list_processes(device_t device, const char *what, unsigned *count, process_t *processes)
{
    char value[VALUE_MAX], *entry, *rest;
    unsigned found = 0, room = *count;
    if (!lookup(device, what, value))
        value[0] = 0;
    for (entry = strtok_r(value, " ", &rest); entry; entry = strtok_r(NULL, " ", &rest), found++) {
        char *bytes = strchr(entry, ':'), *instance = bytes ? strchr(bytes + 1, ':') : NULL;
        if (found >= room || !processes)
            continue;
        processes[found].pid = (unsigned)strtoul(entry, NULL, 10);
        processes[found].used = bytes && strncmp(bytes + 1, "N/A", 3) ? strtoull(bytes + 1, NULL, 10) : NOT_AVAILABLE;
        processes[found].gpu_instance = instance ? (unsigned)strtoul(instance + 1, NULL, 10) : UINT32_MAX;
        processes[found].compute_instance = instance ? 0 : UINT32_MAX;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *processes)
{
    ENTER(card_of(device));
    return list_processes(device, "processes", count, processes);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned *count, process_t *processes)
{
    ENTER(card_of(device));
    return list_processes(device, "graphics", count, processes);
}

API int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending)
{
    int rc;
    ENTER(card_of(device));
    if ((rc = get_unsigned(device, "mig", current)))
        return rc;
    *pending = *current;
    return OK;
}

API int nvmlDeviceIsMigDeviceHandle(device_t device, unsigned *is_mig)
{
    ENTER(card_of(device));
    *is_mig = slot_of(device) >= 0;
    return OK;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned slot, device_t *instance)
{
    char value[VALUE_MAX];
    ENTER(card_of(device));
    *instance = make_device(card_of(device), (int)slot);
    return slot < SLOTS && lookup(*instance, "uuid", value) ? OK : NOT_FOUND;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t instance, device_t *device)
{
    ENTER(card_of(instance));
    *device = make_device(card_of(instance), -1);
    return OK;
}

API int nvmlDeviceGetAttributes_v2(device_t device, attributes_t *attributes)
{
    int rc;
    ENTER(card_of(device));
    memset(attributes, 0, sizeof *attributes);
    rc = get_number(device, "memory_mb", &attributes->memory_mb);
    get_unsigned(device, "gpu_slices", &attributes->gpu_slices);
    get_unsigned(device, "gpu_slices", &attributes->compute_slices);
    return rc;
}

/* Event sets: a set is a bit for each card that it hears, and how far the events file was read. */
#define XID_EVENT 0x8ull
#define SETS 8
typedef struct set { int used; uint64_t cards; long position; } set_t;
typedef struct { device_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;
static set_t sets[SETS];

API int nvmlDeviceGetSupportedEventTypes(device_t device, unsigned long long *types)
{
    ENTER(card_of(device));
    if (get_number(device, "event_types", types))
        *types = XID_EVENT;
    return OK;
}

API int nvmlEventSetCreate(set_t **set)
{
    int at;
    ENTER(-1);
    for (at = 0; at < SETS; at++)
        if (!sets[at].used) {
            sets[at] = (set_t){1, 0, 0};
            *set = &sets[at];
            return OK;
        }
    return UNKNOWN;
}

API int nvmlEventSetFree(set_t *set)
{
    ENTER(-1);
    set->used = 0;
    return OK;
}

static FILE *open_events(void)
{
    const char *path = getenv("FAKE_NVML_EVENTS");
    return path ? fopen(path, "re") : NULL;
}

API int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, set_t *set)
{
    FILE *file;
    ENTER(card_of(device));
    if (!(types & XID_EVENT))
        return NOT_SUPPORTED;
    /* What happened before anybody listened is not told. */
    if (!set->cards && (file = open_events())) {
        fseek(file, 0, SEEK_END);
        set->position = ftell(file);
        fclose(file);
    }
    set->cards |= 1ull << card_of(device);
    return OK;
}

API int nvmlEventSetWait_v2(set_t *set, event_t *event, unsigned timeout_ms)
{
    FILE *file;
    char line[128];
    (void)timeout_ms;
    ENTER(-1);
    if (!(file = open_events()))
        return TIMED_OUT;
    fseek(file, set->position, SEEK_SET);
    while (fgets(line, sizeof line, file)) {
        unsigned card, instance = UINT32_MAX;
        unsigned long long code;
        set->position = ftell(file);
        if (sscanf(line, "%u %llu %u", &card, &code, &instance) < 2 || !(set->cards >> card & 1))
            continue;
        *event = (event_t){make_device((int)card, -1), XID_EVENT, code, instance, UINT32_MAX};
        fclose(file);
        return OK;
    }
    fclose(file);
    return TIMED_OUT;
}
