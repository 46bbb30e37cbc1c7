/* sluice_sandbox.c: what a function's process gives up before its first command: nearly everything. It keeps the
 * memory and the sockets it has. It can open no file but those below the paths it names, and only to read them
 * (Landlock); other system calls than those below end it (seccomp). */
#define _GNU_SOURCE
#include "sluice_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define MACHINE AUDIT_ARCH_AARCH64
#else
#error "this machine's system calls are not known here"
#endif

/* What the loop, the allocator and the end of a process need. */
static const unsigned short LOOP[] = {
    SYS_read, SYS_write, SYS_ppoll, SYS_close, SYS_futex, SYS_clock_gettime, SYS_mmap, SYS_munmap, SYS_mremap,
    SYS_mprotect, SYS_madvise, SYS_brk, SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_sigaltstack,
    SYS_restart_syscall, SYS_getrandom, SYS_gettid, SYS_getpid, SYS_exit, SYS_exit_group, SYS_writev,
#ifdef SYS_poll
    SYS_poll,
#endif
};

/* What letting another drive in needs besides. */
static const unsigned short DRIVES[] = {
    SYS_accept4, SYS_sendto, SYS_recvmsg, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_lseek, SYS_openat, SYS_mlock,
};

#define COUNT(list) (sizeof(list) / sizeof *(list))
#define FILTER_MAX (COUNT(LOOP) + COUNT(DRIVES) + 16)

/* Every right on files that a kernel may know, as far as it does. */
static uint64_t all_rights(long version)
{
    static const unsigned char bits[] = { 0, 13, 14, 15, 15, 16 };
    long last = (long)COUNT(bits) - 1;
    return (1ull << bits[version < last ? version : last]) - 1;
}

static int limit_files(const char *const *readable, size_t count)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1)
        return 0; /* a kernel without it: system calls alone */
    struct {
        uint64_t files, network;
    } rights = { all_rights(version), version >= 4 ? 3 : 0 };
    size_t size = version >= 4 ? sizeof rights : sizeof rights.files;
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &rights, size, 0);
    if (ruleset < 0)
        return -1;
    for (size_t n = 0; n < count; n++) {
        int fd = open(readable[n], O_PATH | O_CLOEXEC);
        struct landlock_path_beneath_attr rule = {
            .allowed_access = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR, .parent_fd = fd,
        };
        long added = -1;
        if (fd >= 0) {
            added = syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
            if (added != 0 && errno == EINVAL) { /* a file, which has no entries to read */
                rule.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE;
                added = syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
            }
            close(fd);
        }
        if (added != 0)
            return -1;
    }
    int done = (int)syscall(SYS_landlock_restrict_self, ruleset, 0);
    close(ruleset);
    return done;
}

static size_t allow(struct sock_filter *filter, size_t at, const unsigned short *calls, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        filter[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[n], 0, 1);
        filter[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    return at;
}

static int limit_calls(bool serves_many)
{
    struct sock_filter filter[2 * FILTER_MAX] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    size_t at = allow(filter, 4, LOOP, COUNT(LOOP));
    if (serves_many)
        at = allow(filter, at, DRIVES, COUNT(DRIVES));
    /* A process may end itself (abort), and nobody else: the daemon may have the same user. */
    const struct sock_filter rest[] = {
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)getpid(), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    for (size_t n = 0; n < COUNT(rest); n++)
        filter[at++] = rest[n];
    struct sock_fprog program = { (unsigned short)at, filter };
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

void sluice_hide(void)
{
    prctl(PR_SET_DUMPABLE, 0);
}

int sluice_confine(const char *const *readable, size_t count, bool serves_many)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || limit_files(readable, count) != 0)
        return -1;
    return limit_calls(serves_many);
}
