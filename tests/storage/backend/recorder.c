/* Preloaded into a process: records what it does to the files of one directory, in order.
 *
 * A record is a line "W <offset> <length> <path>", followed by the data; "S <path>" for a sync of
 * a file or a directory; "T <length> <path>"; "R <old> <new>"; "U <path>"; "M <number>" for a mark
 * that the process set. KVORUM_RECORD_BYTES is the size of the disk: writes past it fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE *output;
static long long room = -1;

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void begin(void)
{
    pthread_mutex_lock(&mutex);
    if (!output) {
        const char *bytes = getenv("KVORUM_RECORD_BYTES");
        output = fopen(getenv("KVORUM_RECORD_FILE"), "we");
        if (!output) abort();
        if (bytes) room = atoll(bytes);
    }
}

static void end(void)
{
    fflush(output);
    pthread_mutex_unlock(&mutex);
}

static int is_watched(const char *path)
{
    const char *directory = getenv("KVORUM_RECORD_DIRECTORY");
    size_t length = strlen(path);
    if (!directory || strncmp(path, directory, strlen(directory))) return 0;
    return !(length >= 5 && !strcmp(path + length - 5, "-lock"));
}

static int path_of(int descriptor, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_watched(path);
}

static int is_full(size_t length)
{
    if (room < 0) return 0;
    if ((long long)length > room) return 1;
    room -= length;
    return 0;
}

static void put_write(int descriptor, const char *path, off_t offset, const void *data, size_t length)
{
    fprintf(output, "W %lld %zu %s\n", (long long)offset, length, path);
    fwrite(data, 1, length, output);
    if (fcntl(descriptor, F_GETFL) & O_DSYNC) fprintf(output, "S %s\n", path);
}

void kvorum_mark(long number)
{
    begin();
    fprintf(output, "M %ld\n", number);
    end();
}

#define PWRITE(name, type) \
    ssize_t name(int descriptor, const void *data, size_t length, type offset) \
    { \
        char path[PATH_MAX]; \
        REAL(name); \
        if (!path_of(descriptor, path)) return real(descriptor, data, length, offset); \
        begin(); \
        if (is_full(length)) { end(); errno = ENOSPC; return -1; } \
        ssize_t done = real(descriptor, data, length, offset); \
        if (done > 0) put_write(descriptor, path, offset, data, done); \
        end(); \
        return done; \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int descriptor, const void *data, size_t length)
{
    char path[PATH_MAX];
    REAL(write);
    if (!path_of(descriptor, path)) return real(descriptor, data, length);
    begin();
    if (is_full(length)) { end(); errno = ENOSPC; return -1; }
    off_t offset = lseek(descriptor, 0, SEEK_CUR);
    ssize_t done = real(descriptor, data, length);
    if (done > 0) put_write(descriptor, path, offset, data, done);
    end();
    return done;
}

ssize_t writev(int descriptor, const struct iovec *vector, int count)
{
    char path[PATH_MAX];
    size_t length = 0;
    REAL(writev);
    if (!path_of(descriptor, path)) return real(descriptor, vector, count);
    for (int i = 0; i < count; i++) length += vector[i].iov_len;
    begin();
    if (is_full(length)) { end(); errno = ENOSPC; return -1; }
    off_t offset = lseek(descriptor, 0, SEEK_CUR);
    ssize_t done = real(descriptor, vector, count);
    if (done != (ssize_t)length) abort();
    for (int i = 0; i < count; i++) {
        put_write(descriptor, path, offset, vector[i].iov_base, vector[i].iov_len);
        offset += vector[i].iov_len;
    }
    end();
    return done;
}

#define SYNC(name) \
    int name(int descriptor) \
    { \
        char path[PATH_MAX]; \
        REAL(name); \
        int failed = real(descriptor); \
        if (!failed && path_of(descriptor, path)) { \
            begin(); \
            fprintf(output, "S %s\n", path); \
            end(); \
        } \
        return failed; \
    }
SYNC(fdatasync)
SYNC(fsync)

#define TRUNCATE(name, type) \
    int name(int descriptor, type length) \
    { \
        char path[PATH_MAX]; \
        REAL(name); \
        int failed = real(descriptor, length); \
        if (!failed && path_of(descriptor, path)) { \
            begin(); \
            fprintf(output, "T %lld %s\n", (long long)length, path); \
            end(); \
        } \
        return failed; \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int rename(const char *old, const char *new)
{
    REAL(rename);
    int failed = real(old, new);
    if (!failed && is_watched(old)) {
        begin();
        fprintf(output, "R %s %s\n", old, new);
        end();
    }
    return failed;
}

int unlink(const char *path)
{
    REAL(unlink);
    int failed = real(path);
    if (!failed && is_watched(path)) {
        begin();
        fprintf(output, "U %s\n", path);
        end();
    }
    return failed;
}

/* A shared writable map would get past all this; the database must not use one. */
int msync(void *address, size_t length, int flags)
{
    (void)address;
    (void)length;
    (void)flags;
    abort();
}
