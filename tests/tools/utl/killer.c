/* Preloaded into a process: counts what it does to files, and kills it, or fails, at one of them.
 *
 * `kvorum_arm(n, mode)` begins to count. Mode 'k': the process is killed within the n-th operation;
 * of a write, half is done. Mode 'f': from the n-th on, the disk is full. `kvorum_count()` tells how
 * many there were. Syncs do nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long count;
static long fatal = -1;
static int mode;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

void kvorum_arm(long number, int how)
{
    atomic_store(&count, 0);
    mode = how;
    fatal = number;
}

long kvorum_count(void)
{
    return atomic_load(&count);
}

/* Whether this is the operation that the process does not survive. */
static int is_last(void)
{
    long number = atomic_fetch_add(&count, 1) + 1;
    return fatal >= 0 && mode == 'k' && number == fatal;
}

static int is_full(void)
{
    return fatal >= 0 && mode == 'f' && atomic_load(&count) >= fatal;
}

static void end(void)
{
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

#define SIMPLE(name, parameters, arguments, takes_room) \
    int name parameters \
    { \
        REAL(name); \
        if (is_last()) end(); \
        if (takes_room && is_full()) { errno = ENOSPC; return -1; } \
        return real arguments; \
    }

SIMPLE(rename, (const char *old, const char *new), (old, new), 0)
SIMPLE(renameat, (int a, const char *old, int b, const char *new), (a, old, b, new), 0)
SIMPLE(unlink, (const char *path), (path), 0)
SIMPLE(unlinkat, (int at, const char *path, int flags), (at, path, flags), 0)
SIMPLE(rmdir, (const char *path), (path), 0)
SIMPLE(mkdir, (const char *path, mode_t bits), (path, bits), 1)
SIMPLE(ftruncate, (int descriptor, off_t length), (descriptor, length), 0)
SIMPLE(ftruncate64, (int descriptor, off64_t length), (descriptor, length), 0)

/* Nothing has to outlive the machine here, and a disk takes its time. */
#define SYNC(name) \
    int name(int descriptor) \
    { \
        (void)descriptor; \
        if (is_last()) end(); \
        if (is_full()) { errno = ENOSPC; return -1; } \
        return 0; \
    }
SYNC(fsync)
SYNC(fdatasync)

#define ALLOCATE(name, type) \
    int name(int descriptor, type offset, type length) \
    { \
        REAL(name); \
        if (is_last()) end(); \
        if (is_full()) return ENOSPC; \
        return real(descriptor, offset, length); \
    }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

#define PWRITE(name, type) \
    ssize_t name(int descriptor, const void *data, size_t length, type offset) \
    { \
        REAL(name); \
        if (is_last()) { \
            if (real(descriptor, data, length / 2, offset) >= 0) end(); \
            end(); \
        } \
        if (is_full()) { errno = ENOSPC; return -1; } \
        return real(descriptor, data, length, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int descriptor, const void *data, size_t length)
{
    REAL(write);
    if (descriptor <= 2) return real(descriptor, data, length);
    if (is_last()) {
        if (real(descriptor, data, length / 2) >= 0) end();
        end();
    }
    if (is_full()) { errno = ENOSPC; return -1; }
    return real(descriptor, data, length);
}

ssize_t writev(int descriptor, const struct iovec *vector, int number)
{
    REAL(writev);
    if (descriptor <= 2) return real(descriptor, vector, number);
    if (is_last()) end();
    if (is_full()) { errno = ENOSPC; return -1; }
    return real(descriptor, vector, number);
}

#define PWRITEV(name, type) \
    ssize_t name(int descriptor, const struct iovec *vector, int number, type offset) \
    { \
        REAL(name); \
        if (is_last()) end(); \
        if (is_full()) { errno = ENOSPC; return -1; } \
        return real(descriptor, vector, number, offset); \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list list; \
        va_start(list, flags); \
        mode_t bits = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list); \
        if (flags & O_CREAT) { \
            if (is_last()) end(); \
            if (is_full() && access(path, F_OK)) { errno = ENOSPC; return -1; } \
        } \
        return real(path, flags, bits); \
    }
OPEN(open)
OPEN(open64)
