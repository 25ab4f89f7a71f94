/*
 * Lets calls on files of a PostgreSQL server fail with EIO. Loaded by LD_PRELOAD.
 *
 * The directory in WALHOOK_FAULTS contains one file for each operation that fails: fsync, write or read. Its content is a part of the
 * paths of the files whose calls fail. While the file exists, all of them fail. The file OPERATION.once fails one call: the one that
 * removes it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int matches(const char *flag, int fd)
{
    char pattern[256], link[64], path[4096];
    int file = open(flag, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    /* The system call itself: `read` may be wrapped. */
    long length = syscall(SYS_read, file, pattern, sizeof pattern - 1);
    close(file);
    if (length <= 0)
        return 0;
    pattern[length] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return strstr(path, pattern) != NULL;
}

static int fails(const char *operation, int fd)
{
    static const char *directory;
    char always[4096], once[4096];
    int before = errno, found;
    /* Copied: the server overwrites the memory of its environment with its title. */
    if (directory == NULL)
        directory = strdup(getenv("WALHOOK_FAULTS") ? getenv("WALHOOK_FAULTS") : "");
    if (*directory == 0)
        return 0;
    snprintf(always, sizeof always, "%s/%s", directory, operation);
    snprintf(once, sizeof once, "%s/%s.once", directory, operation);
    found = matches(always, fd) || (matches(once, fd) && unlink(once) == 0);
    errno = found ? EIO : before;
    return found;
}

#define WRAP(result, name, operation, failure, parameters, arguments)               \
    result name parameters                                                          \
    {                                                                               \
        static result (*next) parameters;                                           \
        if (next == NULL)                                                           \
            next = (result(*) parameters)dlsym(RTLD_NEXT, #name);                   \
        return fails(operation, fd) ? failure : next arguments;                     \
    }

WRAP(int, fsync, "fsync", -1, (int fd), (fd))
WRAP(int, fdatasync, "fsync", -1, (int fd), (fd))
WRAP(ssize_t, write, "write", -1, (int fd, const void *data, size_t length), (fd, data, length))
WRAP(ssize_t, pwrite, "write", -1, (int fd, const void *data, size_t length, off_t at), (fd, data, length, at))
WRAP(ssize_t, pwrite64, "write", -1, (int fd, const void *data, size_t length, off64_t at), (fd, data, length, at))
WRAP(ssize_t, pwritev, "write", -1, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at))
WRAP(ssize_t, pwritev64, "write", -1, (int fd, const struct iovec *data, int count, off64_t at), (fd, data, count, at))
WRAP(int, posix_fallocate, "write", EIO, (int fd, off_t at, off_t length), (fd, at, length))
WRAP(int, posix_fallocate64, "write", EIO, (int fd, off64_t at, off64_t length), (fd, at, length))
WRAP(ssize_t, read, "read", -1, (int fd, void *data, size_t length), (fd, data, length))
WRAP(ssize_t, pread, "read", -1, (int fd, void *data, size_t length, off_t at), (fd, data, length, at))
WRAP(ssize_t, pread64, "read", -1, (int fd, void *data, size_t length, off64_t at), (fd, data, length, at))
WRAP(ssize_t, preadv, "read", -1, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at))
WRAP(ssize_t, preadv64, "read", -1, (int fd, const struct iovec *data, int count, off64_t at), (fd, data, count, at))
