// A plugin of QEMU's emulator that counts the guest's instructions between marks.
//
// A mark is the instruction `nopl MARK + KIND(%rax,%rax)` (0f 1f 84 00 and 32 bits), which does nothing on any
// processor: KIND 0 begins a count, and 1 ends it. Each count becomes a line with the instructions of all processors in
// the file that the argument `out` names. Repeated string instructions (`rep movsb` and the like) are left out: the
// emulator executes a copy of 4 KiB as up to 4,096 instructions, or as one, depending on its clock.
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// The parts of QEMU's interface for plugins that are used here: version 7, of QEMU 11.1.
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
struct entry {
    struct qemu_plugin_scoreboard *score;
    size_t offset;
};
enum { ADD_U64 = 0, NO_REGISTERS = 0 };
typedef void translated(struct qemu_plugin_tb *block, void *argument);
typedef void executed(unsigned processor, void *argument);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, translated *callback, void *argument);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *block, int operation, struct entry entry,
                                                       uint64_t amount);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, executed *callback, int registers,
                                            void *argument);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *bytes, size_t size);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
uint64_t qemu_plugin_u64_sum(struct entry entry);

__attribute__((visibility("default"))) int qemu_plugin_version = 7;

static const unsigned char MARK[7] = {0x0f, 0x1f, 0x84, 0x00, 0xce, 0xd1, 0x51};
enum { MARK_SIZE = sizeof MARK + 1, END = 1 };
static struct entry counted;
static uint64_t begun;
static FILE *out;

static void marked(unsigned processor, void *kind) {
    (void)processor;
    uint64_t sum = qemu_plugin_u64_sum(counted);
    if ((uintptr_t)kind == END) {
        fprintf(out, "%" PRIu64 "\n", sum - begun);
        fflush(out);
    }
    begun = sum;
}

// Whether an instruction of these bytes is a string instruction with a repeat prefix.
static int is_repeated(const unsigned char *bytes, size_t size) {
    int repeats = 0;
    for (size_t n = 0; n < size; n++) {
        unsigned char byte = bytes[n];
        if (byte == 0xf2 || byte == 0xf3) repeats = 1;
        else if (byte != 0x66 && byte != 0x67 && (byte & 0xf0) != 0x40)
            return repeats && ((byte >= 0xa4 && byte <= 0xa7) || (byte >= 0xaa && byte <= 0xaf));
    }
    return 0;
}

static void count(struct qemu_plugin_tb *block, void *argument) {
    (void)argument;
    size_t insns = qemu_plugin_tb_n_insns(block);
    size_t repeated = 0;
    for (size_t index = 0; index < insns; index++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, index);
        unsigned char bytes[MARK_SIZE];
        size_t size = qemu_plugin_insn_data(insn, bytes, sizeof bytes);
        repeated += is_repeated(bytes, size);
        if (size != sizeof bytes || memcmp(bytes, MARK, sizeof MARK)) continue;
        qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, NO_REGISTERS, (void *)(uintptr_t)bytes[sizeof MARK]);
    }
    qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, ADD_U64, counted, insns - repeated);
}

__attribute__((visibility("default"))) int qemu_plugin_install(uint64_t id, const void *info, int count_of,
                                                               char **arguments) {
    (void)info;
    for (int n = 0; n < count_of; n++)
        if (!strncmp(arguments[n], "out=", 4)) out = fopen(arguments[n] + 4, "w");
    if (!out) {
        fprintf(stderr, "count_instructions: give out=FILE, a file that can be written\n");
        return -1;
    }
    counted.score = qemu_plugin_scoreboard_new(sizeof(uint64_t));
    qemu_plugin_register_vcpu_tb_trans_cb(id, count, NULL);
    return 0;
}
