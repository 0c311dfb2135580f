/* A disk that fails: preloaded before the C library, it breaks calls on chosen files.
 *
 * While the file FAULT_TRIGGER exists, calls on files whose path contains FAULT_PATH fail:
 * FAULT_CALL=sync makes fdatasync and fsync say EIO, FAULT_CALL=write makes writes say ENOSPC,
 * and the space for a new file cannot be reserved. FAULT_CALL=slow makes fdatasync take longer
 * than a second.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(const char *call, int descriptor) {
    const char *trigger = getenv("FAULT_TRIGGER"), *wanted = getenv("FAULT_PATH");
    const char *kind = getenv("FAULT_CALL");
    if (!trigger || !wanted || !kind || strcmp(kind, call) || access(trigger, F_OK))
        return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, wanted) != NULL;
}

int fdatasync(int descriptor) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    if (fails("sync", descriptor))
        return errno = EIO, -1;
    if (fails("slow", descriptor))
        usleep(1100000);
    return real(descriptor);
}

int fsync(int descriptor) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    if (fails("sync", descriptor))
        return errno = EIO, -1;
    return real(descriptor);
}

ssize_t pwrite64(int descriptor, const void *data, size_t length, off64_t offset) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (fails("write", descriptor))
        return errno = ENOSPC, -1;
    return real(descriptor, data, length, offset);
}

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t offset) {
    return pwrite64(descriptor, data, length, offset);
}

int posix_fallocate64(int descriptor, off64_t offset, off64_t length) {
    int (*real)(int, off64_t, off64_t) = dlsym(RTLD_NEXT, "posix_fallocate64");
    if (fails("write", descriptor))
        return ENOSPC;
    return real(descriptor, offset, length);
}

int posix_fallocate(int descriptor, off_t offset, off_t length) {
    return posix_fallocate64(descriptor, offset, length);
}
